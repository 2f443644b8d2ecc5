"""``aiorocket standalone``"""

from __future__ import annotations

import os.path
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import click

from aiorocket.access.admin_door import share_listener
from aiorocket.access.core.accounts import Account, Accounts
from aiorocket.access.file import read_access_file
from aiorocket.broker.broker import Broker
from aiorocket.cli.dashboard import PageOptions, beside, dashboard_options
from aiorocket.cli.metrics import metrics_options, watched
from aiorocket.cli.server_options import (
    SETTINGS,
    Listening,
    advertised,
    host_port,
    server_options,
    settings_option,
    store_options,
)
from aiorocket.cli.serving import Ready, serve
from aiorocket.cli.several import MOST, arguments, broker_names, check_alone, check_folders, told
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
    type=click.IntRange(1, MOST),
    default=1,
    show_default=True,
    metavar="N",
    help="Brokers, named broker-1 to broker-N, each a process with a core and a folder of its own.",
)
@store_options
@metrics_options
@settings_option("broker")
@dashboard_options
@click.pass_context
def standalone(
    ctx: click.Context,
    listening: Listening,
    broker_port: int,
    brokers: int,
    data: str,
    store: StoreConfig,
    rates: RateLimits,
    name: str,
    cluster: str,
    metrics: tuple[str, int] | None,
    page: PageOptions | None,
) -> None:
    """Run a name server and a durable broker in one process.

    The shortest way to a real RocketMQ address for one machine. It stops on Ctrl-C or SIGTERM. With --brokers the
    brokers are processes of their own, and started again when they die.
    """
    several = broker_names(name, brokers)
    check_folders(data, name, brokers, "--brokers")
    if several:
        check_alone(ctx, listening, "--brokers")
        if page is not None:
            raise click.UsageError("--brokers with --dashboard: start `aiorocket dashboard` beside it")
    host = advertised(listening.bind, listening.advertise)
    settings = replace(
        ctx.meta[SETTINGS],
        name=name,
        cluster=cluster,
        host=listening.bind,
        port=broker_port,
        advertise=host,
        credentials_file=None,
        acl=listening.acl,
        admin_bind=listening.admin_bind,
        admin_token=listening.admin_token,
        tls=listening.tls,
        nameserver_tls=_to_itself(listening.tls),
        data=data,
        store=store,
        rates=rates,
    )

    @asynccontextmanager
    async def server() -> AsyncIterator[Ready]:
        env = real_env()
        accounts, key = _administration(env.disk, listening.acl) if listening.acl is not None else (None, None)
        names = NameServer(
            env,
            NameServerConfig(
                host=listening.bind,
                port=listening.port,
                data=os.path.join(data, "nameserver"),
                tls=listening.tls,
                admin_token=listening.admin_token,
            ),
            accounts,
        )
        try:
            await names.start()
            # A broker reaches its name server the way it is bound; a wildcard listens on loopback too.
            near = host_port({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listening.bind, listening.bind), names.port)
            if several:
                async with supervised(arguments(ctx, several, near, broker_port)) as running:
                    yield Ready(_line(host_port(host, names.port), told(running), settings), None)
                return
            own = replace(
                settings,
                nameservers=(near,),
                access_key=None if key is None else key.name,
                secret_key=None if key is None else key.secret,
                security_token=None,
            )
            broker = Broker(env, own, accounts=accounts)
            async with watched(broker, metrics) as pages:
                try:
                    await broker.start()
                    share_listener(broker.server.processors, names.processors)
                    async with beside(own, key, page) as shown:
                        line = _line(host_port(host, names.port), f"broker {name} {broker.address}", settings)
                        yield Ready(f"{line}{pages}{shown}", _reload(broker, names) if listening.reloads else None)
                finally:
                    await broker.close()
        finally:
            await names.close()
            await env.disk.close()

    serve(server)


def _line(nameserver: str, brokers: str, settings: BrokerConfig) -> str:
    kept = f"(data {settings.data}, flush {settings.store.flush})"
    return f"standalone ready: name server {nameserver}, {brokers} {kept}"


def _reload(broker: Broker, names: NameServer) -> Callable[[], None]:
    def reload() -> None:
        broker.reload()
        names.reload()

    return reload


def _to_itself(tls: ServerTlsConfig | ssl.SSLContext | None) -> TlsConfig | bool:
    """How the broker speaks to the name server beside it, which need not prove who it is."""
    if isinstance(tls, ServerTlsConfig):
        return TlsConfig(verify=False, cert=tls.cert, key=tls.key, key_password=tls.key_password)
    return False


def _administration(disk: Disk, acl: str) -> tuple[Accounts, Account]:
    """The users of both servers, and the administrator in whose name the one registers at the other."""
    file = read_access_file(disk, acl)
    for account in file.accounts.values():
        if account.admin and account.enabled:
            return Accounts(file), account
    raise ConfigError(
        f"access file {acl!r}: one user with admin = true is needed here, the broker registers in its name"
    )
