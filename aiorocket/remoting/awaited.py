"""How much of requests a server keeps that it has not answered yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket_protocol import EXT_ACCEPT, RemotingCommand

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection

__all__ = ("AwaitedBytes", "shed", "size_of")

_MSGPACK: dict[str, str | None] = {EXT_ACCEPT: "msgpack"}
#: Bytes of what a request waits in, a task or a call to another peer: requests of 19 bytes took 1,900 each.
_A_WAIT = 2048


def size_of(request: RemotingCommand) -> int:
    """Bytes of a request that waits, about, with what waits for it: half a mebibyte may stand in its head as well as in
    its body."""
    size = _A_WAIT + len(request.body) + len(request.fields or "") + len(request.remark or "")
    for name, value in (request.ext or {}).items():
        size += len(name) + len(value or "")
    return size


def shed(request: RemotingCommand) -> None:
    """Keep of a request that waits only what its answer needs: how it may be serialised."""
    request.body, request.fields, request.header, request.remark = b"", None, None, None
    ext = request.ext
    if ext is not None:
        request.ext = _MSGPACK if ext.get(EXT_ACCEPT) == "msgpack" else None


class AwaitedBytes:
    """Requests whose handlers wait for somebody else: a task, another peer. What waits for the disk is counted by the
    store, and handlers that answer at once keep nothing.

    All of them together take ``RemotingConfig.max_in_flight_bytes``, those of one connection a quarter of it. Who would
    pass that is told SYSTEM_BUSY, as by Apache's broker when the queue of a thread pool is full.
    """

    __slots__ = ("_of", "total")

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[Connection, int] = {}

    def begin(self, connection: Connection, size: int) -> str | None:
        """Count a request of ``size`` until ``end``; or, and then nothing is counted, the remark of the refusal."""
        most = connection.config.max_in_flight_bytes
        mine = self._of.get(connection, 0) + size
        if mine * 4 > most or self.total + size > most:
            return (
                "[OVERLOAD]system busy, start flow control for a while: requests that wait for their answers take "
                f"{mine - size} bytes of {connection.peer} and {self.total} in all, with {size} more it would pass the "
                f"limit max_in_flight_bytes={most}, or a quarter of it for one connection"
            )
        self._of[connection] = mine
        self.total += size
        return None

    def end(self, connection: Connection, size: int) -> None:
        """The answer is given, or nobody waits for it any more."""
        self.total -= size
        left = self._of[connection] - size
        if left:
            self._of[connection] = left
        else:
            del self._of[connection]
