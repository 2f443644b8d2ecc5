"""``aiorocket nameserver``"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import click

from aiorocket.cli.running import run
from aiorocket.cli.server_options import (
    SETTINGS,
    Listening,
    advertised,
    check_place,
    host_port,
    server_options,
    settings_option,
)
from aiorocket.cli.serving import Ready, serve
from aiorocket.config import NameServerConfig
from aiorocket.errors import ConfigError
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
@click.option("--check", is_flag=True, help="Say what is wrong with options, settings and files, and do not start.")
@settings_option("nameserver")
@click.pass_context
def nameserver(
    ctx: click.Context, listening: Listening, data: str | None, open_registration: bool, check: bool
) -> None:
    """Run a name server.

    Brokers register here and clients ask it which broker has a topic. It stops on Ctrl-C or SIGTERM. Routes are not
    stored: brokers register again within 30 seconds of a restart.
    """
    bind, advertise = listening.bind, listening.advertise
    shown = bind if advertise is None else advertised(bind, advertise)  # nobody is told a name server's own address
    said: NameServerConfig = ctx.meta[SETTINGS]
    config = replace(
        said,
        host=bind,
        port=listening.port,
        data=data,
        acl=listening.acl,
        admin_bind=listening.admin_bind,
        admin_token=listening.admin_token,
        tls=listening.tls,
        open_registration=open_registration,
    )

    if check:
        run(_check(config))
        return

    @asynccontextmanager
    async def server() -> AsyncIterator[Ready]:
        env = real_env()
        instance = NameServer(env, config)
        try:
            await instance.start()
            kept = f"data {data}" if data is not None else "in memory"
            yield Ready(
                f"name server ready on {host_port(shown, instance.port)} ({kept})",
                instance.reload if listening.reloads else None,
            )
        finally:
            await instance.close()
            await env.disk.close()

    serve(server)


async def _check(config: NameServerConfig) -> None:
    """Raise what a start would of these settings, of the files they name, of its host, and of a place for the data;
    nothing is written, and a name server that runs with them is no reason."""
    env = real_env()
    try:
        NameServer(env, config)
        await asyncio.get_running_loop().getaddrinfo(config.host, config.port)
        if config.data is not None:
            check_place(config.data)
    except OSError as error:
        raise ConfigError(f"host={config.host!r} cannot be resolved: {error}") from None
    finally:
        await env.disk.close()
