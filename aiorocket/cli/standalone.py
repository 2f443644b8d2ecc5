"""``aiorocket standalone``"""

from __future__ import annotations

import os.path
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from aiorocket.access.core.accounts import Account, Accounts
from aiorocket.access.file import read_access_file
from aiorocket.broker.broker import Broker
from aiorocket.cli.options import advertised, host_port, server_options, server_tls, store_options
from aiorocket.cli.running import Ready, serve
from aiorocket.config import BrokerConfig, NameServerConfig, StoreConfig, TlsConfig
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
    help="Port of the broker; 0 takes a free one.",
)
@store_options
def standalone(
    bind: str,
    port: int,
    advertise: str | None,
    acl: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    tls_permissive: bool,
    broker_port: int,
    data: str,
    store: StoreConfig,
    name: str,
    cluster: str,
) -> None:
    """Run a name server and a durable broker in one process.

    The shortest way to a real RocketMQ address for one machine. It stops on Ctrl-C or SIGTERM.
    """
    host = advertised(bind, advertise)
    tls = server_tls(tls_cert, tls_key, tls_client_ca, tls_permissive)
    # To itself, which need not prove who it is.
    itself = TlsConfig(verify=False, cert=tls_cert, key=tls_key) if tls is not None else False

    @asynccontextmanager
    async def server() -> AsyncIterator[Ready]:
        env = real_env()
        accounts, key = _administration(env.disk, acl) if acl is not None else (None, None)
        names = NameServer(
            env, NameServerConfig(host=bind, port=port, data=os.path.join(data, "nameserver"), tls=tls), accounts
        )
        instance: Broker | None = None
        try:
            await names.start()
            # The broker reaches its name server the way it is bound; a wildcard listens on loopback too.
            near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)
            instance = Broker(
                env,
                BrokerConfig(
                    name=name,
                    cluster=cluster,
                    host=bind,
                    port=broker_port,
                    advertise=host,
                    nameservers=(host_port(near, names.port),),
                    access_key=key.name if key is not None else None,
                    secret_key=key.secret if key is not None else None,
                    acl=acl,
                    tls=tls,
                    nameserver_tls=itself,
                    data=data,
                    store=store,
                ),
                accounts=accounts,
            )
            await instance.start()
            broker = instance

            def reload() -> None:
                broker.reload()
                names.reload()

            yield Ready(
                f"standalone ready: name server {host_port(host, names.port)}, broker {name} {instance.address} "
                f"(data {data}, flush {store.flush})",
                reload if acl or tls_cert else None,
            )
        finally:
            if instance is not None:
                await instance.close()
            await names.close()
            await env.disk.close()

    serve(server)


def _administration(disk: Disk, acl: str) -> tuple[Accounts, Account]:
    """The users of both servers, and the administrator in whose name the one registers at the other."""
    file = read_access_file(disk, acl)
    for account in file.accounts.values():
        if account.admin and account.enabled:
            return Accounts(file), account
    raise ConfigError(
        f"access file {acl!r}: one user with admin = true is needed here, the broker registers in its name"
    )
