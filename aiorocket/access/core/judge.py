"""May this request be served? The one decision that everything else here is for."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from aiorocket.access.core.accounts import Accounts
from aiorocket.access.core.requests import RecordAt, names_many, want_of_record, wants_of
from aiorocket.access.core.rights import Want, decide
from aiorocket_protocol import RemotingCommand

__all__ = ("Verdict", "judge", "judging", "may_send")

#: Bytes of a body of names that is read at once, and entries that are looked at in a turn: some 5 ms. To read a name
#: takes as long as to look at two, to look at an address that an entry names as to look at four.
_AT_ONCE, _A_TURN, _A_NAME, _AN_ADDRESS = 64 << 10, 8_000, 2, 4


class Verdict(NamedTuple):
    """``refusal`` is why not. ``name`` is whose AccessKey the request carries, proven or not."""

    name: str
    refusal: str | None
    wants: tuple[Want, ...] = ()


def judge(
    accounts: Accounts, command: RemotingCommand, source: str, cluster: str, record_at: RecordAt = lambda place: None
) -> Verdict:
    """Whether a server of ``cluster`` may serve ``command``, which came from the address ``source``. ProtocolError for
    a command that cannot be read; errors of ``record_at`` pass."""
    work = judging(accounts, command, source, cluster, record_at)
    while True:
        try:
            next(work)
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict


def judging(
    accounts: Accounts, command: RemotingCommand, source: str, cluster: str, record_at: RecordAt
) -> Generator[None, None, Verdict]:
    """``judge``: yields wherever a request with many names lets others have their turn."""
    fields = command.ext_fields()
    who = accounts.sign_in(command, fields, source)
    if who.refusal is not None or who.trusted:
        return Verdict(who.name, who.refusal)
    account = who.account
    if account is None or account.admin:
        return Verdict(who.name, None)
    wants = wants_of(command, fields, cluster)
    if wants is None:
        return Verdict(who.name, f"{who.name} is no administrator")
    many, turned = names_many(command), False
    done, entries = 0, account.rights.count(_AN_ADDRESS) if many else 0
    if many and len(command.body) > _AT_ONCE:
        turned = True
        yield
    seen: dict[Want, None] = {}
    for want in wants:
        if want not in seen:
            seen[want] = None
            done += entries
            if (refusal := decide(account.rights, want, source)) is not None:
                return Verdict(who.name, f"{who.name} has no permission to access {want} from {source}: {refusal}")
        done += _A_NAME
        if done > _A_TURN:
            done, turned = 0, True
            yield
    if turned and accounts.get(who.name) is not account:  # changed, or gone, meanwhile
        return (yield from judging(accounts, command, source, cluster, record_at))
    # Last: a stranger has nothing read for it. What stands there is not said either, nor which topic that is of.
    record = want_of_record(command, record_at, cluster)
    if record is not None and decide(account.rights, record, source) is not None:
        return Verdict(who.name, f"{who.name} has no permission to access the message that it names by its place")
    return Verdict(who.name, None, tuple(seen) if record is None else (*seen, record))


def may_send(accounts: Accounts, name: str, source: str, topic: str) -> bool:
    """Whether ``name``, who signed a request from the address ``source``, may send to ``topic``: who may not is not
    asked about a transaction in it either, for that question holds the message."""
    if accounts.trusts(name, source):
        return True
    account = accounts.get(name)
    if account is None or not account.enabled:
        return False
    return account.admin or decide(account.rights, Want("Topic", topic, ("Pub",)), source) is None
