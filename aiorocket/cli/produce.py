"""``aiorocket produce``: its options. What it does is in ``producing.py``, which is imported when it does it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from aiorocket.cli.options import client_options

if TYPE_CHECKING:
    from aiorocket.config import ClientConfig

__all__ = ("produce",)


@click.command()
@click.argument("topic")
@click.argument("file", default="-", metavar="[FILE|-]")
@client_options
@click.option("--group", default="aiorocket-cli", show_default=True, help="Producer group.")
@click.option("--tag", default="", help="Tag of every message.")
@click.option("--key-field", metavar="NAME", help="Lines are JSON objects; this field is the message's key.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="At most N messages a second.")
def produce(
    topic: str, file: str, config: ClientConfig, group: str, tag: str, key_field: str | None, rate: float | None
) -> None:
    """Send each line of FILE, or of standard input, as one message to TOPIC.

    Empty lines are skipped. It exits with 0 only when every line was acknowledged; else it says which were not.
    """
    from aiorocket.cli.producing import send_file

    sys.exit(send_file(topic, file, config, group, tag, key_field, rate))
