"""``aiorocket standalone``"""

from __future__ import annotations

import os.path
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import click
from click.core import ParameterSource

from aiorocket.access.admin_door import share_listener
from aiorocket.access.core.accounts import Account, Accounts
from aiorocket.access.file import read_access_file
from aiorocket.broker.broker import Broker
from aiorocket.cli.dashboard import beside, dashboard_options
from aiorocket.cli.metrics import metrics_options, watched
from aiorocket.cli.server_options import (
    SETTINGS,
    SETTINGS_FILE,
    advertised,
    host_port,
    server_options,
    server_tls,
    settings_option,
    store_options,
)
from aiorocket.cli.serving import LOG_FILE, LOG_JSON, LOG_KEEP, LOG_LEVEL, LOG_ROTATE, Ready, serve
from aiorocket.cli.supervisor import supervised
from aiorocket.config import BrokerConfig, NameServerConfig, RateLimits, ServerTlsConfig, StoreConfig, TlsConfig
from aiorocket.errors import ConfigError
from aiorocket.nameserver.server import NameServer
from aiorocket.runtime.disk import Disk
from aiorocket.runtime.env import real_env
from aiorocket_protocol import BROKER_PORT, NAMESERVER_PORT

__all__ = ("standalone",)


@click.command()
@server_options(NAMESERVER_PORT, "Port of the name server.")
@click.option(
    "--broker-port",
    type=click.IntRange(0, 65535),
    default=BROKER_PORT,
    show_default=True,
    help="Port of the broker; 0 takes a free one. Of several, each has the next in steps of 10.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Brokers, named broker-1 to broker-N, each a process with a core and a folder of its own.",
)
@store_options
@metrics_options
@settings_option
@dashboard_options
@click.pass_context
def standalone(
    ctx: click.Context,
    bind: str,
    port: int,
    advertise: str | None,
    acl: str | None,
    admin_bind: str | None,
    admin_token: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    tls_permissive: bool,
    broker_port: int,
    brokers: int,
    data: str,
    store: StoreConfig,
    rates: RateLimits,
    name: str,
    cluster: str,
    metrics_port: int | None,
    metrics_host: str,
    dashboard_port: int | None,
    dashboard_bind: str,
    dashboard_token: str | None,
    dashboard_allow_writes: bool,
) -> None:
    """Run a name server and a durable broker in one process.

    The shortest way to a real RocketMQ address for one machine. It stops on Ctrl-C or SIGTERM. With --brokers the
    brokers are processes of their own, and started again when they die.
    """
    several = _broker_names(name, brokers)
    _check_folders(data, name, brokers)
    if several and (acl or tls_cert):
        raise click.UsageError("--brokers with --acl or --tls-cert: start a nameserver and each broker by itself")
    if several and (admin_bind or ctx.get_parameter_source("admin_token") is ParameterSource.COMMANDLINE):
        raise click.UsageError("--brokers with --admin-bind or --admin-token-file: give AIOROCKET_ADMIN_TOKEN to all")
    if several and dashboard_port is not None:
        raise click.UsageError("--brokers with --dashboard: start `aiorocket dashboard` beside it")
    host = advertised(bind, advertise)
    said: BrokerConfig = ctx.meta[SETTINGS]
    tls = server_tls(tls_cert, tls_key, tls_client_ca, tls_permissive, said.tls) or said.tls
    if several and tls is not None:
        raise click.UsageError("--brokers with TLS: start a nameserver and each broker by itself")
    # To itself, which need not prove who it is.
    itself = (
        TlsConfig(verify=False, cert=tls.cert, key=tls.key, key_password=tls.key_password)
        if isinstance(tls, ServerTlsConfig)
        else False
    )
    admin_token = admin_token or said.admin_token

    @asynccontextmanager
    async def server() -> AsyncIterator[Ready]:
        env = real_env()
        accounts, key = _administration(env.disk, acl) if acl is not None else (None, None)
        names = NameServer(
            env,
            NameServerConfig(
                host=bind, port=port, data=os.path.join(data, "nameserver"), tls=tls, admin_token=admin_token
            ),
            accounts,
        )
        try:
            await names.start()
            # A broker reaches its name server the way it is bound; a wildcard listens on loopback too.
            near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)
            if several:
                given = _given(ctx)

                def own_log(name: str) -> list[str]:
                    root, ending = os.path.splitext(ctx.meta[LOG_FILE] or "")
                    return ["--log-file", f"{root}-{name}{ending}"] if root else []

                def own_port(at: int) -> list[str]:
                    return [] if metrics_port is None else ["--metrics-port", str(metrics_port and metrics_port + at)]

                async with supervised(
                    {
                        each: [
                            *given, "--name", each, "--port", str(broker_port and broker_port + 10 * at),
                            "--data", os.path.join(data, each), "--nameserver", host_port(near, names.port),
                            *own_port(at), *own_log(each),
                        ]
                        for at, each in enumerate(several)
                    }
                ) as running:  # fmt: skip
                    told = ", ".join(f"{each} {address}" for each, address in running)
                    yield Ready(
                        f"standalone ready: name server {host_port(host, names.port)}, brokers {told} (data {data}, "
                        f"flush {store.flush})",
                        None,
                    )
                return
            settings = replace(
                said,
                name=name,
                cluster=cluster,
                host=bind,
                port=broker_port,
                advertise=host,
                nameservers=(host_port(near, names.port),),
                access_key=key.name if key is not None else None,
                secret_key=key.secret if key is not None else None,
                credentials_file=None,
                acl=acl,
                admin_bind=admin_bind,
                admin_token=admin_token,
                tls=tls,
                nameserver_tls=itself,
                data=data,
                store=store,
                rates=rates,
            )
            broker = Broker(env, settings, accounts=accounts)

            def reload() -> None:
                broker.reload()
                names.reload()

            async with watched(broker, metrics_host, metrics_port) as pages:
                try:
                    await broker.start()
                    share_listener(broker.server.processors, names.processors)
                    async with beside(
                        settings.nameservers[0], settings, key, dashboard_bind, dashboard_port, dashboard_token,
                        dashboard_allow_writes,
                    ) as page:  # fmt: skip
                        yield Ready(
                            f"standalone ready: name server {host_port(host, names.port)}, broker {name} "
                            f"{broker.address} (data {data}, flush {store.flush}){pages}{page}",
                            reload if acl or tls is not None else None,
                        )
                finally:
                    await broker.close()
        finally:
            await names.close()
            await env.disk.close()

    serve(server)


