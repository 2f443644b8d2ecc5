"""Several brokers of one command, each a process with a name, a port, a folder and a core of its own: ``standalone
--brokers`` and ``broker --workers``."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Sequence

import click
from click.core import ParameterSource

from aiorocket.cli.server_options import SETTINGS_FILE, Listening
from aiorocket.cli.serving import LOG_FILE, LOG_JSON, LOG_KEEP, LOG_LEVEL, LOG_ROTATE

__all__ = ("MOST", "arguments", "broker_names", "check_alone", "check_folders", "told")

MOST = 64

_LOGGING = ("log_level", "log_json", "log_file", "log_rotate", "log_keep")
_DASHBOARD = ("dashboard_port", "dashboard_bind", "dashboard_token", "dashboard_allow_writes")
#: Options that are no broker's, or that each of several has a value of its own for.
_OWN = ("port", "broker_port", "brokers", "workers", "nameservers", "name", "data", "metrics_port", "config", "check",
        "stop_at_end_of_input", *_LOGGING, *_DASHBOARD)  # fmt: skip


def broker_names(name: str, count: int) -> list[str]:
    """Of several brokers; none for a single one, which has the name itself and shares this process."""
    return [f"{name.removesuffix('-a')}-{number}" for number in range(1, count + 1)] if count > 1 else []


def check_folders(data: str, name: str, count: int, option: str) -> None:
    """UsageError when the messages of an earlier start would be left out: another number of brokers wrote them."""
    alone = os.path.isdir(os.path.join(data, "commitlog"))
    before = 1 if alone else sum(os.path.isdir(os.path.join(data, each)) for each in broker_names(name, MOST))
    if before > count or (count > 1 and alone) or (count == 1 and before and not alone):
        more = "" if alone else " or more"
        raise click.UsageError(
            f"{data} holds the messages of {before} broker{'s' * (before > 1)}, of which {option} {count} would leave "
            f"some out: start with {option} {before}{more}"
        )


def check_alone(ctx: click.Context, listening: Listening, option: str) -> None:
    """UsageError for what one process alone can have."""
    if listening.reloads:
        raise click.UsageError(f"{option} with --acl or TLS: start a nameserver and each broker by itself")
    told_token = ctx.get_parameter_source("admin_token") is ParameterSource.COMMANDLINE
    if listening.admin_bind or told_token:
        raise click.UsageError(f"{option} with --admin-bind or --admin-token-file: give AIOROCKET_ADMIN_TOKEN to all")


def arguments(ctx: click.Context, brokers: Sequence[str], nameservers: str, port: int) -> dict[str, list[str]]:
    """What each of several brokers is started with: the options that are the same for all, and its own."""
    given, params = _given(ctx), ctx.params
    metrics_port = params["metrics_port"]
    log, ending = os.path.splitext(ctx.meta[LOG_FILE] or "")
    return {
        name: [
            *given, "--name", name, "--port", str(port and port + 10 * at), "--nameserver", nameservers,
            "--data", os.path.join(params["data"], name),
            *([] if metrics_port is None else ["--metrics-port", str(metrics_port and metrics_port + at)]),
            *(["--log-file", f"{log}-{name}{ending}"] if log else []),
        ]
        for at, name in enumerate(brokers)
    }  # fmt: skip


def told(running: Iterable[tuple[str, str]]) -> str:
    """Name and address of each, in a line."""
    return "brokers " + ", ".join(f"{name} {address}" for name, address in running)


def _given(ctx: click.Context) -> list[str]:
    """The options of this start that are the same for each of its brokers."""
    default = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
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
            and option.name not in _OWN
            and ctx.get_parameter_source(option.name) not in default
            for text in (option.opts[-1], str(ctx.params[option.name]))
        ]
    )
