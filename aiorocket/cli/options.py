"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

import aiorocket

if TYPE_CHECKING:
    from aiorocket.config import ClientConfig

__all__ = (
    "HERE",
    "BadInputError",
    "broker_option",
    "client_options",
    "nameserver_option",
    "parse_nameservers",
    "read_pairs",
    "token_of",
    "written_file",
)

F = TypeVar("F", bound=Callable[..., Any])

#: A name server on this machine.
HERE = "127.0.0.1:9876"


class BadInputError(click.ClickException):
    """Input that cannot be used (a missing file, a line over the limit). The command exits with 2, as for bad usage."""

    exit_code = 2


def parse_nameservers(text: str) -> tuple[str, ...]:
    """``HOST:PORT[,HOST:PORT]``, ``;`` too, as RocketMQ's own tools write it. ValueError says which part is wrong."""
    addresses = [part.strip() for part in re.split("[,;]", text) if part.strip()]
    if not addresses:
        raise ValueError("no address given; expected HOST:PORT[,HOST:PORT]")
    for address in addresses:
        if address.startswith("unix:"):  # an administration listener that knows both, as of `standalone`
            continue
        host, colon, port = address.rpartition(":")
        if not colon or not host or "/" in host:
            raise ValueError(f"{address!r} is not HOST:PORT")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ValueError(f"{address!r}: write an IPv6 host in brackets and its port behind them, as in [::1]:9876")
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"{address!r}: port {port!r} is not a number from 1 to 65535")
    return tuple(dict.fromkeys(addresses))


