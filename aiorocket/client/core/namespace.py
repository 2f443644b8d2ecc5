"""Namespaces: one cluster's topics and groups kept apart by a prefix on the wire.

``ns%orders`` is the topic "orders" of namespace "ns"; of retries and dead letters the outer prefix stays in front:
``%RETRY%ns%billing``. Names that belong to the cluster itself are the same in every namespace.
"""

from __future__ import annotations

from typing import Final

from aiorocket_protocol import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

__all__ = ("holds", "unwrap", "wrap")

_SEPARATOR = "%"
_OUTER: Final = (RETRY_PREFIX, DLQ_PREFIX)
#: Names that belong to the cluster; its topics without a prefix are SYSTEM_TOPICS.
_SYSTEM_PREFIXES: Final = (SYSTEM_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX)


def _split(name: str) -> tuple[str, str]:
    """The outer prefix (or nothing) and the rest."""
    for outer in _OUTER:
        if name.startswith(outer):
            return outer, name[len(outer) :]
    return "", name


def wrap(namespace: str, name: str) -> str:
    """The wire name of the topic or group ``name``. System names, names that carry the namespace already and everything
    in namespace "" stay as they are."""
    if not namespace or not name or name in SYSTEM_TOPICS or name.startswith(_SYSTEM_PREFIXES):
        return name
    outer, rest = _split(name)
    own = namespace + _SEPARATOR
    return name if rest.startswith(own) else outer + own + rest


def holds(namespace: str, name: str) -> bool:
    """Is the topic or group that is called so on the wire one of the namespace? Those of the cluster are in each."""
    return wrap(namespace, name) == name


def unwrap(namespace: str, name: str) -> str:
    """The name without the namespace; names of other namespaces and of none stay as they are."""
    if not namespace:
        return name
    outer, rest = _split(name)
    own = namespace + _SEPARATOR
    return outer + rest[len(own) :] if rest.startswith(own) else name
