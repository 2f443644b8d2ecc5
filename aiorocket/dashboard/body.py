"""A message's body for a person: text, JSON or hexadecimal digits, however foreign it is."""

from __future__ import annotations

import json
from typing import NamedTuple

__all__ = ("FORMS", "PREVIEWED", "Shown", "preview", "shown")

FORMS = ("text", "json", "hex")
#: Bytes that are shown.
MOST = 64 * 1024
_PREVIEW = 160
#: Bytes that a preview is made of.
PREVIEWED = _PREVIEW * 4
#: Characters of JSON: what is nested deeply is indented, and may take a thousand times its bytes.
_MOST_JSON = 8 * MOST


class Shown(NamedTuple):
    """``form`` is what it is shown as, ``left`` how many bytes are not."""

    form: str
    text: str
    left: int


def shown(body: bytes, form: str = "") -> Shown:
    """``body`` as one of ``FORMS``; without one as what it is. What is no JSON is shown as text."""
    if form not in FORMS:
        form = _kind(body)
    if form == "hex":
        return Shown("hex", hexadecimal(body[:MOST]), max(0, len(body) - MOST))
    if form == "json":
        text = _json(body)
        if text is not None:
            return Shown("json", text, 0)
        form = "text"
    return Shown(form, _text(body[:MOST]), max(0, len(body) - MOST))


def preview(body: bytes) -> str:
    """A line."""
    text = body[:PREVIEWED].decode("utf-8", "replace")
    return " ".join("".join(each if each.isprintable() or each.isspace() else "\ufffd" for each in text).split())[
        :_PREVIEW
    ]


def hexadecimal(body: bytes) -> str:
    """Sixteen bytes a line: where they are, their digits, and what of them is ASCII."""
    lines = []
    for at in range(0, len(body), 16):
        part = body[at : at + 16]
        digits = f"{part[:8].hex(' '):23}  {part[8:].hex(' '):23}"
        lines.append(f"{at:08x}  {digits}  {''.join(chr(each) if 32 <= each < 127 else '.' for each in part)}")
    return "\n".join(lines)


def _json(body: bytes) -> str | None:
    """Indented; None for what is no JSON, or too much of it."""
    if len(body) > MOST:
        return None
    parts, length = [], 0
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(body)):
            parts.append(part)
            length += len(part)
            if length > _MOST_JSON:
                return None
    except (ValueError, RecursionError):
        return None
    return "".join(parts).encode(errors="backslashreplace").decode()


def _kind(body: bytes) -> str:
    if body[:1] in (b"{", b"["):
        return "json"
    try:
        text = body[:MOST].decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or len(body) <= MOST:  # else the cut is in a character
            return "hex"
        text = body[: error.start].decode()
    return "hex" if any(ord(each) < 32 and each not in "\t\r\n" for each in text) else "text"


def _text(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    return "".join(each if each.isprintable() or each in "\t\r\n" else "\ufffd" for each in text)