def read_pairs(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Of an argument or option whose values are ``NAME=VALUE``."""
    pairs = [value.partition("=") for value in values]
    for name, equal, _ in pairs:
        if not name or not equal:
            raise click.BadParameter(f"{name!r}: NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _read_nameservers(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[str, ...]:
    try:
        return parse_nameservers(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def token_of(variable: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Reads the file with a token that an option names, else the environment's ``variable``."""

    def read(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
        if value is None:
            return os.environ.get(variable, "").strip() or None
        try:
            with open(value, encoding="utf-8") as file:
                return file.read().strip()
        except OSError as error:
            raise click.BadParameter(f"{value}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise click.BadParameter(f"{value}: not text; base64 or hexadecimal digits are") from None

    return read


def nameserver_option(function: F) -> F:
    """``--nameserver``, else the environment, else a name server on this machine."""
    return click.option(
        "--nameserver",
        "nameservers",
        metavar="HOST:PORT[,HOST:PORT]",
        callback=_read_nameservers,
        envvar="AIOROCKET_NAMESERVER",
        default=HERE,
        show_default=True,
        show_envvar=True,
        help="Name servers to ask, separated by ',' or ';'.",
    )(function)


#: ``brokers`` of an ``Admin``.
broker_option = click.option(
    "--broker", "brokers", multiple=True, metavar="HOST:PORT|unix:PATH", envvar="AIOROCKET_BROKER", show_envvar=True,
    help="Ask there, not the brokers that name servers know: an administration listener.",
)  # fmt: skip


def client_options(function: F) -> F:
    """How a client finds servers, who it says it is, and TLS, each also by the environment: ``config`` of ``function``.
    ``--config`` names a file for all that neither says.

    Keys are taken from a file or the environment only: what stands on a command line can be read by everybody."""

    @wraps(function)
    def command(*args: Any, **given: Any) -> Any:
        own = {name: given.pop(name) for name in _OWN}
        config = _client_config(**own)
        try:
            return function(*args, config=config, **given)
        except click.ClickException as error:
            if isinstance(error.__cause__, aiorocket.ConfigError):  # a file of the options that cannot be used
                raise BadInputError(error.message) from error.__cause__
            raise

    decorated: Any = command
    for option in (
        click.option(
            "--tls-verify/--tls-insecure", default=True, envvar="AIOROCKET_TLS_VERIFY", show_envvar=True,
            help="With --tls-insecure TLS to servers whose certificates nobody checks.",
        ),
        *(
            click.option(
                f"--tls-{name}", metavar="FILE", envvar=f"AIOROCKET_TLS_{name.upper()}", show_envvar=True, help=text
            )
            for name, text in (
                ("key", "Its private key, unless it is in the same file."),
                ("cert", "TLS with this certificate of the client (PEM)."),
                ("ca", "TLS to servers whose certificates these authorities signed (PEM)."),
            )
        ),
        click.option(
            "--tls", is_flag=True, envvar="AIOROCKET_TLS", show_envvar=True, help="TLS; trusts what the system trusts.",
        ),
        click.option(
            "--namespace", default="", envvar="AIOROCKET_NAMESPACE", show_envvar=True, help="Of topics and groups.",
        ),
        click.option(
            "--credentials", metavar="FILE", envvar="AIOROCKET_CREDENTIALS_FILE", show_envvar=True,
            help="JSON with accessKey and secretKey, for servers with access control. Or AIOROCKET_ACCESS_KEY and "
            "AIOROCKET_SECRET_KEY of the environment.",
        ),
        click.option(
            "--address-map", metavar="FROM=TO[,FROM=TO]", default="", envvar="AIOROCKET_ADDRESS_MAP", show_envvar=True,
            help="Where a broker that registered FROM is reached from here: HOST:PORT, or HOST for all its ports.",
        ),
        nameserver_option,
        click.option(
            "--config", "settings_file", metavar="FILE", envvar="AIOROCKET_CONFIG", show_envvar=True,
            help="TOML with the section [aiorocket]; what options and environment say comes before it.",
        ),
    ):  # fmt: skip
        decorated = option(decorated)
    return cast(F, decorated)


_OWN = (
    "settings_file", "nameservers", "address_map", "namespace", "credentials",
    "tls", "tls_ca", "tls_cert", "tls_key", "tls_verify",
)  # fmt: skip


def _client_config(
    settings_file: str | None,
    nameservers: tuple[str, ...],
    address_map: str,
    namespace: str,
    credentials: str | None,
    tls: bool,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_verify: bool,
) -> ClientConfig:
    said: dict[str, Any] = {}
    if credentials is not None:
        said |= {"access_key": None, "secret_key": None, "security_token": None, "credentials_file": credentials}
    else:
        keys = os.environ.get("AIOROCKET_ACCESS_KEY") or None, os.environ.get("AIOROCKET_SECRET_KEY") or None
        if keys == (None, None) and (token := os.environ.get("AIOROCKET_ADMIN_TOKEN", "").strip()):
            keys = "admin", token
        if keys != (None, None):
            said |= {"access_key": keys[0], "secret_key": keys[1], "security_token": None, "credentials_file": None}
    try:
        if tls_ca is not None or tls_cert is not None or tls_key is not None or not tls_verify:
            said["tls"] = aiorocket.TlsConfig(ca=tls_ca, cert=tls_cert, key=tls_key, verify=tls_verify)
        elif tls:
            said["tls"] = True
        if namespace:
            said["namespace"] = namespace
        if address_map:
            from aiorocket.config.addresses import read_address_map

            said["address_map"] = read_address_map(address_map)
        default = click.get_current_context().get_parameter_source("nameservers") is ParameterSource.DEFAULT
        if settings_file is None or not default:
            said["nameservers"] = nameservers
        base = aiorocket.ClientConfig()
        if settings_file is not None:
            base = aiorocket.ClientConfig.from_toml(settings_file)
        from dataclasses import replace

        return replace(base, **said)
    except aiorocket.ConfigError as error:
        raise click.UsageError(str(error)) from None


def written_file(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """For a file that is written at the end: one that could not be is refused before the run."""
    if value is not None:
        folder = os.path.dirname(os.path.abspath(value))
        if not os.path.isdir(folder):
            raise click.BadParameter(f"there is no folder {folder}")
        if not os.path.exists(value) and not os.access(folder, os.W_OK):
            raise click.BadParameter(f"the folder {folder} cannot be written")
    return value
