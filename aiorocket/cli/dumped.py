"""What ``message load`` makes of a line of ``message dump``, or of ``dlq list --json``."""

from __future__ import annotations

import base64
from typing import Any

from aiorocket_protocol import PROPERTY_SHARDING_KEY, RESERVED

__all__ = ("read_row",)


def read_row(row: dict[str, Any]) -> tuple[str, bytes, dict[str, Any]]:
    """Topic, body and what else of a message is its sender's, for ``send``; what RocketMQ reserves told of its way to
    where it was. ValueError, TypeError, KeyError or AttributeError for what is no such row."""
    body = base64.b64decode(row["body_base64"]) if "body_base64" in row else str(row["body"]).encode()
    properties = {str(name): str(value) for name, value in row["properties"].items()}
    return str(row["topic"] if "topic" in row else row["origin_topic"]), body, {
        "tag": str(row["tag"] or ""),
        "keys": [str(key) for key in row["keys"]],
        "properties": {name: value for name, value in properties.items() if name not in RESERVED},
        "sharding_key": properties.get(PROPERTY_SHARDING_KEY),
    }  # fmt: skip
