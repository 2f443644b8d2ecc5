"""``aiorocket send``"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

import aiorocket
from aiorocket.cli.asked import interruptible, told
from aiorocket.cli.options import client_options, read_pairs
from aiorocket.cli.running import run

if TYPE_CHECKING:
    from aiorocket.config import ClientConfig

__all__ = ("send",)


@click.command()
@click.argument("topic")
@click.argument("body")
@click.option("--tag", default="", help="Its tag.")
@click.option("--key", "keys", multiple=True, help="A key that it is found by; may be given more than once.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", callback=read_pairs)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@client_options
def send(
    topic: str, body: str, tag: str, keys: tuple[str, ...], properties: dict[str, str], as_json: bool,
    config: ClientConfig,
) -> None:  # fmt: skip
    """Send one message with BODY to TOPIC, and say where it lies.

    `produce` sends the lines of a file.
    """

    said = body.encode(errors="surrogateescape")  # what is no text of the terminal's encoding as it was given

    async def work() -> int:
        async with aiorocket.Client(config=config, group="aiorocket-cli") as client:
            receipt = await client.send(topic, said, tag=tag, keys=keys, properties=properties)
        row = {
            "msg_id": receipt.msg_id, "offset_msg_id": receipt.offset_msg_id, "topic": topic,
            "broker": receipt.queue.broker_name, "queue": receipt.queue.queue_id, "offset": receipt.offset,
        }  # fmt: skip
        return told("receipt", f"Sent to {topic}", [row])

    click.get_current_context().obj = as_json
    sys.exit(run(interruptible(work())))
