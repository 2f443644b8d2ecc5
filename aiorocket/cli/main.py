"""Entry point. Only click is imported here: a command's module is loaded when it is called, so ``--help`` is fast."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from aiorocket import __version__
from aiorocket.cli.terminal import INTERRUPTED, columns

__all__ = ("COMMANDS", "cli", "main")

#: Command, in the order ``--help`` shows it -> (module, one line of help). The text stands here too, so that
#: ``aiorocket --help`` imports none of them; a test compares it with the commands themselves.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("aiorocket.cli.demo", "Send every line of a text through a real broker and account for each one."),
    "standalone": ("aiorocket.cli.standalone", "Run a name server and a durable broker in one process."),
    "nameserver": ("aiorocket.cli.nameserver", "Run a name server."),
    "broker": ("aiorocket.cli.broker", "Run a durable broker and register it at the name servers."),
    "produce": ("aiorocket.cli.produce", "Send each line of FILE, or of standard input, as one message to TOPIC."),
    "consume": ("aiorocket.cli.consume", "Print the messages of TOPIC as a member of a consumer group."),
    "topic": ("aiorocket.cli.topic", "List, create, change, delete and look at topics."),
    "group": ("aiorocket.cli.group", "List, create, change, delete and look at consumer groups."),
    "offsets": ("aiorocket.cli.offsets", "Put consumer groups somewhere else."),
    "message": ("aiorocket.cli.message", "Look at single messages. Looking joins no group and moves no offset."),
    "send": ("aiorocket.cli.send", "Send one message with BODY to TOPIC, and say where it lies."),
    "trace": (
        "aiorocket.cli.trace",
        "Who sent the message with this sender's id and who consumed it, as clients that trace wrote.",
    ),
    "cluster": ("aiorocket.cli.cluster", "Look at brokers, and change how they run."),
    "acl": ("aiorocket.cli.acl", "Users of brokers with access control, and what they may."),
    "top": ("aiorocket.cli.top", "The groups that are furthest behind; with --watch again and again."),
    "doctor": ("aiorocket.cli.doctor", "Say what is wrong with a cluster and what to do. It changes nothing."),
    "dashboard": (
        "aiorocket.cli.dashboard",
        "Show a cluster in the browser: what is wrong now, topics, groups, messages, dead letters.",
    ),
    "dlq": ("aiorocket.cli.dlq", "List, show and replay the messages a consumer group gave up."),
    "config": ("aiorocket.cli.config", "Look at a broker's or name server's settings: what file and environment say."),
    "store": (
        "aiorocket.cli.store",
        "Look through the data directory of a broker that is not running, and mend it.",
    ),
    "bench": (
        "aiorocket.cli.bench",
        "Measure a RocketMQ under load: what it takes, how late it is, and what set the limit.",
    ),
    "fuzz": ("aiorocket.cli.fuzz", "Send a server what it should not get, and watch it."),
    "lake": ("aiorocket.cli.lake", "Archive topics, make tables of them, look at them, with Spark."),
}


#: Commands that ask a cluster and print what it says: they have neither threads nor children nor files of their own.
_ASKING = frozenset({"topic", "group", "offsets", "message", "send", "trace", "cluster", "acl", "top", "doctor"})

#: Lines of help are no longer than this.
_WIDEST = 110


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(entry[0]), cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry[0]}.{cmd_name} is not a click command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort) as error:  # the latter at a question; click has 1 for both
            if isinstance(error, click.Abort):
                click.echo(err=True)  # the question's line ends
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # click ends without a word: who read is gone
        except OSError as error:  # most often of a file that a command writes at its end
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror or error}") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        # Imported here: --help must stay quick.
        from aiorocket_protocol.fast import SPEEDUPS

        click.echo(f"aiorocket {__version__}" + (f", speedups {SPEEDUPS}" if SPEEDUPS else ""))
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDEST})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def cli() -> None:
    """RocketMQ for asyncio: a broker, a name server and clients for both ours and Apache's.

    `aiorocket demo` shows all of it in a few seconds. Each command explains itself: `aiorocket COMMAND --help`.
    """


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed (one line on standard error says why), 2 bad usage or input, 130
    interrupted before the end."""
    _open_standard_files()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="backslashreplace")  # what the terminal's encoding has no character for
    gc.set_threshold(50_000, 20, 50)  # what a start makes stays, and so does most of what a run makes
    try:
        cli(prog_name="aiorocket", terminal_width=max(50, min(columns(), _WIDEST) - 2))
    except OSError as error:  # of what help writes: commands' own are click's errors by now
        click.echo(f"Error: {error.strerror or error}", err=True)
        _leave(1)
        raise
    except SystemExit as end:
        if _ASKING.intersection(sys.argv[1:2]) or "asyncio" not in sys.modules:
            _leave(end.code)
        raise


def _open_standard_files() -> None:
    """What whoever started the process closed of them is nothing, not the next file or socket: what is written there
    would get into a store, and uvloop ends a process that closes one of their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free, which is this
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115 - of this process
            setattr(sys, name, stream)


def _leave(code: object) -> None:
    """End the process without taking the interpreter apart, which costs a command that has told what it had to tell a
    tenth of its time, and would say once more that its output did not come through. Not when somebody measures it."""
    if isinstance(code, int) and sys.getprofile() is None and sys.gettrace() is None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 1
        os._exit(code)
