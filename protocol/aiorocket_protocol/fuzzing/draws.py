"""Requests, records and streams, drawn: legal, odd but legal, broken. One frame of each kind is

legal    what a peer sends: every field of its kind, the body the code has
odd      legal in a form or with a value that hardly anybody sends
broken   a field, the body, the header or the frame itself is wrong
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from aiorocket_protocol.batch import encode_batch
from aiorocket_protocol.codec import encode
from aiorocket_protocol.codes import RequestCode
from aiorocket_protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, JSON, MSGPACK, ROCKETMQ, RemotingCommand
from aiorocket_protocol.fuzzing.bodies import WITH_BODY, body_of
from aiorocket_protocol.fuzzing.chance import Draw, pick, some_bytes
from aiorocket_protocol.fuzzing.frames import framed, header_of
from aiorocket_protocol.fuzzing.words import BROKEN_VALUES, ODD_VALUES, Words, meaning_of
from aiorocket_protocol.fuzzing.words import words as all_words
from aiorocket_protocol.headers import REQUEST_HEADERS, SPECS
from aiorocket_protocol.record_writer import encode_record
from aiorocket_protocol.spec import FieldSpec

__all__ = (
    "BROKEN",
    "CODES",
    "FORMS",
    "LEGAL",
    "ODD",
    "Drawn",
    "batch",
    "fields_of",
    "legal_words",
    "mutated",
    "record",
    "request",
    "stream",
)

LEGAL, ODD, BROKEN = "legal", "odd", "broken"
FORMS = (LEGAL, ODD, BROKEN)

#: Every request code, and two that nobody knows.
CODES = (*sorted(int(code) for code in RequestCode), 9999, 32767)

#: Codes that do not fit the header of ROCKETMQ.
_WIDE = 1 << 15


class Drawn(NamedTuple):
    """A request as bytes. ``part`` is what is odd or broken: the wire key of a field, "body", "header" or "frame".

    ``answered``: True when every server must answer it, False when none may, None when it may hang up or hold it back.
    """

    code: int
    kind: int
    form: str
    part: str
    opaque: int
    answered: bool | None
    data: bytes


def legal_words() -> Words:
    """Legal values for every field of every request; a copy to add to."""
    return all_words({spec.wire: spec.kind for specs in SPECS.values() for spec in specs})


class _Field(NamedTuple):
    """``meaning``: under which name ``Words`` has its values."""

    spec: FieldSpec
    meaning: str


_FIELDS: dict[int, tuple[_Field, ...]] = {
    code: tuple(_Field(spec, meaning_of(spec.wire)) for spec in SPECS[header])
    for code, header in REQUEST_HEADERS.items()
}
#: The same, as drawing needs it: must it be there, and where its values are.
_WANTED = {code: tuple((spec.required, meaning) for spec, meaning in fields) for code, fields in _FIELDS.items()}
_WIRES = {code: tuple(spec.wire for spec, _ in fields) for code, fields in _FIELDS.items()}


def fields_of(code: int) -> tuple[str, ...]:
    """The wire keys of the header of a request."""
    return _WIRES.get(code, ())


def request(
    draw: Draw,
    code: int,
    known: Words,
    *,
    kind: int = JSON,
    form: str = LEGAL,
    opaque: int = 1,
    oneway: bool = False,
) -> Drawn:
    """A request of this code, in serialize type ``kind`` (JSON for codes that ROCKETMQ has no room for)."""
    if kind == ROCKETMQ and code >= _WIDE:
        kind = JSON
    chance = draw.random
    values = [
        (among := known[meaning])[int(chance() * len(among))] if required or chance() < 0.5 else None
        for required, meaning in _WANTED.get(code, ())
    ]
    body = body_of(draw, code, known, kind, values) if code in WITH_BODY else b""
    if form == LEGAL:
        flag = FLAG_ONEWAY if oneway else 0
        data = framed(kind, header_of(kind, code, opaque, flag, _WIRES.get(code), values), body)
        return Drawn(code, kind, form, "", opaque, not oneway, data)
    if form == ODD:
        return _odd(draw, code, kind, opaque, values, body)
    return _broken(draw, code, kind, opaque, values, body)


# ---- odd but legal


def _odd(draw: Draw, code: int, kind: int, opaque: int, values: list[Any], body: bytes) -> Drawn:
    wires = _WIRES.get(code)
    way = int(draw.random() * (8 if wires else 4))
    part = "header"
    answered: bool | None = True
    flag = 0
    if way < 2:
        header = tuple.__new__(REQUEST_HEADERS[code], values) if code in REQUEST_HEADERS else None
        command = RemotingCommand(code, opaque, header=header, body=body)
        if way == 0:
            command.ext = {"x-" + "y" * int(draw.random() * 40): "z" * int(draw.random() * 400)}
        else:
            command.version, command.language = pick(draw, ((0, 0), (32767, 13), (317, 1), (501, 12)))
            command.remark = pick(draw, (None, "", "why not \u00e9"))
        return Drawn(code, kind, ODD, part, opaque, answered, encode(command, kind))
    if way == 2:  # a response that nobody waits for
        flag = FLAG_RESPONSE
        answered = False
    elif way == 3 and kind == JSON:
        return Drawn(
            code, kind, ODD, part, opaque, answered, framed(kind, _loose_json(draw, code, opaque, values), body)
        )
    elif way == 3:
        part = "body"
        body += b" " * int(draw.random() * 3) if body[:1] in b"{[" else b""
    else:
        at = int(draw.random() * len(values))
        spec, meaning = _FIELDS[code][at]
        part = spec.wire
        if meaning == "hold":
            answered = None
        values[at] = pick(draw, ODD_VALUES[spec.kind])
    header_bytes = header_of(kind, code, opaque, flag, wires, values)
    return Drawn(code, kind, ODD, part, opaque, answered, framed(kind, header_bytes, body))


def _loose_json(draw: Draw, code: int, opaque: int, values: Sequence[Any]) -> bytes:
    """A header as other languages write it: numbers and booleans in extFields, blanks, members in any order, nulls,
    members that nobody knows."""
    loose: list[tuple[str, Any]] = []
    for wire, value in zip(_WIRES.get(code, ()), values, strict=True):
        if value is not None or draw.random() < 0.3:
            loose.append((wire, value if draw.random() < 0.7 or value is None else str(value).lower()))
    plain: list[tuple[str, Any]] = [
        ("extFields", dict(loose)), ("flag", 0), ("language", pick(draw, ("GO", 0, "nobody's", None))),
        ("opaque", opaque), ("version", pick(draw, (0, "453"))), ("code", code),
        ("serializeTypeCurrentRPC", "JSON"), ("remark", None), ("later", {"a": [1, {}]}),
    ]  # fmt: skip
    if draw.random() < 0.5:
        plain.reverse()
    return json.dumps(dict(plain), indent=pick(draw, (None, 1)), ensure_ascii=draw.random() < 0.5).encode()


# ---- broken


def _broken(draw: Draw, code: int, kind: int, opaque: int, values: list[Any], body: bytes) -> Drawn:
    wires = _WIRES.get(code)
    way = draw.random()
    answered: bool | None = True
    if way < 0.6 and wires:
        at = int(draw.random() * len(wires))
        spec, meaning = _FIELDS[code][at]
        part = spec.wire
        if meaning == "hold":
            answered = None
        values[at] = _wrong(kind, pick(draw, BROKEN_VALUES[spec.kind]))
        data = framed(kind, header_of(kind, code, opaque, 0, wires, values), body)
        return Drawn(code, kind, BROKEN, part, opaque, answered, data)
    header = header_of(kind, code, opaque, 0, wires, values)
    if way < 0.96:
        changed = mutated(draw, body) if body else some_bytes(draw, 1 + int(draw.random() * 40))
        return Drawn(code, kind, BROKEN, "body", opaque, answered, framed(kind, header, changed))
    if way < 0.99:
        return Drawn(code, kind, BROKEN, "header", opaque, None, framed(kind, mutated(draw, header), body))
    return Drawn(code, kind, BROKEN, "frame", opaque, None, _bad_frame(draw, framed(kind, header, body)))


def _wrong(kind: int, value: Any) -> Any:
    """As it can be written: text in JSON and ROCKETMQ."""
    if kind == MSGPACK:
        return str(value) if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64 else value
    return value if value is None or isinstance(value, str) else str(value)


def _bad_frame(draw: Draw, frame: bytes) -> bytes:
    """A length that is not so, a serialize type of nobody, another protocol, noise."""
    way = int(draw.random() * 6)
    if way == 0:
        return struct.pack(">I", pick(draw, (0, 3, 16 << 20, (16 << 20) + 1, 1 << 31, (1 << 32) - 1))) + frame[4:]
    if way == 1:
        return frame[:4] + struct.pack(">I", frame[4] << 24 | pick(draw, (0xFFFFFF, len(frame), 0))) + frame[8:]
    if way == 2:
        return frame[:4] + bytes([pick(draw, (2, 7, 0x4C, 0xFF))]) + frame[5:]
    if way == 3:
        return frame[: int(draw.random() * len(frame))]
    if way == 4:
        return pick(
            draw, (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\n", b"PRI *")
        )
    return some_bytes(draw, 1 + int(draw.random() * 64))


def mutated(draw: Draw, data: bytes) -> bytes:
    """With a few bytes flipped, cut out, put in, repeated or replaced by what matters to a parser."""
    found = bytearray(data)
    for _ in range(pick(draw, (1, 1, 2, 8))):
        at = int(draw.random() * (len(found) + 1))
        way = int(draw.random() * 5)
        if way == 0 and at < len(found):
            found[at] ^= 1 << int(draw.random() * 8)
        elif way == 1:
            found[at : at + 1 + int(draw.random() * 8)] = b""
        elif way == 2:
            found[at:at] = some_bytes(draw, 1 + int(draw.random() * 8))
        elif way == 3:
            found[at:at] = found[at : at + 1 + int(draw.random() * 63)] * pick(draw, (1, 3, 40))
        elif at < len(found):
            found[at] = pick(draw, b'\x00\xff\x7f\x80"{}[]:,0-9\x90\xc0\xdf')
    return bytes(found)


# ---- stored records, batches, streams


def record(draw: Draw, form: str = LEGAL) -> bytes:
    """One stored message. Odd: empty or large parts, negative numbers, IPv6. Broken: ``mutated``."""
    odd = form == ODD
    host = some_bytes(draw, 20 if odd and draw.random() < 0.5 else 8)
    topic = pick(draw, (b"T", b"t" * 255, "\u00e9".encode())) if odd else b"orders"
    properties = pick(draw, (b"", b"TAGS\1", b"\1\2", b"A\1" + b"v" * 5000)) if odd else b"TAGS\1a\2KEYS\1k\2"
    number = pick(draw, (-1, 0, (1 << 31) - 1)) if odd else 1
    body = some_bytes(draw, pick(draw, (0, 1, 3000)) if odd else int(draw.random() * 64))
    data = encode_record(topic, body, properties, 0, 1, 2, number, 0, 4, host, 5, host, number)
    return mutated(draw, data) if form == BROKEN else data


def batch(draw: Draw, form: str = LEGAL) -> bytes:
    """The body of a batch: of one to five messages, of none or fifty (odd), ``mutated`` (broken)."""
    count = pick(draw, (0, 50)) if form == ODD else 1 + int(draw.random() * 5)
    items = [(some_bytes(draw, int(draw.random() * 40)), 0, pick(draw, (b"", b"TAGS\1a\2"))) for _ in range(count)]
    return mutated(draw, encode_batch(items)) if form == BROKEN else encode_batch(items)


def stream(
    draw: Draw, form: str = LEGAL, *, frames: int = 5, kinds: Sequence[int] = (JSON, ROCKETMQ, MSGPACK)
) -> bytes:
    """Requests behind one another, as a peer that pipelines sends them; one of them is odd or broken."""
    known, found = legal_words(), []
    wrong = int(draw.random() * frames)
    for number in range(frames):
        of = form if number == wrong else LEGAL
        found.append(request(draw, pick(draw, CODES), known, kind=pick(draw, kinds), form=of, opaque=number + 1).data)
    return b"".join(found)
