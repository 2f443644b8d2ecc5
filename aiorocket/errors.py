"""Every exception a user of aiorocket can meet, in one tree.

The class says whose fault it is and what may be done; the text says what happened, with which values, and what to do.
"""

from __future__ import annotations

from aiorocket_protocol import ProtocolError

__all__ = (
    "RocketError",
    "UsageError",
    "BadNameError",
    "WrongLoopError",
    "ConfigError",
    "ProtocolError",
    "NotConnectedError",
    "ConnectionLostError",
    "RequestTimeoutError",
    "BackPressureError",
    "RemoteError",
    "BrokerBusyError",
    "TopicNotFoundError",
    "SendError",
    "BodyError",
    "StoreError",
    "StoreLockedError",
    "StoreFullError",
    "StoreCorruptedError",
)


class RocketError(Exception):
    """Root of the tree. ``ProtocolError`` (bad bytes) stands beside it, because the protocol package stands alone."""


class UsageError(RocketError):
    """The caller broke a rule of the API: a name outside the allowed set, a closed object, a body over the limit."""


class BadNameError(UsageError):
    """A name that no topic, group or tag can have, whatever servers know; or none of those that a file has."""


class WrongLoopError(UsageError):
    """Used in another event loop than the one it was started in, or in a forked child. Nothing was done."""


class ConfigError(UsageError):
    """Settings that cannot hold together, with the two values that contradict each other."""


class NotConnectedError(RocketError):
    """No connection could be made; the request was never written, so nothing can have been stored."""


class ConnectionLostError(RocketError):
    """The connection ended after the request was queued for it: the peer may or may not have acted on it."""


class RequestTimeoutError(RocketError):
    """No answer within the deadline: the peer may or may not have acted on the request."""


class BackPressureError(RocketError):
    """A bound of this process was reached (in-flight requests, bytes waiting to be written) before the deadline."""


class RemoteError(RocketError):
    """The peer answered with a code other than success. ``code`` is the response code, ``remark`` the peer's text."""

    def __init__(self, code: int, remark: str | None, *, request: str = "", address: str = "") -> None:
        self.code = int(code)
        self.remark = remark or ""
        self.address = address
        said = self.remark or "(no remark)"
        super().__init__(f"{address or 'peer'} answered {request or 'the request'} with code {self.code}: {said}")


class BrokerBusyError(RemoteError):
    """SYSTEM_BUSY, SERVICE_NOT_AVAILABLE or FLOW_CONTROL: nothing was stored, trying again later is right."""


class TopicNotFoundError(RocketError):
    """No name server knows a route. The text lists who was asked and whether the broker creates topics by itself."""


class SendError(RocketError):
    """A send that was not acknowledged. ``may_be_stored`` is False only when it is certain that no broker stored it."""

    def __init__(self, text: str, *, may_be_stored: bool) -> None:
        self.may_be_stored = may_be_stored
        super().__init__(f"{text} ({'the message may be stored' if may_be_stored else 'the message is not stored'})")


class BodyError(RocketError):
    """The body of a received message is not what its listener takes."""


class StoreError(RocketError):
    """The store refuses or cannot do what was asked."""


class StoreLockedError(StoreError):
    """Another process (or another broker of this process) holds the data directory."""


class StoreFullError(StoreError):
    """No space left for more messages; reads, commits and deletes go on."""


class StoreCorruptedError(StoreError):
    """Bytes that were durable are not valid any more. Nothing behind them is discarded."""
