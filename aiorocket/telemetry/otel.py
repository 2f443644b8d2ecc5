"""Spans of OpenTelemetry around sends and listeners (extra ``otel``), by the semantic conventions ``messaging.*``.

The context travels in the messages' properties (``traceparent`` and what else the propagator writes), so a listener's
span continues the trace of the sender, and each further delivery of a message is a further span in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from aiorocket import (
    ConsumeNext,
    DeadLetter,
    Message,
    Middleware,
    OutgoingMessage,
    PublishNext,
    SendReceipt,
    Skip,
    __version__,
)
from aiorocket.telemetry.legible import said_by

__all__ = ("OpenTelemetry",)


class OpenTelemetry(Middleware):
    """``Client(middleware=[OpenTelemetry()])``. ``provider`` is whose spans they are, the global one unless told
    otherwise; the propagator is the global one.

    A send is a span ``send TOPIC``. So is a batch, with a span ``create TOPIC`` for each message and links to these.
    A call of a listener is a span ``process TOPIC``: of one message the child of its sender's, of several on its own,
    with a link to each. DeadLetter and Retry are errors (``error.type``), Skip is none. Each repetition of a send is an
    event ``retry`` of its span.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer: Tracer = trace.get_tracer("aiorocket", __version__, provider)

    async def publish(self, messages: list[OutgoingMessage], call_next: PublishNext) -> Any:
        first = messages[0]
        if len(messages) == 1:
            with self._span("send", first.topic, SpanKind.PRODUCER, _of_message(first)) as span:
                return _said(span, await call_next([_carrying(first)]))
        else:
            created = [self._created(each) for each in messages]
            links = [Link(trace.get_current_span(each).get_span_context()) for each in created]
            said = {"messaging.batch.message_count": len(messages)}
            with self._span("send", first.topic, SpanKind.CLIENT, said, links=links) as span:
                pairs = zip(messages, created, strict=True)
                return _said(span, await call_next([_carrying(each, where) for each, where in pairs]))

    def retrying(self, topic: str, error: Exception) -> None:
        said = {"error.type": type(error).__qualname__, "error.message": str(error)[:1000]}
        trace.get_current_span().add_event("retry", said)

    async def consume(self, messages: list[Message], call_next: ConsumeNext) -> Any:
        first, about = messages[0], [said_by(each) for each in messages]
        said: dict[str, Any] = {
            "messaging.consumer.group.name": first.group,
            "messaging.destination.partition.id": str(first.queue.queue_id),
        }
        origins = [propagate.extract(each.properties) for each in about]
        links = [Link(found) for each in origins if (found := trace.get_current_span(each).get_span_context()).is_valid]
        parent = None
        if len(messages) == 1:
            parent = origins[0]
            said |= {
                "messaging.message.id": about[0].msg_id,
                "messaging.message.body.size": len(first.raw_body),
                "messaging.rocketmq.message.reconsume_times": first.reconsume_times,
            }
            said |= _labels(about[0].tag, about[0].keys, about[0].sharding_key)
        else:
            said["messaging.batch.message_count"] = len(messages)
        with self._span("process", about[0].topic, SpanKind.CONSUMER, said, parent=parent, links=links):
            return await call_next(messages)

    @contextmanager
    def _span(
        self,
        operation: str,
        topic: str,
        kind: SpanKind,
        said: dict[str, Any],
        *,
        parent: context.Context | None = None,
        links: list[Link] | None = None,
    ) -> Iterator[Span]:
        """A current span, which an exception makes an error."""
        with self._tracer.start_as_current_span(
            f"{operation} {topic}", context=parent, kind=kind, attributes=_common(operation, topic) | said, links=links,
            record_exception=False, set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                yield span
            except BaseException as error:
                if not isinstance(error, Skip):
                    span.set_attribute("error.type", type(error).__qualname__)
                    span.set_status(Status(StatusCode.ERROR, str(error)[:1000]))
                    if isinstance(error, Exception) and not isinstance(error, DeadLetter):
                        span.record_exception(error)
                raise

    def _created(self, message: OutgoingMessage) -> context.Context:
        attributes = _common("create", message.topic) | _of_message(message)
        span = self._tracer.start_span(f"create {message.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        span.end()
        return trace.set_span_in_context(span)


def _common(operation: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


def _of_message(message: OutgoingMessage) -> dict[str, Any]:
    said: dict[str, Any] = {"messaging.message.body.size": len(message.body)}
    said |= _labels(message.tag, message.keys, message.sharding_key)
    kind = "normal" if message.sharding_key is None else "fifo"
    if message.delay_level:
        said["messaging.rocketmq.message.delay_time_level"] = message.delay_level
        kind = "delay"
    if message.at is not None:
        said["messaging.rocketmq.message.delivery_timestamp"] = round(message.at.timestamp() * 1000)
        kind = "delay"
    if message.after is not None:
        kind = "delay"
    said["messaging.rocketmq.message.type"] = kind
    return said


def _labels(tag: str, keys: Sequence[str], sharding_key: str | None) -> dict[str, Any]:
    named = {"tag": tag or None, "keys": list(keys) or None, "group": sharding_key}
    return {f"messaging.rocketmq.message.{name}": value for name, value in named.items() if value is not None}


def _said(span: Span, receipts: Sequence[SendReceipt]) -> Sequence[SendReceipt]:
    """The receipts, told to the span of their send; one-way there are none."""
    if receipts:
        span.set_attribute("messaging.destination.partition.id", str(receipts[0].queue.queue_id))
    if len(receipts) == 1:
        span.set_attribute("messaging.message.id", receipts[0].msg_id)
    return receipts


def _carrying(message: OutgoingMessage, where: context.Context | None = None) -> OutgoingMessage:
    """With the context, ours unless told otherwise, in its properties."""
    properties = dict(message.properties)
    propagate.inject(properties, context=where)
    return replace(message, properties=properties)