def _broker_names(name: str, count: int) -> list[str]:
    """Of several brokers; none for a single one, which has the name itself and shares this process."""
    return [f"{name.removesuffix('-a')}-{number}" for number in range(1, count + 1)] if count > 1 else []


def _check_folders(data: str, name: str, count: int) -> None:
    """UsageError when the messages of an earlier start would be left out: another number of brokers wrote them."""
    alone = os.path.isdir(os.path.join(data, "commitlog"))
    before = 1 if alone else sum(os.path.isdir(os.path.join(data, each)) for each in _broker_names(name, 64))
    if before > count or (count > 1 and alone) or (count == 1 and before and not alone):
        more = "" if alone else " or more"
        raise click.UsageError(
            f"{data} holds the messages of {before} broker{'s' * (before > 1)}, of which --brokers {count} would leave "
            f"some out: start with --brokers {before}{more}"
        )


_LOGGING = ("log_level", "log_json", "log_file", "log_rotate", "log_keep")
_DASHBOARD = ("dashboard_port", "dashboard_bind", "dashboard_token", "dashboard_allow_writes")


def _given(ctx: click.Context) -> list[str]:
    """The options of this start that are a broker's too, but for those that are different for each."""
    default = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    own = ("port", "broker_port", "brokers", "name", "data", "metrics_port", "config", *_LOGGING, *_DASHBOARD)
    log = ["--log-level", ctx.meta[LOG_LEVEL], *["--log-json"] * ctx.meta[LOG_JSON]]
    if ctx.meta[LOG_ROTATE] is not None:
        log += ["--log-rotate", ctx.meta[LOG_ROTATE], "--log-keep", str(ctx.meta[LOG_KEEP])]
    file = ctx.meta[SETTINGS_FILE]
    return (
        log
        + ([] if file is None else ["--config", file])
        + [
            text
            for option in ctx.command.params
            if option.name is not None
            and option.name not in own
            and ctx.get_parameter_source(option.name) not in default
            for text in (option.opts[-1], str(ctx.params[option.name]))
        ]
    )


def _administration(disk: Disk, acl: str) -> tuple[Accounts, Account]:
    """The users of both servers, and the administrator in whose name the one registers at the other."""
    file = read_access_file(disk, acl)
    for account in file.accounts.values():
        if account.admin and account.enabled:
            return Accounts(file), account
    raise ConfigError(
        f"access file {acl!r}: one user with admin = true is needed here, the broker registers in its name"
    )
