"""What a listener may be, for type checkers: ``async def`` or a plain function, of what its decorator hands over.

``async def f(message: Message)`` is one, ``async def f(number: int)`` is not. A parameter named ``state`` may be added.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar, overload

from aiorocket.client.core.typed_body import BodyT
from aiorocket.client.message import Message
from aiorocket.client.push.batch_listener import Batch
from aiorocket.client.push.status import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
)
from aiorocket.client.push.typed import OnBadBody
from aiorocket.config import MissingTopics

__all__ = (
    "ListenerOptions",
    "OrderlyListHandler",
    "OrderlyOptions",
    "TakesBatch",
    "TakesList",
    "TakesOne",
    "TakesOrderlyOne",
)

T = TypeVar("T", contravariant=True)
C = TypeVar("C", contravariant=True)
R = TypeVar("R", covariant=True)


class _Takes(Protocol[T]):
    def __call__(self, handed: T, /) -> object: ...


class _TakesState(Protocol[T]):
    def __call__(self, handed: T, /, *, state: Any) -> object: ...


class _Answers(Protocol[C, R]):
    """In status mode."""

    def __call__(self, messages: list[Message], context: C, /) -> R | Awaitable[R]: ...


class _AnswersState(Protocol[C, R]):
    def __call__(self, messages: list[Message], context: C, /, *, state: Any) -> R | Awaitable[R]: ...


_One = _Takes[Message] | _TakesState[Message]
_List = _Takes[list[Message]] | _TakesState[list[Message]]
_Status = (
    _Answers[ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus | None]
    | _AnswersState[ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus | None]
)
_OrderlyStatus = (
    _Answers[ConsumeOrderlyContext, ConsumeOrderlyStatus | None]
    | _AnswersState[ConsumeOrderlyContext, ConsumeOrderlyStatus | None]
)

#: Without ``batch_size``, and with one (which may be 1).
OneHandler = TypeVar("OneHandler", bound=_One | _Status)
ListHandler = TypeVar("ListHandler", bound=_One | _List | _Status)
OrderlyOneHandler = TypeVar("OrderlyOneHandler", bound=_One | _OrderlyStatus)
OrderlyListHandler = TypeVar("OrderlyListHandler", bound=_One | _List | _OrderlyStatus)
BatchHandler = TypeVar("BatchHandler", bound=_Takes[Batch] | _TakesState[Batch])

P = ParamSpec("P")
A = TypeVar("A")


class TakesOne(Protocol):
    """What ``listener`` without ``batch_size`` decorates: a function of a message, or of what its body is read as."""

    @overload
    def __call__(self, handler: OneHandler, /) -> OneHandler: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[BodyT, P], A], /) -> Callable[Concatenate[BodyT, P], A]: ...


class TakesList(Protocol):
    @overload
    def __call__(self, handler: ListHandler, /) -> ListHandler: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[list[BodyT], P], A], /
    ) -> Callable[Concatenate[list[BodyT], P], A]: ...


class TakesOrderlyOne(Protocol):
    @overload
    def __call__(self, handler: OrderlyOneHandler, /) -> OrderlyOneHandler: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[BodyT, P], A], /) -> Callable[Concatenate[BodyT, P], A]: ...


class TakesBatch(Protocol):
    @overload
    def __call__(self, handler: BatchHandler, /) -> BatchHandler: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[list[BodyT], P], A], /
    ) -> Callable[Concatenate[list[BodyT], P], A]: ...


class _Options(TypedDict, total=False):
    concurrency: int | None
    max_attempts: int | None
    timeout: float | None
    rate_limit: float | None
    start_from: str | datetime | int
    suspend: float | None
    sql: str | None
    missing_topics: MissingTopics | None
    on_bad_body: OnBadBody


class ListenerOptions(_Options, total=False):
    """Those of ``Router.listener`` but ``batch_size``."""

    order_by: Callable[[Message], object] | None


class OrderlyOptions(_Options, total=False):
    """Those of ``Router.orderly`` but ``batch_size``."""

    on_exhausted: Literal["dead_letter", "suspend"]
