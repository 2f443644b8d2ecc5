"""The one exception of this package."""

from __future__ import annotations

__all__ = ("ProtocolError",)


class ProtocolError(ValueError):
    """Bytes or values that the protocol does not allow.

    ``where`` names the place ("frame", "SendMessageRequestHeaderV2.queueId", "record at 4096"), ``what`` says what was
    found there and what was expected. The text is "where: what".
    """

    def __init__(self, what: str, *, where: str) -> None:
        super().__init__(f"{where}: {what}")
        self.what = what
        self.where = where

    def __reduce__(self) -> tuple[object, ...]:
        # The default would call the class with the joined text and without `where`.
        return _rebuild, (type(self), self.what, self.where)


def _rebuild(cls: type[ProtocolError], what: str, where: str) -> ProtocolError:
    return cls(what, where=where)
