"""The golden vectors, and an input for a fuzzing engine from each of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiorocket_protocol.fuzzing.targets import TARGETS

__all__ = ("VECTOR_FILES", "seeds", "vectors")

VECTOR_FILES = ("allocation", "batches", "bodies", "fastjson", "frames", "headers", "ids", "invalid", "properties",
                "recorded", "records")  # fmt: skip

_PACKAGE = Path(__file__).resolve().parents[1]
_HOME = _PACKAGE / "vectors"

#: Which target reads the vectors of a file, and the kinds of those that must be refused, where the names differ.
_READS = {"frames": "frame", "recorded": "frame", "records": "record", "properties": "properties", "batches": "batch",
          "fastjson": "fastjson"}  # fmt: skip
_KINDS = {"record-crc": "record", "record-body": "record", "route": "body", "heartbeat": "body"}
_CODECS = {"json": "body", "msgpack": "body-msgpack", "compressed": "register-compressed"}


def vectors(name: str) -> list[dict[str, Any]]:
    """The vectors of one of VECTOR_FILES: ``hex``, what it means, a note."""
    if name not in VECTOR_FILES:
        raise ValueError(f"{name!r}: there are {', '.join(VECTOR_FILES)}")
    entries: list[dict[str, Any]] = json.loads((_HOME / f"{name}.json").read_text(encoding="utf-8"))["vectors"]
    return entries


def seeds() -> dict[str, bytes]:
    """Name to input of ``one_input``, one per vector; deep or long ones only test limits and stay out."""
    names = list(TARGETS)
    found: dict[str, bytes] = {}

    def add(target: str, name: str, hexadecimal: str) -> None:
        data = bytes.fromhex(hexadecimal)
        if len(data) <= 1024:
            found[f"{target}-{name}".replace(" ", "-")] = bytes([names.index(target)]) + data

    for file, target in _READS.items():
        for vector in vectors(file):
            add(target, vector["name"], vector["hex"])
    for vector in vectors("headers"):
        add(vector["codec"], vector["name"], vector["hex"])
    for vector in vectors("bodies"):
        add(_CODECS[vector["codec"]], vector["name"], vector["hex"])
    for vector in vectors("invalid"):
        add(_KINDS.get(vector["kind"], vector["kind"]), "invalid-" + vector["name"], vector["hex"])
    return found
