"""Bodies with a type: values to bytes, bytes to what a listener asks for. JSON by msgspec and pydantic, msgpack too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar, get_args

import msgspec

from aiorocket.errors import BodyError, UsageError
from aiorocket.model import OutgoingMessage

__all__ = ("CONTENT_TYPE", "JSON", "Body", "BodyT", "Carrier", "decoder", "encode_value")

#: The property that says what a body is, as Spring's producers write it. A body without one is taken for JSON.
CONTENT_TYPE = "contentType"
JSON = "application/json"
#: msgspec's and pydantic's errors are ValueErrors; msgspec's of a body that is nested too deep is the other.
_UNREADABLE = (ValueError, RecursionError)
_MOST_ERRORS = 20
_MSGPACK = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")


class Carrier(Protocol):
    """A message."""

    @property
    def body(self) -> bytes: ...
    @property
    def content_type(self) -> str | None: ...


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Model(Protocol):
    """Of pydantic, which need not be installed."""

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray) -> Any: ...
    def model_dump_json(self) -> str: ...


#: What ``send`` takes, and the first parameter of a listener may be annotated with.
Body = bytes | bytearray | memoryview | Mapping[str, Any] | msgspec.Struct | _Dataclass | _Model
BodyT = TypeVar("BodyT", bound=Body)


def encode_value(body: object) -> bytes:
    """As JSON. UsageError for what is neither a dict nor a dataclass, msgspec's Struct nor a model of pydantic."""
    kind = type(body)
    try:
        if hasattr(kind, "model_validate_json") and hasattr(body, "model_dump_json"):
            return str(body.model_dump_json()).encode()
        if isinstance(body, dict | msgspec.Struct) or (dataclasses.is_dataclass(kind) and kind is not OutgoingMessage):
            return msgspec.json.encode(body)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"the body, a {kind.__name__}, cannot be written as JSON: {error}") from error
    raise UsageError(
        f"the body must be bytes, not {kind.__name__}: encode it first (dict, dataclass, msgspec Struct and pydantic "
        "model are written as JSON)"
    )


@lru_cache(maxsize=256)
def decoder(wanted: Any) -> Callable[[Carrier], Any]:
    """``decode(message)``: the value of type ``wanted``, or BodyError. The content type counts for what is no JSON.
    UsageError for a type that cannot be read."""
    if wanted is bytes:
        return lambda message: message.body
    if _is_model(wanted):
        from pydantic import TypeAdapter  # its user has it

        adapter: TypeAdapter[Any] = TypeAdapter(wanted)
        json: Callable[[bytes], Any] = adapter.validate_json
        convert: Callable[[Any], Any] | None = adapter.validate_python
    else:
        try:
            json, convert = msgspec.json.Decoder(wanted).decode, None
        except (TypeError, NotImplementedError) as error:
            raise UsageError(f"a listener cannot take {_name(wanted)} from a body: {error}") from error

    def decode(message: Carrier) -> Any:
        body = message.body
        try:
            return json(body)
        except _UNREADABLE as error:  # no msgpack of an object is JSON by chance
            kind = message.content_type
            trouble: Exception = error
        if kind is not None and kind.partition(";")[0].strip().lower() in _MSGPACK:
            try:
                return convert(msgspec.msgpack.decode(body)) if convert else msgspec.msgpack.decode(body, type=wanted)
            except _UNREADABLE as error:
                trouble = error
        written = "" if kind is None else f", {CONTENT_TYPE} {kind:.60}"
        said, cause = _said(trouble)
        raise BodyError(f"the body of {len(body)} bytes{written} is no {_name(wanted)}: {said}") from cause

    return decode


def _said(trouble: Exception) -> tuple[str, Exception | None]:
    """What was wrong, and the error if it is one to be shown. Pydantic's quotes the body, which belongs in no log, and
    has a paragraph for each item of a list: of a body of 3 MB 170 MB of text."""
    pydantics: Any = trouble  # perhaps; it is imported by those who use it
    if not hasattr(trouble, "error_count"):
        return f"{trouble!s:.2000}", trouble
    if (count := pydantics.error_count()) > _MOST_ERRORS:
        return f"{count} errors", None
    found = pydantics.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'all of it'}: {each['msg']}" for each in found)[:2000], None


def _is_model(wanted: Any) -> bool:
    return hasattr(wanted, "model_validate_json") or any(map(_is_model, get_args(wanted)))


def _name(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) else str(wanted)
