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

import msgpack

from aiorocket_protocol.batch import encode_batch
from aiorocket_protocol.codec import encode
from aiorocket_protocol.codes import RequestCode
from aiorocket_protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, JSON, MSGPACK, ROCKETMQ, RemotingCommand
from aiorocket_protocol.fuzzing.bodies import body_of
from aiorocket_protocol.fuzzing.chance import Draw, pick, some_bytes
from aiorocket_protocol.fuzzing.words import BROKEN_VALUES, ODD_VALUES, Words, meaning_of
from aiorocket_protocol.fuzzing.words import words as all_words
from aiorocket_protocol.headers import REQUEST_HEADERS, SPECS
from aiorocket_protocol.names import VERSION
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


#: Of each code: its fields, and under which name ``Words`` has their values.
_FIELDS: dict[int, tuple[tuple[FieldSpec, str], ...]] = {
    code: tuple((spec, meaning_of(spec.wire)) for spec in SPECS[header]) for code, header in REQUEST_HEADERS.items()
}


def fields_of(code: int) -> tuple[str, ...]:
    """The wire keys of the header of a request."""
    return tuple(spec.wire for spec, _ in _FIELDS.get(code, ()))


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
    values = [
        pick(draw, known[meaning]) if spec.required or draw.random() < 0.5 else None
        for spec, meaning in _FIELDS.get(code, ())
    ]
    header_class = REQUEST_HEADERS.get(code)
    header = tuple.__new__(header_class, values) if header_class is not None else None
    command = RemotingCommand(code, opaque, FLAG_ONEWAY if oneway else 0, header=header)
    command.body = body_of(draw, code, known, kind, header)
    answered = not oneway
    if form == LEGAL:
        return Drawn(code, kind, form, "", opaque, answered, encode(command, kind))
    if form == ODD:
        return _odd(draw, command, kind, answered)
    return _broken(draw, command, kind, answered)


# ---- odd but legal


def _odd(draw: Draw, command: RemotingCommand, kind: int, answered: bool | None) -> Drawn:
    code, fields = command.code, _FIELDS.get(command.code, ())
    way = int(draw.random() * (8 if fields else 4))
    part = "header"
    if way == 0:
        command.ext = {"x-" + "y" * int(draw.random() * 40): "z" * int(draw.random() * 400)}
    elif way == 1:
        command.version, command.language = pick(draw, ((0, 0), (32767, 13), (317, 1), (501, 12)))
        command.remark = pick(draw, (None, "", "why not \u00e9"))
    elif way == 2:  # a response that nobody waits for
        command.flag = FLAG_RESPONSE
        answered = False
    elif way == 3 and kind == JSON:
        data = _loose_json(draw, command)
        return Drawn(code, kind, ODD, part, command.opaque, answered, _framed(kind, data, command.body))
    elif way == 3:
        part = "body"
        command.body += b" " * int(draw.random() * 3) if command.body[:1] in b"{[" else b""
    else:
        at = int(draw.random() * len(fields))
        spec, meaning = fields[at]
        part = spec.wire
        if meaning == "hold" and answered:
            answered = None
        changed = list(command.header or ())
        changed[at] = pick(draw, ODD_VALUES[spec.kind])
        command.header = tuple.__new__(REQUEST_HEADERS[code], changed)
    return Drawn(code, kind, ODD, part, command.opaque, answered, encode(command, kind))


def _loose_json(draw: Draw, command: RemotingCommand) -> bytes:
    """A header as other languages write it: numbers and booleans in extFields, blanks, members in any order, nulls,
    members that nobody knows."""
    loose: list[tuple[str, Any]] = []
    for (spec, _), value in zip(_FIELDS.get(command.code, ()), command.header or (), strict=False):
        if value is not None or draw.random() < 0.3:
            loose.append((spec.wire, value if draw.random() < 0.7 or value is None else str(value).lower()))
    plain: list[tuple[str, Any]] = [
        ("extFields", dict(loose)), ("flag", command.flag), ("language", pick(draw, ("GO", 0, "nobody's", None))),
        ("opaque", command.opaque), ("version", pick(draw, (0, "453"))), ("code", command.code),
        ("serializeTypeCurrentRPC", "JSON"), ("remark", None), ("later", {"a": [1, {}]}),
    ]  # fmt: skip
    if draw.random() < 0.5:
        plain.reverse()
    return json.dumps(dict(plain), indent=pick(draw, (None, 1)), ensure_ascii=draw.random() < 0.5).encode()


# ---- broken


def _broken(draw: Draw, command: RemotingCommand, kind: int, answered: bool | None) -> Drawn:
    code, fields, opaque = command.code, _FIELDS.get(command.code, ()), command.opaque
    way = draw.random()
    if way < 0.6 and fields:
        at = int(draw.random() * len(fields))
        spec, meaning = fields[at]
        wrong = pick(draw, BROKEN_VALUES[spec.kind])
        if meaning == "hold" and answered:
            answered = None
        data = _with(command, kind, at, spec.wire, wrong)
        return Drawn(code, kind, BROKEN, spec.wire, opaque, answered, data)
    whole = encode(command, kind)
    header_length = int.from_bytes(whole[5:8], "big")
    header, body = whole[8 : 8 + header_length], whole[8 + header_length :]
    if way < 0.96:
        changed = mutated(draw, body) if body else some_bytes(draw, 1 + int(draw.random() * 40))
        return Drawn(code, kind, BROKEN, "body", opaque, answered, _framed(kind, header, changed))
    if way < 0.99:
        return Drawn(code, kind, BROKEN, "header", opaque, None, _framed(kind, mutated(draw, header), body))
    return Drawn(code, kind, BROKEN, "frame", opaque, None, _bad_frame(draw, whole))


def _with(command: RemotingCommand, kind: int, at: int, wire: str, wrong: Any) -> bytes:
    """The request with one field that is not of its kind, or is not there."""
    if kind == MSGPACK:
        fields = [*(command.header or ())]
        fields[at] = wrong if not isinstance(wrong, int) or -(1 << 63) <= wrong < 1 << 64 else str(wrong)
        packed = [command.code, command.flag, command.opaque, VERSION, command.language, None, fields]
        return _framed(kind, msgpack.packb(packed), command.body)
    ext = dict(command.ext_fields())
    command.header = None
    if wrong is None:
        ext.pop(wire, None)
    else:
        ext[wire] = wrong if isinstance(wrong, str) else str(wrong)
    command.ext = ext
    return encode(command, kind)


def _framed(kind: int, header: bytes, body: bytes) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


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
