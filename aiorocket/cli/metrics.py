"""``--metrics-port``: what a broker's process answers to Prometheus and to probes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from aiorocket.cli.server_options import host_port
from aiorocket.config.settings import is_service_link
from aiorocket.errors import ConfigError
from aiorocket.runtime.tasks import TaskScope

if TYPE_CHECKING:
    from aiorocket.broker.broker import Broker

__all__ = ("metrics_options", "watched")


class _NoServiceLink(click.Option):
    """Kubernetes sets AIOROCKET_METRICS_PORT=tcp://... for a service that is called aiorocket-metrics."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        value = super().resolve_envvar_value(ctx)
        return None if value is not None and is_service_link("", value) else value


def metrics_options(command: Callable[..., None]) -> Callable[..., None]:
    """``--metrics-port`` and ``--metrics-host``, which arrive as ``metrics``: host and port, None without a port."""

    @wraps(command)
    def function(*, metrics_host: str, metrics_port: int | None, **others: Any) -> None:
        command(metrics=None if metrics_port is None else (metrics_host, metrics_port), **others)

    function = click.option(
        "--metrics-host", metavar="HOST", default="127.0.0.1", show_default=True, envvar="AIOROCKET_METRICS_HOST",
        show_envvar=True, help="Address of --metrics-port: loopback unless given. Whoever reaches it reads all of it.",
    )(function)  # fmt: skip
    return click.option(
        "--metrics-port", type=click.IntRange(0, 65535), envvar="AIOROCKET_METRICS_PORT", show_envvar=True,
        cls=_NoServiceLink, help="Answer /metrics (Prometheus), /healthz and /readyz over HTTP here; needs the extra "
        "metrics. 0 takes a free port, which is printed. Of several brokers each has the next.",
    )(function)  # fmt: skip


@asynccontextmanager
async def watched(broker: Broker, metrics: tuple[str, int] | None) -> AsyncIterator[str]:
    """Look for alarms while the block runs, and answer about ``broker`` at ``metrics`` if given; what the line of a
    ready server says of it. ConfigError without prometheus_client, UsageError when the port cannot be bound."""
    from aiorocket.broker.alarms import keep_watching  # lake run has these options, and no broker

    watch = TaskScope("alarms")
    watch.start(keep_watching(broker), name="alarms")
    try:
        async with _pages(broker, metrics) as said:
            yield said
    finally:
        await watch.close()


@asynccontextmanager
async def _pages(broker: Broker, metrics: tuple[str, int] | None) -> AsyncIterator[str]:
    if metrics is None:
        yield ""
        return
    try:
        from aiorocket.telemetry import broker as telemetry  # an extra
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--metrics-port needs the extra metrics ({error.name} is missing): pip install 'aiorocketmq[metrics]'"
        ) from None
    async with telemetry.watched(broker, *metrics) as bound:
        yield f", metrics on http://{host_port(metrics[0], bound)}/metrics"
