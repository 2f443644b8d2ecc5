"""Answers to plain sends that are taken in runs end as each of them by itself, whatever comes."""

from __future__ import annotations

import asyncio
import types
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aiorocket.config import RemotingConfig
from aiorocket.model import Queue, SendReceipt, SendStatus
from aiorocket.remoting.answers import Sent, take_answers
from aiorocket.remoting.connection import Connection, Frame
from aiorocket.runtime.tasks import TaskScope
from aiorocket.testing.sim import Simulation, simulate
from aiorocket_protocol import (
    JSON,
    MSGPACK,
    READ_SIZE,
    ProtocolError,
    RemotingCommand,
    SendMessageResponseHeader,
    encode_head,
)

QUEUE = Queue("t", "b", 0)
#: Opaques of plain sends; others wait for other answers, or for none.
PLAIN = (1, 2, 70000)


def outcome(frames: list[Frame], cancelled: frozenset[int], *, runs: bool) -> tuple[list[Any], bool]:
    """How requests end whose connection gets ``frames`` in one read, and whether a run was taken."""
    found: list[Any] = []
    taken: list[bool] = []

    def watched(connection: Connection, frames: list[Frame]) -> bool:
        taken.append(take_answers(connection, frames))
        return taken[-1]

    async def drive(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        async with TaskScope("test") as tasks:
            connection = Connection(
                loop, RemotingConfig(), lambda _, command: found.append(shown(command)), tasks, is_client=True,
                shared=memoryview(bytearray(READ_SIZE)),
            )  # fmt: skip
            connection._peer_type = MSGPACK
            connection.plain = watched if runs else None
            requests: dict[int, Any] = connection._requests
            futures: dict[int, asyncio.Future[Any]] = {opaque: loop.create_future() for opaque in (*PLAIN, 3)}
            for opaque in PLAIN:
                target = types.SimpleNamespace(queue=QUEUE)
                requests[opaque] = Sent(futures[opaque], None, target, f"id {opaque}", 5)
            requests[3] = futures[3]
            for opaque in cancelled:
                futures[opaque].cancel()
            connection._handle(list(frames))
            found.append((sorted(requests), connection._peer_type, connection.close_reason))
            found.extend(end(opaque, future) for opaque, future in futures.items())
            connection.close("done")
            connection.connection_lost(None)
            for future in futures.values():
                if future.done() and not future.cancelled():
                    future.exception()

    simulate(drive)
    return found, any(taken)


def end(opaque: int, future: asyncio.Future[Any]) -> str:
    """A receipt where the answer is one, as Sender.not_plain finds it."""
    if not future.done() or future.cancelled():
        return "cancelled" if future.cancelled() else "waits"
    found = future.exception() or future.result()
    if isinstance(found, RemotingCommand) and not found.code and opaque in PLAIN:
        with suppress(ProtocolError):
            stored = found.read(SendMessageResponseHeader)
            found = SendReceipt(f"id {opaque}", QUEUE, stored.queue_offset, stored.msg_id, SendStatus.SEND_OK)
    return shown(found)


def shown(what: object) -> str:
    if isinstance(what, RemotingCommand):
        fields = what.fields
        return f"{what.code} {what.opaque} {what.remark} {what.ext} {fields and bytes(fields)!r} {what.body!r}"
    return repr(what)


def framed(command: RemotingCommand, kind: int) -> Frame:
    return kind, encode_head(command, kind)[8:], command.body


STORED = SendMessageResponseHeader("7F0000010000277A0000000000000007", 3, 70000, "0A" * 16, None, None, "R", "true")
_TEXT = st.none() | st.text(max_size=5)
HEADERS = st.just(STORED) | st.builds(
    SendMessageResponseHeader, st.text(max_size=40), st.integers(0, 3), st.integers(-1, 2**63 - 1), _TEXT, _TEXT, _TEXT
)
COMMANDS = st.builds(
    RemotingCommand,
    st.sampled_from([0, 0, 0, 0, 1, 10, -5]), st.sampled_from([*PLAIN, *PLAIN, 3, 9]), st.sampled_from([1, 1, 1, 3, 0]),
    st.just(3), st.just(479), _TEXT, st.none() | st.dictionaries(st.text(max_size=3), _TEXT, max_size=2),
    HEADERS, body=st.sampled_from([b"", b"", b"", b"body"]),
)  # fmt: skip
PLAIN_ANSWERS = st.builds(
    lambda opaque: framed(RemotingCommand(0, opaque, 1, header=STORED), MSGPACK), st.sampled_from(PLAIN)
)
FRAMES = st.lists(
    PLAIN_ANSWERS
    | st.builds(framed, COMMANDS, st.sampled_from([MSGPACK, MSGPACK, JSON]))
    | st.builds(
        lambda frame, at, byte: (frame[0], frame[1][:at] + bytes((byte,)) + frame[1][at + 1 :], frame[2]),
        PLAIN_ANSWERS, st.integers(0, 60), st.integers(0, 255),
    ),
    max_size=6,
)  # fmt: skip


@given(FRAMES, st.frozensets(st.sampled_from([*PLAIN, 3])))
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
def test_nothing_differs(frames: list[Frame], cancelled: frozenset[int]) -> None:
    assert outcome(frames, cancelled, runs=True)[0] == outcome(frames, cancelled, runs=False)[0]


def test_a_run_is_taken() -> None:
    frames = [framed(RemotingCommand(0, opaque, 1, header=STORED), MSGPACK) for opaque in PLAIN]
    found, taken = outcome(frames, frozenset(), runs=True)
    assert taken and found[0] == ([3], MSGPACK, "") and "waits" not in found[1:-1]
