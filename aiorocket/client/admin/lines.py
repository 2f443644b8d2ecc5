"""What is sent of a message that was written as a row of JSON, by ``StoredMessage.row`` or `aiorocket message dump`."""

from __future__ import annotations

import base64
from typing import Any

from aiorocket.model import OutgoingMessage
from aiorocket_protocol import PROPERTY_SHARDING_KEY, RESERVED

__all__ = ("from_row",)


def from_row(row: dict[str, Any]) -> OutgoingMessage:
    """What of it is its sender's, to be sent; what RocketMQ reserves told of its way to where it was. A row of
    `dlq list --json` goes to where the message came from. ValueError, TypeError, KeyError or AttributeError for what is
    no such row."""
    if "body_problem" in row:  # nobody would take what is stored of it for what was sent
        raise ValueError(f"its body could not be unpacked: {row['body_problem']}")
    properties = {str(name): str(value) for name, value in row["properties"].items()}
    return OutgoingMessage(
        topic=str(row["topic"] if "topic" in row else row["origin_topic"]),
        body=base64.b64decode(row["body_base64"], validate=True) if "body_base64" in row else str(row["body"]).encode(),
        tag=str(row["tag"] or ""),
        keys=[str(key) for key in row["keys"]],
        properties={name: value for name, value in properties.items() if name not in RESERVED},
        sharding_key=properties.get(PROPERTY_SHARDING_KEY),
    )
