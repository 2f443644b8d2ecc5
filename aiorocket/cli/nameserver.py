"""``aiorocket nameserver``"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from aiorocket.cli.server_options import advertised, host_port, server_options, server_tls
from aiorocket.cli.serving import Ready, serve
from aiorocket.config import NameServerConfig
from aiorocket.nameserver.server import NameServer
from aiorocket.runtime.env import real_env
from aiorocket_protocol import NAMESERVER_PORT

__all__ = ("nameserver",)


@click.command()
@server_options(NAMESERVER_PORT, "Port to listen on.")
@click.option(
    "--data", metavar="DIR", help="Directory for KV configuration; without it, it lives as long as the process."
)
@click.option("--open-registration", is_flag=True, help="Let brokers of other machines register, whoever they are.")
def nameserver(
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
    data: str | None,
    open_registration: bool,
) -> None:
    """Run a name server.

    Brokers register here and clients ask it which broker has a topic. It stops on Ctrl-C or SIGTERM. Routes are not
    stored: brokers register again within 30 seconds of a restart.
    """
    shown = bind if advertise is None else advertised(bind, advertise)  # nobody is told a name server's own address
    config = NameServerConfig(
        host=bind,
        port=port,
        data=data,
        acl=acl,
        admin_bind=admin_bind,
        admin_token=admin_token,
        tls=server_tls(tls_cert, tls_key, tls_client_ca, tls_permissive),
        open_registration=open_registration,
    )

    @asynccontextmanager
    async def server() -> AsyncIterator[Ready]:
        env = real_env()
        instance = NameServer(env, config)
        try:
            await instance.start()
            kept = f"data {data}" if data is not None else "in memory"
            reload = instance.reload if acl or tls_cert else None
            yield Ready(
                f"name server ready on {host_port(shown, instance.port)} ({kept})",
                reload,
            )
        finally:
            await instance.close()
            await env.disk.close()

    serve(server)
