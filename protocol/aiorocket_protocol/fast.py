"""The fast lane: compiled twins of a few functions, where the distribution aiorocketmq-speedups is installed.

A twin answers for plain input what the pure function would and hands everything else to it, so it makes no difference
but speed. With AIOROCKET_SPEEDUPS=0 in the environment that distribution says of itself that it is not to be used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ("PURE", "SPEEDUPS", "compiled", "twin")

F = TypeVar("F", bound=Callable[..., Any])

#: What a twin takes, answers and calls: those of another version are not used.
_INTERFACE = 9


def _found() -> Any:
    try:
        import aiorocketmq_speedups
    except ImportError:
        return None
    # An empty directory of that name, such as an uninstall may leave, can be imported too.
    return aiorocketmq_speedups if getattr(aiorocketmq_speedups, "INTERFACE", None) == _INTERFACE else None


_module = _found()
#: Version of the compiled functions in use; None without them.
SPEEDUPS: str | None = None if _module is None else _module.__version__
#: The pure functions that have a twin in use.
PURE: dict[str, Callable[..., Any]] = {}


def compiled(name: str) -> Any:
    """What is compiled for more than one function, None without it. Whoever asks has the pure way too."""
    return getattr(_module, name, None)


def twin(pure: F) -> F:
    """The compiled function of this name, with ``pure`` for what it leaves; ``pure`` itself when there is none."""
    name = pure.__name__
    if _module is None or not _module.bind(name, pure):
        return pure
    PURE[name] = pure
    compiled: F = getattr(_module, name)
    return compiled
