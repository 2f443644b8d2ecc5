"""``aiorocket dashboard``, and the same page inside ``aiorocket standalone --dashboard``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

import aiorocket
from aiorocket.cli.options import client_options, token_of

if TYPE_CHECKING:
    from aiorocket import Admin
    from aiorocket.access.core.accounts import Account
    from aiorocket.cli.serving import Ready
    from aiorocket.config import BrokerConfig, ClientConfig

__all__ = ("PageOptions", "beside", "dashboard", "dashboard_options", "shown")

F = TypeVar("F", bound=Callable[..., Any])

_TOKEN = "AIOROCKET_DASHBOARD_TOKEN"


class PageOptions(NamedTuple):
    """Where a page is shown, to whom, and whether it may change things; ``port`` 0 takes a free one."""

    host: str
    port: int
    token: str | None
    allow_writes: bool


def _options(function: F, prefix: str) -> F:
    for option in (
        click.option(
            f"--{prefix}allow-writes", is_flag=True, help="Let it change things: replay dead letters, reset offsets."
        ),
        click.option(
            f"--{prefix}token-file", f"{prefix.replace('-', '_')}token", metavar="FILE", callback=token_of(_TOKEN),
            help=f"Viewers have to know the token in this file; off loopback there must be one. Or {_TOKEN}.",
        ),
        click.option(
            f"--{prefix}bind", metavar="HOST", default="127.0.0.1", show_default=True,
            help="Address of the page: loopback unless given.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


@asynccontextmanager
async def beside(settings: BrokerConfig, key: Account | None, page: PageOptions | None) -> AsyncIterator[str]:
    """The page in the process of the broker with these ``settings``, which it asks as its administrator ``key`` may;
    what the line of a ready server says of it."""
    if page is None:
        yield ""
        return
    signed = (key.name, key.secret) if key is not None else (None, None)
    if key is None and settings.admin_token is not None:
        signed = ("admin", settings.admin_token)
    closed = settings.admin_bind is not None and settings.admin_bind.startswith("unix:")
    if page.token is None and (signed != (None, None) or closed):
        raise aiorocket.ConfigError(
            "--dashboard asks as the broker's administrator, and everybody on this machine could look: "
            "give --dashboard-token-file"
        )
    config = aiorocket.ClientConfig(
        nameservers=settings.nameservers, access_key=signed[0], secret_key=signed[1], tls=settings.nameserver_tls
    )
    brokers = (settings.admin_bind,) if settings.admin_bind is not None and settings.admin_token is None else ()
    async with (
        aiorocket.Admin(config=config, brokers=brokers) as admin,
        shown(admin, page) as said,
    ):
        yield f", dashboard {said}"


def dashboard_options(command: Callable[..., None]) -> Callable[..., None]:
    """``--dashboard`` and what goes with it, which arrive as ``page``: None without a port."""

    @wraps(command)
    def function(
        *, dashboard_port: int | None, dashboard_bind: str, dashboard_token: str | None, dashboard_allow_writes: bool,
        **others: Any,
    ) -> None:  # fmt: skip
        page = None
        if dashboard_port is not None:
            page = PageOptions(dashboard_bind, dashboard_port, dashboard_token, dashboard_allow_writes)
        command(page=page, **others)

    help_text = (
        "Show the web page of the cluster here; needs the extra dashboard. 0 takes a free port, which is printed."
    )
    return click.option("--dashboard", "dashboard_port", type=click.IntRange(0, 65535), metavar="PORT", help=help_text)(
        _options(function, "dashboard-")
    )


@click.command()
@click.option(
    "--broker", "brokers", multiple=True, metavar="HOST:PORT|unix:PATH", envvar="AIOROCKET_BROKER",
    show_envvar=True, help="Ask there, not the brokers that name servers know: an administration listener.",
)  # fmt: skip
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8088,
    show_default=True,
    help="0 takes a free one, which is printed.",
)
@lambda function: _options(function, "")
@client_options
def dashboard(
    config: ClientConfig, brokers: Sequence[str], bind: str, port: int, token: str | None, allow_writes: bool
) -> None:
    """Show a cluster in the browser: what is wrong now, topics, groups, messages, dead letters.

    Ours and Apache's. It looks only, unless it is started with --allow-writes. It stops on Ctrl-C or SIGTERM.
    """
    from aiorocket.cli.serving import Ready, serve

    signed = config.access_key is not None or config.credentials_file is not None
    if token is None and (signed or any(each.startswith("unix:") for each in (*brokers, *config.nameservers))):
        raise click.UsageError(
            "the page asks in your name, and everybody on this machine could look: give --token-file, or no keys"
        )

    @asynccontextmanager
    async def server() -> AsyncIterator[Ready]:
        async with (
            aiorocket.Admin(config=config, brokers=brokers) as admin,
            shown(admin, PageOptions(bind, port, token, allow_writes)) as said,
        ):
            yield Ready(f"dashboard ready: {said}", None)

    serve(server)


@asynccontextmanager
async def shown(admin: Admin, page: PageOptions) -> AsyncIterator[str]:
    """Show the page while the block runs; where it is. ConfigError without the extra or for settings that cannot be,
    UsageError when the port cannot be bound."""
    try:
        from aiorocket.dashboard.server import serving  # an extra
        from aiorocket.dashboard.settings import DashboardConfig
    except ModuleNotFoundError as error:
        raise aiorocket.ConfigError(
            f"the dashboard needs the extra dashboard ({error.name} is missing): pip install 'aiorocketmq[dashboard]'"
        ) from None
    settings = DashboardConfig(host=page.host, port=page.port, token=page.token, allow_writes=page.allow_writes)
    async with serving(admin, settings) as bound:
        where = f"[{page.host}]:{bound}" if ":" in page.host else f"{page.host}:{bound}"
        yield f"http://{where}/ ({'writes allowed' if page.allow_writes else 'read-only'})"
