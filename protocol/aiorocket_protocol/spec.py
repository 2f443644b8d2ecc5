"""The shape of an entry of ``headers.SPECS``."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ("FieldSpec",)


class FieldSpec(NamedTuple):
    """One field of a header: attribute name, key in extFields, ``str``/``int``/``long``/``bool``, must it be there."""

    name: str
    wire: str
    kind: str
    required: bool
