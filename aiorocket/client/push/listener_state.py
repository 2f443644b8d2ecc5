"""Listeners that share something with their application: a parameter named ``state`` gets what ``include`` was given.

The name is the rule, and the only one: ``async def on_paid(message, state)``. Annotations are not looked at, so nothing
has to be imported for them to be resolved, and the second parameter of a listener in status mode (``context``) is never
taken for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from aiorocket.client.push.router import Listener
from aiorocket.errors import UsageError

__all__ = ("bind_state", "check_state", "takes_state")

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def takes_state(handler: Callable[..., Any]) -> bool:
    """Has it a parameter named ``state``?"""
    return _parameter(handler) is not None


def bind_state(listener: Listener, state: object) -> Listener:
    """The listener with ``state`` given to a handler that takes it, itself for any other. UsageError when the handler
    cannot do without and ``state`` is None."""
    if state is None:
        check_state(listener)
        return listener
    if not takes_state(listener.handler):
        return listener
    # A partial costs no coroutine of its own per message.
    return replace(listener, handler=partial(listener.handler, state=state))


def check_state(listener: Listener) -> None:
    """UsageError for a handler that still needs a state: it would fail on each message."""
    parameter = _parameter(listener.handler)
    if parameter is not None and parameter.default is inspect.Parameter.empty:
        name = getattr(listener.handler, "__name__", repr(listener.handler))
        raise UsageError(
            f"listener {name!r} of topic {listener.topic!r} takes a state: give it one with "
            "Client.include(router, state=...)"
        )


def _parameter(handler: Callable[..., Any]) -> inspect.Parameter | None:
    try:
        parameter = inspect.signature(handler).parameters.get("state")
    except (TypeError, ValueError):  # a callable that does not tell
        return None
    return parameter if parameter is not None and parameter.kind in _BY_NAME else None
