"""Listeners in status mode: what is one, and what its answers mean."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest

from aiorocket.client.core.process_queue import ProcessQueue
from aiorocket.client.exits import DeadLetter, Retry
from aiorocket.client.push.calls import StatusCall
from aiorocket.client.push.hooks import ConsumeReturnType
from aiorocket.client.push.router import Router
from aiorocket.client.push.status import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, takes_context
from aiorocket.errors import UsageError
from aiorocket.model import Queue

OK, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER


class Item:
    """As much of a message as a call looks at."""

    queue = Queue("t", "b", 0)
    _process_queue: ProcessQueue | None = None


def test_the_signature_decides() -> None:
    async def plain(message: Any) -> None: ...
    async def stateful(message: Any, state: Any) -> None: ...
    async def optional(message: Any, context: Any = None) -> None: ...
    async def status(messages: Any, context: Any) -> None: ...
    async def both(messages: Any, context: Any, state: Any) -> None: ...
    def in_a_thread(messages: Any, context: Any) -> None: ...

    class Handlers:
        async def plain(self, message: Any) -> None: ...
        async def status(self, messages: Any, context: Any) -> None: ...
        async def __call__(self, messages: Any, context: Any) -> None: ...

    taken = (status, both, partial(both, state=1), in_a_thread, Handlers().status, Handlers())
    assert [takes_context(each) for each in taken] == [True] * 6
    left = (plain, stateful, partial(stateful, state=1), optional, Handlers().plain, print)
    assert [takes_context(each) for each in left] == [False] * 6
    router = Router()
    router.listener("t")(status)
    router.listener("t")(plain)
    router.listener("t")(cast("Any", in_a_thread))
    assert [each.status for each in router.listeners] == [True, False, True]


async def answer(status: object, count: int = 4, **context: Any) -> tuple[list[int], Exception | None, StatusCall]:
    """Which of ``count`` messages fail when a listener sets ``context`` and returns ``status``, and how."""
    messages: Any = [Item() for _ in range(count)]

    async def handler(got: Any, ctx: ConsumeConcurrentlyContext) -> object:
        assert got == messages
        assert (ctx.queue, ctx.ack_index, ctx.delay_level) == (Item.queue, None, 0)
        for name, value in context.items():
            setattr(ctx, name, value)
        return status

    call = StatusCall(handler, messages)
    failures = await call.run()
    error = failures[0][1] if failures else None
    return [messages.index(message) for message, _ in failures], error, call


@pytest.mark.parametrize(("ack_index", "first"), [(None, 4), (3, 4), (99, 4), (1, 2), (0, 1), (-1, 0), (-7, 0)])
async def test_what_comes_after_ack_index_goes_back(ack_index: int | None, first: int) -> None:
    indexes, _, call = await answer(OK, ack_index=ack_index)
    assert indexes == list(range(first, 4))
    assert (call.kind, call.status) == (ConsumeReturnType.SUCCESS, "CONSUME_SUCCESS")


async def test_later_means_all_by_the_delay_level() -> None:
    indexes, error, call = await answer(LATER, delay_level=5, ack_index=2)
    assert indexes == [0, 1, 2, 3]
    assert isinstance(error, Retry)
    assert error.delay_level == 5
    assert (call.kind, call.status) == (ConsumeReturnType.FAILED, "RECONSUME_LATER")
    _, error, _ = await answer(LATER, delay_level=-1)
    assert isinstance(error, DeadLetter)


async def test_none_is_a_retry_of_its_own_kind() -> None:
    indexes, error, call = await answer(None, ack_index=2)
    assert indexes == [0, 1, 2, 3]
    assert isinstance(error, Retry)
    assert (call.kind, call.status) == (ConsumeReturnType.RETURNNULL, "RECONSUME_LATER")


async def test_anything_else_is_the_listeners_mistake() -> None:
    with pytest.raises(TypeError, match=r"returned True: a ConsumeConcurrentlyStatus or None"):
        await answer(True)


def test_a_batch_listener_has_no_status() -> None:
    async def handler(batch: Any, context: Any) -> None: ...

    with pytest.raises(UsageError, match=r"batch\.fail"):
        Router().batch("t")(handler)
