"""Options that servers share, and how their values are read."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from aiorocket.cli.options import token_of
from aiorocket.cli.serving import LOG_FILE, LOG_JSON, LOG_KEEP, LOG_LEVEL, LOG_ROTATE
from aiorocket.config import BrokerConfig, Flush, NameServerConfig, RateLimits, ServerTlsConfig, StoreConfig
from aiorocket.config.settings import SERVERS, Server, placed, server_settings
from aiorocket.errors import ConfigError
from aiorocket_protocol import DEFAULT_CLUSTER

__all__ = (
    "DEFAULT_DATA",
    "SETTINGS",
    "SETTINGS_FILE",
    "Listening",
    "advertised",
    "check_place",
    "host_port",
    "server_options",
    "settings_option",
    "store_options",
)

F = TypeVar("F", bound=Callable[..., Any])

#: Where broker and standalone keep messages when ``--data`` is not given: a name that says whose directory it is.
DEFAULT_DATA = "aiorocket-data"

#: Where a command keeps what file and environment say of a server, and the file's name, in its context's ``meta``.
SETTINGS, SETTINGS_FILE = "aiorocket.broker_settings", "aiorocket.settings_file"
#: And where each setting that was given stands.
_PLACES = "aiorocket.settings_places"

#: Options that say a setting, by the names of their parameters.
_SETTING_OF = {
    **{
        name: (name,)
        for name in (
            "name", "cluster", "port", "advertise", "acl", "admin_bind", "data", "nameservers", "open_registration",
        )
    },
    "bind": ("host",),
    "credentials": ("credentials_file",),
    **{
        name: ("store", name)
        for name in (
            "flush", "file_reserved_time", "disk_max_used_space_ratio", "max_log_bytes", "min_free", "delete_when",
        )
    },
    "topic_message_rate": ("rates", "topic_messages"),
    "topic_byte_rate": ("rates", "topic_bytes"),
    "group_message_rate": ("rates", "group_messages"),
    "group_byte_rate": ("rates", "group_bytes"),
}  # fmt: skip

_WILDCARDS = {"0.0.0.0", "::", "[::]", ""}


@dataclass(frozen=True)
class Listening:
    """Where a server listens, and whom it lets in."""

    bind: str
    port: int
    advertise: str | None
    acl: str | None
    admin_bind: str | None
    admin_token: str | None
    tls: ServerTlsConfig | ssl.SSLContext | None

    @property
    def reloads(self) -> bool:
        """Is there a file that SIGHUP reads again?"""
        return self.acl is not None or self.tls is not None


def server_options(port: int, port_help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """``--bind``, ``--port``, ``--advertise``, ``--acl`` and TLS, the same for each server: they arrive as
    ``listening``. And what is said of the log."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def function(
            *, bind: str, port: int, advertise: str | None, acl: str | None, admin_bind: str | None,
            admin_token: str | None, tls_cert: str | None, tls_key: str | None, tls_client_ca: str | None,
            tls_permissive: bool, **others: Any,
        ) -> None:  # fmt: skip
            said: BrokerConfig | NameServerConfig | None = click.get_current_context().meta.get(SETTINGS)
            tls: ServerTlsConfig | ssl.SSLContext | None
            tls = _tls(tls_cert, tls_key, tls_client_ca, tls_permissive, None if said is None else said.tls)
            if said is not None:
                tls, admin_token = tls or said.tls, admin_token or said.admin_token
            with _placed():
                command(listening=Listening(bind, port, advertise, acl, admin_bind, admin_token, tls), **others)

        function = click.option(
            "--log-json", is_flag=True, expose_value=False, callback=_keep(LOG_JSON), envvar="AIOROCKET_LOG_JSON",
            show_envvar=True, help="Log lines are JSON objects: time, level, logger, message.",
        )(function)  # fmt: skip
        function = click.option(
            "--log-keep", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N", expose_value=False,
            callback=_keep(LOG_KEEP), envvar="AIOROCKET_LOG_KEEP", show_envvar=True, help="Old log files that stay.",
        )(function)  # fmt: skip
        function = click.option(
            "--log-rotate", metavar="SIZE|AGE", expose_value=False, callback=_keep_rotation,
            envvar="AIOROCKET_LOG_ROTATE", show_envvar=True, help="Begin a new --log-file at a size (100M, 500k, 1G) "
            "or an age (1D, 6H). Without, whoever moves it gets a new one (logrotate).",
        )(function)  # fmt: skip
        function = click.option(
            "--log-file", metavar="FILE", expose_value=False, callback=_keep(LOG_FILE), envvar="AIOROCKET_LOG_FILE",
            show_envvar=True, help="Log there, once it runs, and not to standard error.",
        )(function)  # fmt: skip
        function = click.option(
            "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning",
            show_default=True, expose_value=False, callback=_keep(LOG_LEVEL), envvar="AIOROCKET_LOG_LEVEL",
            show_envvar=True, help="What is less than this is not logged; the audit log always is.",
        )(function)  # fmt: skip
        function = click.option(
            "--acl", metavar="FILE", envvar="AIOROCKET_ACL", show_envvar=True,
            help="Access control: users and what they may do, in TOML (aiorocket/access/README.md).",
        )(function)  # fmt: skip
        function = click.option(
            "--admin-token-file", "admin_token", metavar="FILE", callback=token_of("AIOROCKET_ADMIN_TOKEN"),
            help="Serve administration to requests signed with the access key admin and the token in this file. "
            "Or AIOROCKET_ADMIN_TOKEN.",
        )(function)  # fmt: skip
        function = click.option(
            "--admin-bind", metavar="HOST:PORT|unix:PATH", envvar="AIOROCKET_ADMIN_BIND", show_envvar=True,
            help="Serve administration here too: for a --bind that other machines reach.",
        )(function)  # fmt: skip
        for name, help_text in (
            ("--tls-client-ca", "Authorities whose certificates clients have to show."),
            ("--tls-key", "The certificate's private key, unless it is in the same file."),
            ("--tls-cert", "Speak TLS, with this certificate (PEM). Read again on SIGHUP and when it changes."),
        ):
            function = click.option(name, metavar="FILE", help=help_text)(function)
        function = click.option("--tls-permissive", is_flag=True, help="With TLS: take plain text too.")(function)
        function = click.option(
            "--advertise", metavar="HOST",
            help="Host that others are told to connect to; a broker needs it when --bind is a wildcard.",
        )(function)  # fmt: skip
        function = click.option(
            "--port", type=click.IntRange(0, 65535), default=port, show_default=True,
            help=f"{port_help} 0 takes a free one, which is printed.",
        )(function)  # fmt: skip
        return click.option(
            "--bind",
            metavar="HOST",
            default="127.0.0.1",
            show_default=True,
            help="Address to listen on: loopback unless given.",
        )(function)

    return decorate


