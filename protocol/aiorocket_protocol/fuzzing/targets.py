"""Everything that turns foreign bytes into values, as targets of a fuzzing engine. A target may raise ProtocolError and
nothing else, and what it accepts must come back from its own encoding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import aiorocket_protocol as protocol
from aiorocket_protocol import JSON, MSGPACK, ROCKETMQ, SPECS, FrameSplitter, ProtocolError, fastjson
from aiorocket_protocol.fast import PURE, compiled

__all__ = ("TARGETS", "one_input")


def _targets() -> dict[str, Callable[[bytes], None]]:
    def same(name: str, *arguments: object) -> None:
        """The compiled function, where it is installed, does what the pure one does."""
        if name in PURE:
            assert _outcome(getattr(protocol, name), arguments) == _outcome(PURE[name], arguments)

    def frames(data: bytes) -> None:
        def split(pieces: list[bytes]) -> tuple[list[tuple[int, bytes, bytes]], str | None]:
            splitter, found = FrameSplitter(), []
            try:
                for piece in pieces:
                    found += splitter.feed(piece)
                if splitter.error is not None:
                    splitter.feed(b"")
            except ProtocolError as error:
                return found, str(error)
            return found, None

        whole = split([data])
        same("cut_frames", memoryview(data), len(data))
        same("cut_frames", memoryview(data), len(data) // 2)
        step = 1 + len(data) // 7
        assert whole == split([data[at : at + step] for at in range(0, len(data), step)])
        found, error = whole
        encoded = b"".join(protocol.encode_frame(*frame) for frame in found)
        assert data.startswith(encoded)
        assert error or len(data) - len(encoded) < protocol.MAX_FRAME
        for frame in found:
            with contextlib.suppress(ProtocolError):
                protocol.decode(*frame)

    def header(serialize_type: int) -> Callable[[bytes], None]:
        def decode(data: bytes) -> None:
            same("decode", serialize_type, data, b"")
            command = protocol.decode(serialize_type, data, b"")
            same("encode_head", command, serialize_type)
            header_class = protocol.REQUEST_HEADERS.get(command.code, protocol.SendMessageResponseHeader)
            assert header_class in SPECS
            try:
                value = command.read(header_class)
                assert command.read(header_class) == value
            except ProtocolError:
                pass
            try:
                once = protocol.encode(command, serialize_type)
            except ProtocolError:
                return  # a lone surrogate escaped in JSON, or nesting that only the reader follows
            (frame,) = FrameSplitter().feed(once)
            assert protocol.encode(protocol.decode(*frame), serialize_type) == once

        return decode

    def records(data: bytes) -> None:
        same("split_records", data)
        views = protocol.split_records(data)
        assert sum(view.size for view in views) == len(data)
        names = [name for name in dir(protocol.RecordView) if not name.startswith("_")]
        for view in views:
            for name in names:
                with contextlib.suppress(ProtocolError):
                    getattr(view, name)
            with contextlib.suppress(ProtocolError):
                protocol.check_record(data, view.start)
            protocol.parse_blank(data, view.start)

    def properties(data: bytes) -> None:
        found = protocol.decode_properties(data)
        for name, value in found.items():
            assert protocol.find_property(data, name.encode()) == value.encode()
        for name in ("TAGS", "DELAY"):
            assert (protocol.find_property(data, name.encode()) is None) == (name not in found)
        with contextlib.suppress(ProtocolError):  # a 0x01 inside a value is read, but never written
            assert protocol.decode_properties(protocol.encode_properties(found)) == found

    plain_batch = compiled("plain_batch")

    def batch(data: bytes) -> None:
        same("decode_batch", data)
        whole = None if plain_batch is None else plain_batch(data, 1 << 20)
        if whole is not None:
            assert _outcome(list, (whole,)) == _outcome(PURE["decode_batch"], (data,))
        items = protocol.decode_batch(data)
        more = (b"A\x01b\x02", b"t", 1, 2, 3, 0, 4, bytes(8), 5, bytes(8))
        same("encode_records", items, *more)
        if whole is not None:
            assert protocol.encode_records(whole, *more) == protocol.encode_records(items, *more)
        same("encode_bodies", [body for body, _, _ in items], [own.decode("latin-1") for _, _, own in items])
        for body, flag, properties in items:
            same("encode_record", b"t", body, properties, 1, 2, 3, flag, 0, 4, bytes(8), 5, bytes(8))
        again = protocol.encode_batch(items)
        assert protocol.decode_batch(again) == items

    def body(serialize_type: int) -> Callable[[bytes], None]:
        classes = (protocol.TopicRouteData, protocol.HeartbeatData, protocol.LockBatchBody, protocol.RegisterBrokerBody,
                   protocol.ClusterInfo, protocol.ConsumerConnection)  # fmt: skip

        def decode(data: bytes) -> None:
            for body_class in classes:
                try:
                    value = protocol.decode_body(body_class, data, serialize_type)
                    encoded = protocol.encode_body(value, serialize_type)
                except ProtocolError:
                    continue
                assert protocol.decode_body(body_class, encoded, serialize_type) == value

        return decode

    def registration(data: bytes) -> None:
        protocol.RegisterBrokerBody.from_compressed(data)

    def tolerant_json(data: bytes) -> None:
        fastjson.loads(data)

    return {
        "frame": frames,
        "json": header(JSON),
        "rocketmq": header(ROCKETMQ),
        "msgpack": header(MSGPACK),
        "record": records,
        "properties": properties,
        "batch": batch,
        "fastjson": tolerant_json,
        "body": body(JSON),
        "body-msgpack": body(MSGPACK),
        "register-compressed": registration,
    }


def _outcome(function: Callable[..., Any], arguments: tuple[object, ...]) -> tuple[object, ...]:
    """What it gives or raises, in a form that can be compared to the last bit."""
    try:
        return "gives", _plain(function(*arguments))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other one must raise the same
        return "raises", type(error), str(error)


def _plain(value: Any) -> object:
    if type(value) in (list, tuple):
        return type(value), [_plain(each) for each in value]
    if names := getattr(type(value), "__match_args__", ()):  # of a dataclass, a struct, a named tuple
        return type(value), [_plain(getattr(value, name)) for name in names]
    if hasattr(value, "buffer"):
        return type(value), value.buffer, value.start, value.end
    return type(value), bytes(value) if type(value).__name__ == "Raw" else value


#: By name, in the order in which the first byte of an input counts them.
TARGETS = _targets()
_TARGETS = tuple(TARGETS.values())


def one_input(data: bytes) -> None:
    """Run one input: its first byte chooses the target, the rest is what that reads. Returns, or raises what no input
    may cause."""
    if data:
        with contextlib.suppress(ProtocolError):
            _TARGETS[data[0] % len(_TARGETS)](data[1:])
