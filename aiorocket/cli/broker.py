"""``aiorocket broker``"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import click

from aiorocket.broker.addresses import advertised as advertised_address
from aiorocket.broker.broker import Broker
from aiorocket.cli import supervisor
from aiorocket.cli.metrics import metrics_options, watched
from aiorocket.cli.options import nameserver_option
from aiorocket.cli.running import run
from aiorocket.cli.server_options import (
    SETTINGS,
    Listening,
    advertised,
    check_place,
    server_options,
    settings_option,
    store_options,
)
from aiorocket.cli.serving import Ready, serve
from aiorocket.cli.several import MOST, arguments, broker_names, check_alone, check_folders, told
from aiorocket.config import BrokerConfig, RateLimits, ServerTlsConfig, StoreConfig, TlsConfig
from aiorocket.runtime.env import real_env
from aiorocket_protocol import BROKER_PORT

__all__ = ("broker",)


@click.command()
@server_options(BROKER_PORT, "Port to listen on.")
@nameserver_option
@click.option(
    "--credentials",
    metavar="FILE",
    envvar="AIOROCKET_CREDENTIALS_FILE",
    show_envvar=True,
    help="JSON with accessKey and secretKey, to register at name servers with access control.",
)
@click.option(
    "--nameserver-ca",
    metavar="FILE",
    help="Speak TLS to name servers, whose certificates these authorities signed; --tls-cert is shown to them.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MOST),
    default=1,
    show_default=True,
    metavar="N",
    help="Brokers, named broker-1 to broker-N, each a process with a core and a folder of its own, started again when "
    "it dies; their ports are 10 apart.",
)
@click.option("--check", is_flag=True, help="Say what is wrong with options, settings and files, and do not start.")
@click.option("--stop-at-end-of-input", is_flag=True, hidden=True, help="Stop when whoever started this is gone.")
@store_options
@metrics_options
@settings_option("broker")
@click.pass_context
def broker(
    ctx: click.Context,
    listening: Listening,
    nameserver_ca: str | None,
    credentials: str | None,
    nameservers: tuple[str, ...],
    workers: int,
    check: bool,
    stop_at_end_of_input: bool,
    data: str,
    store: StoreConfig,
    rates: RateLimits,
    name: str,
    cluster: str,
    metrics: tuple[str, int] | None,
) -> None:
    """Run a durable broker and register it at the name servers.

    It stops on Ctrl-C or SIGTERM; what it acknowledged is still there at the next start with the same --data.
    """
    several = broker_names(name, workers)
    check_folders(data, name, workers, "--workers")
    if several:
        check_alone(ctx, listening, "--workers")
    said: BrokerConfig = ctx.meta[SETTINGS]
    if credentials:  # an option comes before variables and file, which may have keys
        said = replace(said, access_key=None, secret_key=None, security_token=None)
    config = replace(
        said,
        name=name,
        cluster=cluster,
        host=listening.bind,
        port=listening.port,
        advertise=advertised(listening.bind, listening.advertise),
        nameservers=nameservers,
        acl=listening.acl,
        admin_bind=listening.admin_bind,
        admin_token=listening.admin_token,
        tls=listening.tls,
        nameserver_tls=said.nameserver_tls if nameserver_ca is None else _to_nameservers(nameserver_ca, listening),
        credentials_file=credentials,
        data=data,
        store=store,
        rates=rates,
    )

    if check:
        run(_check(config))
        return

    kept = f"(data {data}, flush {store.flush})"

    @asynccontextmanager
    async def server() -> AsyncIterator[Ready]:
        if several:
            theirs = arguments(ctx, several, ";".join(nameservers), listening.port)
            async with supervisor.supervised(theirs) as running:
                yield Ready(f"broker ready: {told(running)} {kept}", None)
            return
        env = real_env()
        instance = Broker(env, config)
        if stop_at_end_of_input:
            await supervisor.stop_at_end_of_input()
        try:
            async with watched(instance, metrics) as pages:
                try:
                    await instance.start()
                    yield Ready(
                        f"broker {name} ready on {instance.address} {kept}{pages}",
                        instance.reload if listening.reloads else None,
                    )
                finally:
                    await instance.close()
        finally:
            await env.disk.close()

    serve(server)


def _to_nameservers(ca: str, listening: Listening) -> TlsConfig:
    """What this broker shows at its own door it shows to name servers too."""
    own = listening.tls
    if not isinstance(own, ServerTlsConfig):
        return TlsConfig(ca=ca)
    return TlsConfig(ca=ca, cert=own.cert, key=own.key, key_password=own.key_password)


async def _check(config: BrokerConfig) -> None:
    """Raise what a start would of these settings, of the files they name, of its host, and of a place for the data;
    nothing is written, and a broker that runs with them is no reason."""
    env = real_env()
    try:
        Broker(env, config)
        await advertised_address(config, config.port)
        check_place(config.data or "")
    finally:
        await env.disk.close()