def _keep(where: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        ctx.meta[where] = value

    return keep


def _keep_rotation(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None and re.fullmatch(r"[1-9][0-9]{0,5}[kMGDH]", value) is None:
        raise click.BadParameter(f"{value!r}: a size such as 100M (k, M, G) or an age such as 1D (H, D)")
    ctx.meta[LOG_ROTATE] = value


def store_options(function: Callable[..., None]) -> Callable[..., None]:
    """What a broker stores, how, how fast, and under which name: the same for ``broker`` and ``standalone``. The
    settings of the store arrive as ``store``, limits of rates as ``rates``."""

    @wraps(function)
    def with_store(
        *, flush: Flush, file_reserved_time: float, delete_when: str, disk_max_used_space_ratio: int,
        max_log_bytes: int, min_free: int, topic_message_rate: float, topic_byte_rate: float,
        group_message_rate: float, group_byte_rate: float, **others: Any,
    ) -> None:  # fmt: skip
        try:
            said = click.get_current_context().meta.get(SETTINGS)
            store = replace(
                said.store if said is not None else StoreConfig(),
                flush=flush,
                file_reserved_time=file_reserved_time,
                delete_when=_hours(delete_when),
                disk_max_used_space_ratio=disk_max_used_space_ratio,
                max_log_bytes=max_log_bytes,
                min_free=min_free,
            )
            rates = RateLimits(
                topic_messages=topic_message_rate,
                topic_bytes=topic_byte_rate,
                group_messages=group_message_rate,
                group_bytes=group_byte_rate,
            )
        except ConfigError as error:
            raise click.UsageError(str(error)) from None
        function(store=store, rates=rates, **others)

    for option in (
        click.option("--cluster", default=DEFAULT_CLUSTER, show_default=True, help="Cluster name."),
        click.option("--name", default="broker-a", show_default=True, help="Broker name; one living broker per name."),
        click.option(
            "--flush",
            type=click.Choice(["sync", "async"]),
            default="sync",
            show_default=True,
            help="sync: acknowledge after fdatasync. async: earlier; a power cut may lose the last half second.",
        ),
        click.option(
            "--file-reserved-time",
            type=click.FloatRange(min=0),
            metavar="HOURS",
            default=72,
            show_default=True,
            help="How long messages are kept at least; 0 keeps them all.",
        ),
        click.option(
            "--delete-when",
            metavar="HOURS",
            default="",
            help="Hours of the day (UTC, such as 4;16) in which old messages go; without, when they are old.",
        ),
        click.option(
            "--disk-max-used-space-ratio",
            type=click.IntRange(10, 95),
            metavar="PERCENT",
            default=75,
            show_default=True,
            help="While more of the disk is used, old messages go at any hour.",
        ),
        click.option(
            "--max-log-bytes",
            type=click.IntRange(min=0),
            metavar="BYTES",
            default=0,
            help="Above it the oldest messages go although they are not old; 0 for no limit.",
        ),
        click.option(
            "--min-free",
            type=click.IntRange(min=-1),
            metavar="BYTES",
            default=-1,
            help="Free space below which messages are refused; -1 for 5 % of the disk, at most 512 MiB.",
        ),
        *(
            click.option(
                f"--{whose}-{kind}-rate",
                type=click.FloatRange(min=0),
                metavar=f"{kind.upper()}S",
                default=0,
                help=f"{kind.capitalize()}s a second that one {whose} may have; 0 for no limit. {above}",
            )
            for whose, kind, above in (
                ("topic", "message", "Senders are told to come again."),
                ("topic", "byte", "Of bodies and properties."),
                ("group", "message", "Its pulls and pops wait above it."),
                ("group", "byte", "Of the records in their answers."),
            )
        ),
        click.option(
            "--data",
            metavar="DIR",
            default=DEFAULT_DATA,
            show_default=True,
            help="Directory of the store; made if missing.",
        ),
    ):
        with_store = option(with_store)
    return with_store


def _hours(text: str) -> tuple[int, ...]:
    """RocketMQ's deleteWhen: hours with semicolons between them."""
    try:
        return tuple(int(hour) for hour in text.split(";") if hour)
    except ValueError:
        raise click.BadParameter(f"{text!r}: hours such as 4;16", param_hint="--delete-when") from None


def settings_option(section: str) -> Callable[[F], F]:
    """``--config``: what options do not say is taken from the server's variables and then from the file. The settings
    that have no option are in ``meta[SETTINGS]``."""
    server = SERVERS[section]

    def read(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        _read_settings(ctx, server, value)

    return click.option(
        "--config", metavar="FILE", is_eager=True, expose_value=False, callback=read,
        help=f"Settings in TOML, section [{section}]; options and variables come first (docs/settings.md).",
    )  # fmt: skip


def _read_settings(ctx: click.Context, server: Server, path: str | None) -> None:
    try:
        said, places = server_settings(server, path)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    ctx.meta[SETTINGS], ctx.meta[SETTINGS_FILE], ctx.meta[_PLACES] = said, path, places
    ctx.default_map = {}
    for param in ctx.command.params:
        setting = _setting_of(ctx, param.name)
        value = None if setting is None else _at(said, setting)
        if value is None or setting is None:
            continue
        if setting in places:
            try:
                param.type_cast_value(ctx, value)
            except click.BadParameter as error:
                raise click.UsageError(f"{places[setting]}: {error.message}") from None
        ctx.default_map[param.name or ""] = value


def _setting_of(ctx: click.Context, option: str | None) -> tuple[str, ...] | None:
    """The setting that ``option`` says; --port is the name server's where there is a --broker-port."""
    if any(each.name == "broker_port" for each in ctx.command.params):
        option = {"port": None, "broker_port": "port"}.get(option or "", option)
    return _SETTING_OF.get(option or "")


def _at(said: Any, path: tuple[str, ...]) -> Any:
    """The value at ``path`` as an option gives it."""
    for name in path:
        said = getattr(said, name, None)
    return (";".join(map(str, said)) or None) if isinstance(said, tuple) else said


@contextmanager
def _placed() -> Iterator[None]:
    """What is wrong is told with the place of the setting that says so, unless an option says something else."""
    ctx = click.get_current_context()
    try:
        yield
    except click.ClickException as error:
        places = dict(ctx.meta.get(_PLACES, {}))
        for param in ctx.command.params:
            if ctx.get_parameter_source(param.name or "") is not ParameterSource.DEFAULT_MAP:
                places.pop(_setting_of(ctx, param.name), None)
        said = ctx.meta.get(SETTINGS)
        values = {path[0]: getattr(said, path[0]) for path in places}
        if isinstance(error, click.UsageError):
            raise click.UsageError(placed(error.format_message(), places, values), error.ctx) from None
        raise type(error)(placed(error.message, places, values)) from error.__cause__


def check_place(path: str, name: str = "data") -> None:
    """ConfigError when this user cannot make the directory that ``name`` gives, or not write in it. Nothing is made."""
    place = os.path.abspath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise ConfigError(f"{name}={path!r}: {place} is no directory")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"{name}={path!r}: {place} cannot be written by this user")


def _tls(
    cert: str | None, key: str | None, client_ca: str | None, permissive: bool, said: object
) -> ServerTlsConfig | None:
    """What the TLS options of a server say. Another certificate than the one that a file ``said`` lets nobody else
    in."""
    if cert is None:
        if key is not None or client_ca is not None or permissive:
            raise click.UsageError("--tls-key, --tls-client-ca and --tls-permissive need --tls-cert")
        return None
    tls = ServerTlsConfig(
        cert=cert,
        key=key,
        client_ca=client_ca,
        client_cert="none" if client_ca is None else "required",
        mode="permissive" if permissive else "enforcing",
    )
    if client_ca is None and isinstance(said, ServerTlsConfig):
        tls = replace(tls, client_ca=said.client_ca, client_cert=said.client_cert)
    return tls


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def advertised(bind: str, advertise: str | None) -> str:
    """The host that goes into routes, an IPv6 one without brackets. A wildcard is no address anybody can connect to, so
    it needs ``--advertise``."""
    if advertise is not None:
        if not advertise or advertise in _WILDCARDS or (":" in advertise and not advertise.startswith("[")):
            raise click.BadParameter(
                f"{advertise!r} is not a host that clients can connect to (give it without a port)",
                param_hint="--advertise",
            )
        return advertise.strip("[]")
    if bind in _WILDCARDS:
        raise click.UsageError(
            f"--bind {bind} needs --advertise HOST: clients are told this host and cannot connect to {bind}"
        )
    return bind
