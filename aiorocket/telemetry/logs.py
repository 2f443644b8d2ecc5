"""Log lines that say which message they are about: group, topic, queue, offset and message id."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from aiorocket import ConsumeNext, Message, Middleware
from aiorocket.telemetry.legible import said_by

__all__ = ("JsonLines", "MessageContext", "current_message")

_current: ContextVar[Mapping[str, Any]] = ContextVar("aiorocket message", default={})  # noqa: B039 - never written to


def current_message() -> Mapping[str, Any]:
    """``group``, ``topic``, ``broker``, ``queue``, ``offset``, ``message_id`` and ``attempt`` of the message whose
    listener runs here (of the first one, and ``messages``, how many, where there are several). Empty elsewhere."""
    return _current.get()


class MessageContext(Middleware, logging.Filter):
    """Middleware, and a filter for handlers of ``logging``: with both, each record that is written while a listener
    runs has ``current_message()`` as ``record.rocketmq``::

        context = MessageContext()
        client = Client(middleware=[context])
        handler.addFilter(context)
    """

    async def consume(self, messages: list[Message], call_next: ConsumeNext) -> Any:
        first = messages[0]
        queue, about = first.queue, said_by(first)
        said = {
            "group": first.group, "topic": about.topic, "broker": queue.broker_name, "queue": queue.queue_id,
            "offset": first.offset, "message_id": about.msg_id, "attempt": first.attempt,
        }  # fmt: skip
        if len(messages) > 1:
            said["messages"] = len(messages)
        token = _current.set(said)
        try:
            return await call_next(messages)
        finally:
            _current.reset(token)

    def filter(self, record: logging.LogRecord) -> bool:
        """Everything passes."""
        record.rocketmq = _current.get()
        return True


class JsonLines(logging.Formatter):
    """A record as one line of JSON: ``time``, ``level``, ``logger``, ``text``, ``error``, and what ``MessageContext``
    knows of the message."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname, "logger": record.name,
            "text": record.getMessage(), **getattr(record, "rocketmq", {}),
        }  # fmt: skip
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
