"""The compiled request of a client leaves the same bytes and state as ``Connection.request``, whatever comes.

Needs the distribution in protocol/speedups, see tests/protocol/test_speedups.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorocket.config import RemotingConfig
from aiorocket.errors import RocketError
from aiorocket.remoting.connection import Connection
from aiorocket.runtime.tasks import TaskScope
from aiorocket.testing.sim import Simulation, simulate
from aiorocket_protocol import (
    LANGUAGE_PYTHON,
    MSGPACK,
    READ_SIZE,
    VERSION,
    ProtocolError,
    RemotingCommand,
    SendMessageRequestHeaderV2,
    encode_head,
)
from aiorocket_protocol.fast import compiled

post = compiled("post")
if post is None:
    pytest.skip("aiorocketmq-speedups is not installed (pip install ./protocol/speedups)", allow_module_level=True)

SEND = 310


class Pipe(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.9", 4242), "sockname": ("10.0.0.1", 10911)})
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.writes.extend(map(bytes, parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        pass


def outcome(requests: list[Any], *, fast: bool, taken: list[bool], first: int = 0, closed: bool = False) -> Any:
    found: list[Any] = []

    async def drive(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        async with TaskScope("test") as tasks:
            connection = Connection(
                loop, RemotingConfig(write_limit=5 << 20), lambda *_: None, tasks, is_client=True,
                shared=memoryview(bytearray(READ_SIZE)),
            )  # fmt: skip
            pipe = Pipe()
            connection.connection_made(pipe)
            connection._opaque = first
            connection._send_type = int(MSGPACK)
            if closed:
                connection.close("it is over")
            futures = []
            for fields, body, timeout in requests:
                try:
                    future = post(connection, SEND, VERSION, fields, body, timeout) if fast else None
                    taken.append(future is not None)
                    if future is None:
                        header = tuple.__new__(SendMessageRequestHeaderV2, fields)
                        future = connection.request(
                            RemotingCommand(SEND, 0, 0, LANGUAGE_PYTHON, VERSION, None, None, header, None, body),
                            timeout,
                        )
                    futures.append(future)
                except (RocketError, ProtocolError) as error:
                    found.append(f"{type(error).__name__}: {error}")
                found.append((connection._opaque, sorted(connection._requests), connection._out_bytes))
                found.append((connection._out_large, len(connection._timeouts), list(pipe.writes)))
            await asyncio.sleep(0.01)
            found.append((list(pipe.writes), connection._out))
            await asyncio.sleep(1)
            found.extend(
                f"{future.exception()}" if future.done() and not future.cancelled() else "waits" for future in futures
            )
            connection.close("done")
            connection.connection_lost(None)
            for future in futures:
                if future.done():
                    future.exception()

    simulate(drive)
    return found


NUMBER = st.sampled_from([0, 1, -1, 127, 128, -33, 65536, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
TEXT = st.text(max_size=40) | st.text(min_size=250, max_size=300)
ODD = st.sampled_from([2**63, 2**64, -(2**63) - 1, 1.5, b"bytes", (), {}, object(), "\ud800", 2**70])
FIELDS = st.lists(st.one_of(NUMBER, TEXT, st.none(), st.booleans()), min_size=14, max_size=14).map(tuple)
BODIES = st.sampled_from([b"", b"x", b"y" * 4095, b"z" * 4096, b"w" * 100_000])
REQUESTS = st.lists(st.tuples(FIELDS, BODIES, st.sampled_from([0.5, 3.0])), min_size=1, max_size=5)


@given(REQUESTS, st.sampled_from([0, 126, 0x7FFF_FFFE]))
@settings(max_examples=100, deadline=None)
def test_nothing_differs(requests: list[Any], first: int) -> None:
    taken: list[bool] = []
    assert outcome(requests, fast=True, taken=taken, first=first) == outcome(
        requests, fast=False, taken=[], first=first
    )
    assert all(taken)


@given(FIELDS, st.integers(0, 13), ODD)
@settings(max_examples=60, deadline=None)
def test_of_odd_fields_nothing_differs(fields: tuple[Any, ...], at: int, odd: Any) -> None:
    requests = [((*fields[:at], odd, *fields[at + 1 :]), b"x", 1.0)]
    assert outcome(requests, fast=True, taken=[]) == outcome(requests, fast=False, taken=[])


def test_bursts_limits_and_ends() -> None:
    fields = ("p", "T", "TBW102", 4, 0, 0, 1, 0, "", 0, False, None, False, "b")
    for bodies in ([b"x"] * 100, [b"x" * 5000] * 100, [b""] * 130, [b"x" * (17 << 20)]):
        requests = [(fields, body, 1.0) for body in bodies]
        assert outcome(requests, fast=True, taken=[]) == outcome(requests, fast=False, taken=[])
    taken: list[bool] = []
    requests = [(fields, b"x", 1.0)]
    assert outcome(requests, fast=True, taken=taken, closed=True) == outcome(
        requests, fast=False, taken=[], closed=True
    )
    assert taken == [False]


# -- answers


def answered(frames: list[tuple[int, bytes, bytes]], *, fast: bool, kind: int) -> Any:
    found: list[Any] = []

    async def drive(_: Simulation) -> None:
        loop = asyncio.get_running_loop()

        def dispatch(_: Connection, command: RemotingCommand) -> None:
            found.append(command)

        async with TaskScope("test") as tasks:
            connection = Connection(
                loop, RemotingConfig(), dispatch, tasks, is_client=True, shared=memoryview(bytearray(READ_SIZE))
            )
            connection.connection_made(Pipe())
            connection._peer_type = kind
            if fast:
                connection.plain = compiled("take_answers")
            futures = [connection.request(RemotingCommand.request(1), 1.0) for _ in range(4)]
            futures[1].cancel()
            connection._handle(list(frames))
            await asyncio.sleep(0)
            found.extend(
                "waits" if not future.done() or future.cancelled() else future.exception() or future.result()
                for future in futures
            )
            found.append((sorted(connection._requests), connection._peer_type, connection.close_reason))
            connection.close("done")
            connection.connection_lost(None)
            for future in futures:
                if future.done() and not future.cancelled():
                    future.exception()

    simulate(drive)
    return [shown(each) for each in found]


def shown(what: Any) -> Any:
    if isinstance(what, RemotingCommand) and what.fields is not None:
        return repr((bytes(what.fields), [getattr(what, name) for name in what.__struct_fields__ if name != "fields"]))
    return repr(what)


def packed(command: RemotingCommand) -> tuple[int, bytes, bytes]:
    return int(MSGPACK), encode_head(command, MSGPACK)[8:], command.body


COMMANDS = st.builds(
    RemotingCommand,
    st.sampled_from([0, 0, 1, 19, -5]), st.integers(0, 6), st.sampled_from([1, 1, 1, 3, 0, 2]), st.just(3),
    st.sampled_from([0, VERSION]), st.none() | TEXT, st.none() | st.dictionaries(TEXT, st.none() | TEXT, max_size=2),
    st.none() | FIELDS,
    body=st.sampled_from([b"", b"body"]),
)  # fmt: skip


@given(
    st.lists(st.tuples(COMMANDS.map(packed), st.integers(-20, 400), st.integers(0, 255)), max_size=8),
    st.sampled_from([int(MSGPACK), int(MSGPACK), -1]),
)
@settings(max_examples=150, deadline=None)
def test_of_answers_nothing_differs(drawn: list[tuple[tuple[int, bytes, bytes], int, int]], kind: int) -> None:
    frames = [
        (form, header[:at] + bytes([byte]) + header[at + 1 :] if 0 <= at < len(header) else header, body)
        for (form, header, body), at, byte in drawn
    ]
    assert answered(frames, fast=True, kind=kind) == answered(frames, fast=False, kind=kind)


def test_json_answers_are_left_to_python() -> None:
    frames = [(0, b'{"code":0,"opaque":2,"flag":1,"version":1,"language":"JAVA"}', b"")]
    frames += [packed(RemotingCommand.response(0))] * 2
    for kind in (0, int(MSGPACK)):
        assert answered(frames, fast=True, kind=kind) == answered(frames, fast=False, kind=kind)
