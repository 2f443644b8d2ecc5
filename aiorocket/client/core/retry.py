"""What a failed send means: may the message be stored, and is another attempt right? One table, with the reasons.

The codes that go to another broker are Java's list, and 29: so brokers of 5.x refuse a queue that its topic has no more
(4.9 by a 1, which is retried as well). What may be stored is decided the careful way round: only an answer that comes
before anything is appended proves that the message is not there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from aiorocket.errors import (
    BackPressureError,
    BrokerBusyError,
    ConnectionLostError,
    NotConnectedError,
    RemoteError,
    RequestTimeoutError,
)
from aiorocket_protocol import ResponseCode

__all__ = ("BUSY_CODES", "NO_BROKERS", "NO_NAMESERVER", "STORED_CODES", "Verdict", "judge", "remote_error", "unreached")


class Verdict(NamedTuple):
    """``retry``: another attempt may succeed. ``counts``: it uses up one of the configured retries. ``wait``: not at
    once. ``stale_route``: ask the name server first. ``may_be_stored``: the broker may have the message."""

    retry: bool
    may_be_stored: bool
    counts: bool = True
    wait: bool = False
    stale_route: bool = False


#: Answers that carry a receipt: stored, with or without every promise kept.
STORED_CODES: Final = frozenset((0, 10, 11, 12))

#: Answers that say "not now": nothing was appended.
BUSY_CODES: Final = frozenset(
    (int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.SERVICE_NOT_AVAILABLE), int(ResponseCode.FLOW_CONTROL))
)

_BUSY = Verdict(True, False, wait=True)
_ELSEWHERE = Verdict(True, False, stale_route=True)
_REFUSED = Verdict(False, False)

_BY_CODE: Final[dict[int, Verdict]] = {
    # Any exception in the broker ends as SYSTEM_ERROR, also one after the append.
    ResponseCode.SYSTEM_ERROR: Verdict(True, True),
    ResponseCode.SYSTEM_BUSY: _BUSY,
    ResponseCode.SERVICE_NOT_AVAILABLE: _BUSY,
    ResponseCode.FLOW_CONTROL: _BUSY,
    # The route is out of date: the topic, the right to write or the queue has gone from that broker.
    ResponseCode.TOPIC_NOT_EXIST: _ELSEWHERE,
    ResponseCode.NO_PERMISSION: _ELSEWHERE,
    ResponseCode.INVALID_PARAMETER: _ELSEWHERE,
    ResponseCode.NO_BUYER_ID: Verdict(True, False),
    ResponseCode.NOT_IN_CURRENT_UNIT: Verdict(True, False),
    # Checked before anything is stored, and another broker would say the same.
    ResponseCode.MESSAGE_ILLEGAL: _REFUSED,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: _REFUSED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: _REFUSED,
    ResponseCode.GO_AWAY: _ELSEWHERE,  # the broker is shutting down and took nothing
}

_UNKNOWN_CODE = Verdict(False, True)

#: How the access control of 4.9 begins what it answers as a SYSTEM_ERROR; it asks before anything is stored.
_ACL_REFUSAL = "org.apache.rocketmq.acl.common.AclException"


def judge(error: Exception) -> Verdict:
    """The verdict on one failed attempt. An error nobody foresaw counts as maybe stored and is not retried."""
    if isinstance(error, RemoteError):
        if error.code == ResponseCode.SYSTEM_ERROR and error.remark.startswith(_ACL_REFUSAL):
            return _REFUSED
        return _BY_CODE.get(error.code, _UNKNOWN_CODE)
    if isinstance(error, NotConnectedError):
        # Nothing was written. The broker may be restarting, so the time that is left is used, whatever `retries` says.
        return Verdict(True, False, counts=False, wait=True, stale_route=True)
    if isinstance(error, ConnectionLostError):
        return Verdict(True, True, stale_route=True)
    if isinstance(error, RequestTimeoutError):
        return Verdict(True, True)
    if isinstance(error, BackPressureError):
        return Verdict(True, False, wait=True)
    return _UNKNOWN_CODE


def remote_error(code: int, remark: str | None, *, request: str, address: str) -> RemoteError:
    """The exception for an answer with ``code``."""
    kind = BrokerBusyError if code in BUSY_CODES else RemoteError
    return kind(code, remark, request=request, address=address)


#: What to do when no name server answers.
NO_NAMESERVER = (
    "Does one run there (`aiorocket standalone` starts one), or are others meant (--nameserver, nameservers=, "
    "AIOROCKET_NAMESERVER)?"
)
#: What to do when one answers and knows of no broker, or cannot say.
NO_BROKERS = "The brokers it knows are those of `aiorocket cluster list`"


def unreached(address: str, cause: str, *, known: bool) -> NotConnectedError:
    """The error of a connection that was not made; an empty ``cause`` is time. One to an address that is not ``known``,
    neither given by the user nor ever reached, may be at another place from here."""
    said = cause or f"no connection to {address} in time: is it up, and reachable from here"
    if not known and not address.startswith("unix:"):
        said += (
            "; never reached so far: when a broker registered this address and has another from here, say so by "
            "address_map= of ClientConfig (--address-map)"
        )
    return NotConnectedError(said)
