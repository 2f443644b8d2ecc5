"""What somebody may do: resources, actions, and which entry of a policy decides.

The words are RocketMQ 5's: a resource is ``Topic:orders``, ``Group:bill*``, ``Cluster:*`` or ``*``; an action is
``Pub``, ``Sub``, ``Create`` and so on; an entry allows or denies actions on a resource, perhaps from some addresses
only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aiorocket.access.core.addresses import matches_any

__all__ = (
    "ACTIONS",
    "Entry",
    "Resource",
    "Rights",
    "Want",
    "decide",
    "entry_of_permission",
    "parse_actions",
    "parse_resource",
)

ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
#: In an entry: every action.
ALL = "All"
_KINDS = ("Topic", "Group", "Cluster")
#: How narrowly a resource is named. The narrowest entry that fits decides.
_EVERYTHING, _KIND, _PREFIX, _NAME = range(4)

#: RocketMQ 4's permissions, as they stand in its files.
_PERMISSIONS = {
    "PUB": ("Pub",),
    "SUB": ("Sub",),
    "PUB|SUB": ("Pub", "Sub"),
    "SUB|PUB": ("Pub", "Sub"),
    "ANY": (ALL,),
}
DENY = "DENY"


class Want(NamedTuple):
    """What a request needs: one of ``actions`` on the topic, group or cluster ``name``."""

    kind: str
    name: str
    actions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}:{self.name[:200]} ({' or '.join(self.actions)})"


class Resource(NamedTuple):
    """What an entry is about; ``name`` is a whole name, the beginning of names, or of no meaning."""

    kind: str
    name: str
    width: int

    def fits(self, want: Want) -> bool:
        if self.width == _EVERYTHING:
            return True
        if self.kind != want.kind:
            return False
        if self.width == _PREFIX:
            return want.name.startswith(self.name)
        return self.width == _KIND or want.name == self.name

    def __str__(self) -> str:
        if self.width == _EVERYTHING:
            return "*"
        return f"{self.kind}:{self.name}{'' if self.width == _NAME else '*'}"


def parse_resource(text: str) -> Resource | None:
    """``Topic:NAME``, ``Group:PREFIX*``, ``Cluster:*`` or ``*``; None when it is none of them."""
    text = text.strip()
    if text == "*":
        return Resource("", "", _EVERYTHING)
    kind, colon, name = text.partition(":")
    kind = kind.capitalize()
    if kind not in _KINDS or not colon or not name:
        return None
    if name == "*":
        return Resource(kind, "", _KIND)
    if name.endswith("*"):
        return Resource(kind, name.rstrip("*"), _PREFIX)
    return Resource(kind, name, _NAME)


class Entry(NamedTuple):
    """``sources`` are the addresses it is for; none means all."""

    resource: Resource
    actions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    allow: bool = True

    def fits(self, want: Want, source: str) -> bool:
        if not self.resource.fits(want):
            return False
        if ALL not in self.actions and not any(action in self.actions for action in want.actions):
            return False
        return not self.sources or matches_any(self.sources, source)


class Rights(NamedTuple):
    """The entries of one user. Those of ``default`` count where none of ``custom`` fits."""

    custom: tuple[Entry, ...] = ()
    default: tuple[Entry, ...] = ()

    def count(self, an_address: int = 1) -> int:
        """Entries, of whose addresses each counts as so many more."""
        both = (*self.custom, *self.default)
        return len(both) + an_address * sum(len(entry.sources) for entry in both)


def decide(rights: Rights, want: Want, source: str) -> str | None:
    """Why somebody with ``rights`` at the address ``source`` may not have ``want``; None when they may.

    The entry that names the resource most narrowly decides; of two that are alike, the one that denies.
    """
    for entries in (rights.custom, rights.default):
        fitting = [entry for entry in entries if entry.fits(want, source)]
        if not fitting:
            continue
        width = max((entry.resource.width, len(entry.resource.name)) for entry in fitting)
        for entry in fitting:
            if (entry.resource.width, len(entry.resource.name)) == width and not entry.allow:
                return f"{entry.resource} denies it"
        return None
    return "no policy allows it"


def entry_of_permission(kind: str, name: str, permission: str) -> Entry | None:
    """RocketMQ 4's ``orders=PUB|SUB`` for a topic or a group (which is called ``*`` for the default); None when
    ``permission`` is not PUB, SUB, PUB|SUB, ANY or DENY."""
    resource = parse_resource(f"{kind}:{name}")
    permission = permission.replace(" ", "").upper()
    if resource is None:
        return None
    if permission == DENY:
        return Entry(resource, (ALL,), allow=False)
    actions = _PERMISSIONS.get(permission)
    return Entry(resource, actions) if actions is not None else None


def parse_actions(names: Iterable[str]) -> tuple[str, ...] | None:
    """Actions by name, in any case; None when one of them is no action, or there is none."""
    known = {name.lower(): name for name in (*ACTIONS, ALL)}
    found = [known.get(name.strip().lower()) for name in names]
    actions = tuple(dict.fromkeys(name for name in found if name is not None))
    return actions if actions and None not in found else None
