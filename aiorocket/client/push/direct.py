"""One stored message to a listener at an administrator's wish: CONSUME_MESSAGE_DIRECTLY (309).

Nothing is settled by it: the group's offsets, the message's attempts and its queue stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiorocket.client.core.dead_reason import text_of
from aiorocket.client.core.namespace import unwrap
from aiorocket.client.exits import DeadLetter, Retry, Skip, failure_of
from aiorocket.client.group.member import Member
from aiorocket.client.message import Message, Origin
from aiorocket.client.middleware import Middleware, consuming
from aiorocket.client.push.batch_listener import BatchCall
from aiorocket.client.push.calls import Call, SingleCall, StatusCall
from aiorocket.client.push.hooks import ConsumeReturnType
from aiorocket.client.push.router import Listener
from aiorocket.client.push.status import ConsumeOrderlyContext, ConsumeOrderlyStatus
from aiorocket.client.pushed import from_record
from aiorocket.errors import UsageError

__all__ = ("Inspected", "consume_directly", "find_listener")

log = logging.getLogger("aiorocket.client")

_BY_KIND = {
    ConsumeReturnType.SUCCESS: "CR_SUCCESS",
    ConsumeReturnType.FAILED: "CR_LATER",
    ConsumeReturnType.EXCEPTION: "CR_THROW_EXCEPTION",
    ConsumeReturnType.RETURNNULL: "CR_RETURN_NULL",
}
_BY_ORDERLY_STATUS = {
    ConsumeOrderlyStatus.SUCCESS: "CR_SUCCESS",
    ConsumeOrderlyStatus.COMMIT: "CR_COMMIT",
    ConsumeOrderlyStatus.ROLLBACK: "CR_ROLLBACK",
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: "CR_LATER",
    None: "CR_RETURN_NULL",
}


class Inspected(Origin):
    """Of a message that a listener may try to settle as any other: it came too late for that."""

    __slots__ = ()

    async def send_back(
        self, message: Message, delay_level: int, max_attempts: int | None = None, error: BaseException | None = None
    ) -> bool:
        return False


def find_listener(listeners: Sequence[Listener], namespace: str, topic: str, tag: str) -> Listener | None:
    """The listener that messages of ``topic`` with ``tag`` go to; as with retries, the topic's first one when none
    takes the tag."""
    found = [each for each in listeners if unwrap(namespace, each.topic) == topic]
    return next(
        (each for each in found if not each.wanted.tags or tag in each.wanted.tags), found[0] if found else None
    )


async def consume_directly(
    member: Member,
    listeners: Sequence[Listener],
    middleware: Sequence[Middleware],
    batch_size: int,
    record: bytes,
    broker_name: str,
) -> dict[str, Any]:
    """Call the listener for the message in ``record`` and say what came of it: the answer's body. ``batch_size`` is for
    listeners that name none. UsageError when no listener is for its topic, ProtocolError for damage."""
    message = from_record(member.namespace, record, broker_name, Inspected, member.group)
    listener = find_listener(listeners, member.namespace, message.topic, message.tag)
    if listener is None:
        raise UsageError(f"consumer group {member.group} has no listener for topic {message.topic}")
    handler = consuming((*middleware, *listener.middleware), listener.handler, listener.success)
    listener = replace(listener, handler=handler)
    loop = asyncio.get_running_loop()
    began, caller = loop.time(), asyncio.current_task()
    context, remark = ConsumeOrderlyContext(message.queue), None
    try:
        async with asyncio.timeout(listener.timeout):
            if listener.mode == "orderly" and listener.status:
                status = await listener.handler([message], context)
                if status is not None and not isinstance(status, ConsumeOrderlyStatus):
                    raise TypeError(f"a listener in status mode returned {status!r}: a ConsumeOrderlyStatus or None")
                result = _BY_ORDERLY_STATUS[status]
            else:
                call = _kind(listener, batch_size)(listener.handler, [message])
                failures = await call.run()
                result = "CR_LATER" if failures and call.kind is ConsumeReturnType.SUCCESS else _BY_KIND[call.kind]
    except Skip:
        result = "CR_SUCCESS"
    except (Retry, DeadLetter) as error:
        result, remark = "CR_LATER", text_of(error)
    except BaseException as error:  # noqa: BLE001 - the application's failure is the answer
        result = "CR_THROW_EXCEPTION"
        remark = "".join(traceback.format_exception(failure_of(error, caller)))
    log.info("message %s consumed directly by group %s: %s", message.msg_id, member.group, result)
    return {
        "autoCommit": context.auto_commit,
        "consumeResult": result,
        "order": listener.mode == "orderly",
        "remark": remark and remark[-4000:].encode("utf-8", "replace").decode(),
        "spentTimeMills": int(1000 * (loop.time() - began)),
    }


def _kind(listener: Listener, batch_size: int) -> type[Call]:
    if listener.mode == "batch" or listener.takes_batch:
        return BatchCall
    if listener.status:
        return StatusCall
    size = 1 if listener.order_by is not None else listener.batch_size or batch_size
    return Call if size > 1 else SingleCall
