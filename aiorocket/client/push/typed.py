"""Listeners that say what they take: the first parameter's annotation is what a body is read as.

``async def on_order(order: Order)`` gets an Order, ``order: dict`` what the JSON holds; with ``batch_size``, and in
batch listeners, ``orders: list[Order]``. A further parameter of type Message (a Batch, with several) gets what it came
in.
Annotations are looked at for this only; one that cannot be resolved and ends with Message or Batch is what it says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from functools import update_wrapper
from typing import Any, ForwardRef, Literal, TypeVar, get_args, get_origin

from aiorocket.client.core.typed_body import decoder
from aiorocket.client.exits import DeadLetter, Skip
from aiorocket.client.message import Message
from aiorocket.client.push.batch_listener import Batch, part_of
from aiorocket.client.push.status import Handler, takes_context
from aiorocket.errors import BodyError, UsageError

__all__ = ("OnBadBody", "TypedHandler", "TypedListHandler", "typed")

#: What becomes of a message whose body cannot be read: "dead_letter" with the reason, "skip", or "raise", which is the
#: failure of its listener (a retry, until its attempts are used up).
OnBadBody = Literal["dead_letter", "skip", "raise"]

_UNKNOWN = object()
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def typed(
    handler: Callable[..., Any], many: bool, on_bad_body: OnBadBody, *, listed: bool = False
) -> TypedHandler | None:
    """``handler`` as one of messages (of a Batch, with ``many``; of a list, with ``listed``); None when it takes them
    as they are. UsageError for an annotation that no body can be read as."""
    if on_bad_body not in get_args(OnBadBody):
        raise UsageError(f"on_bad_body={on_bad_body!r}: 'dead_letter', 'skip' or 'raise'")
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # a callable that does not tell
        return None
    if not parameters or parameters[0].kind not in _POSITIONAL:
        return None
    names = _names_of(handler)
    wanted = _resolved(parameters[0], names)
    if _is_carrier(wanted) or (_is_bare(wanted) and (many or listed or takes_context(handler))):
        return None
    if wanted is _UNKNOWN:
        raise UsageError(
            f"listener {getattr(handler, '__name__', handler)!r}: {parameters[0].annotation!r}, what its first "
            "parameter takes, cannot be found: import it at the top of the module, not under TYPE_CHECKING"
        )
    if many:
        arguments = get_args(wanted)
        if get_origin(wanted) not in (list, Sequence) or len(arguments) != 1:
            raise UsageError(f"several messages at once: list[...] is needed, not {wanted}")
        wanted = arguments[0]
    carrier = [each.name for each in parameters[1:] if _carries(each, names)]
    kind = TypedListHandler if many else TypedHandler
    return kind(handler, wanted, carrier[0] if carrier else None, on_bad_body)


def _names_of(handler: Callable[..., Any]) -> dict[str, Any]:
    """What annotations of it are looked up in."""
    function = inspect.unwrap(getattr(handler, "func", handler))
    if not hasattr(function, "__globals__"):  # a method, or an object that is called
        function = getattr(function, "__func__", type(function).__call__)
    found = dict(getattr(function, "__globals__", {}))
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not there yet
            continue
    return found


def _resolved(parameter: inspect.Parameter, names: dict[str, Any]) -> Any:
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        return annotation
    try:
        found = eval(annotation, names)
        return eval(found, names) if isinstance(found, str) else found  # quoted, where all are text
    except Exception:  # noqa: BLE001 - whatever an annotation of somebody else does
        return Message if annotation.rstrip("]\"'").endswith(("Message", "Batch")) else _UNKNOWN


def _carries(parameter: inspect.Parameter, names: dict[str, Any]) -> bool:
    annotation = _resolved(parameter, names)
    return isinstance(annotation, type) and issubclass(annotation, Message | Batch)


def _is_bare(annotation: Any) -> bool:
    """A list that does not say of what."""
    return (get_origin(annotation) or annotation) in (list, Sequence) and not get_args(annotation)


def _is_carrier(annotation: Any) -> bool:
    """Does it want messages as they are? So does what says nothing, and what is no type."""
    if annotation in (inspect.Parameter.empty, Any, object) or isinstance(annotation, TypeVar):
        return True
    if isinstance(annotation, type) and (
        issubclass(annotation, Message | Batch) or getattr(annotation, "_is_protocol", False)
    ):
        return True
    arguments = get_args(annotation)
    if get_origin(annotation) in (list, Sequence) and arguments and isinstance(arguments[0], str | ForwardRef):
        named = arguments[0] if isinstance(arguments[0], str) else arguments[0].__forward_arg__
        return named.endswith("Message")  # list["Message"], under TYPE_CHECKING
    return any(_is_carrier(each) for each in arguments if each is Message or get_origin(each))


class TypedHandler:
    """``handler`` of a value as one of a message. It looks like it, so that its parameters can still be looked at."""

    def __init__(self, function: Callable[..., Any], wanted: Any, carrier: str | None, on_bad_body: OnBadBody) -> None:
        self.handler: Handler = function
        self.decode = decoder(wanted)
        #: The parameter that gets the message.
        self.carrier = carrier
        self._on_bad_body = on_bad_body
        update_wrapper(self, function)

    async def __call__(self, message: Any, /, **state: Any) -> object:
        try:
            value = self.decode(message)
        except BodyError as error:
            raise self.end_of(error) from error
        if self.carrier is not None:
            state[self.carrier] = message
        return await self.handler(value, **state)

    def end_of(self, error: BodyError) -> Exception:
        if self._on_bad_body == "raise":
            return error
        return Skip(str(error)) if self._on_bad_body == "skip" else DeadLetter(str(error))

    def calling(self, wrap: Callable[[Handler], Handler]) -> TypedHandler:
        """The same with ``wrap(handler)``."""
        other = copy(self)
        other.handler = wrap(self.handler)
        return other


class TypedListHandler(TypedHandler):
    """``handler`` of a list of values as one of a Batch; what cannot be read is not in the list."""

    async def __call__(self, batch: Any, /, **state: Any) -> object:
        values, places = [], []
        for index, message in enumerate(batch):
            try:
                values.append(self.decode(message))
                places.append(index)
            except BodyError as error:
                batch.mark([index], self.end_of(error))
        if not values:
            return None
        if self.carrier is not None:
            state[self.carrier] = part_of(batch, places)
        return await self.handler(values, **state)
