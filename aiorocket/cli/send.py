"""``aiorocket send``"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

import aiorocket
from aiorocket.cli.asked import told
from aiorocket.cli.options import client_options
from aiorocket.cli.running import run

if TYPE_CHECKING:
    from aiorocket.config import ClientConfig

__all__ = ("send",)


def _read_properties(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equal, _ in pairs:
        if not name or not equal:
            raise click.BadParameter(f"{name!r}: NAME=VALUE")
    return {name: value for name, _, value in pairs}


@click.command()
@click.argument("topic")
@click.argument("body")
@click.option("--tag", default="", help="Its tag.")
@click.option("--key", "keys", multiple=True, help="A key that it is found by; may be given more than once.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", callback=_read_properties)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@client_options
def send(
    topic: str, body: str, tag: str, keys: tuple[str, ...], properties: dict[str, str], as_json: bool,
    config: ClientConfig,
) -> None:  # fmt: skip
    """Send one message with BODY to TOPIC, and say where it lies.

    `produce` sends the lines of a file.
    """

    async def work() -> int:
        async with aiorocket.Client(config=config, group="aiorocket-cli") as client:
            receipt = await client.send(topic, body.encode(), tag=tag, keys=keys, properties=properties)
        row = {
            "msg_id": receipt.msg_id, "offset_msg_id": receipt.offset_msg_id, "topic": topic,
            "broker": receipt.queue.broker_name, "queue": receipt.queue.queue_id, "offset": receipt.offset,
        }  # fmt: skip
        return told("receipt", f"Sent to {topic}", [row])

    click.get_current_context().obj = as_json
    sys.exit(run(work()))
