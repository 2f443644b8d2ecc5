"""May this request be served? The one decision that everything else here is for."""

from __future__ import annotations

from typing import NamedTuple

from aiorocket.access.core.accounts import Accounts
from aiorocket.access.core.requests import RecordAt, want_of_record, wants_of
from aiorocket.access.core.rights import Want, decide
from aiorocket_protocol import RemotingCommand

__all__ = ("Verdict", "judge", "may_send")


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
    for want in wants:
        if (refusal := decide(account.rights, want, source)) is not None:
            return Verdict(who.name, f"{who.name} has no permission to access {want} from {source}: {refusal}", wants)
    # Last: a stranger has nothing read for it. What stands there is not said either, nor which topic that is of.
    record = want_of_record(command, record_at, cluster)
    if record is not None and decide(account.rights, record, source) is not None:
        return Verdict(who.name, f"{who.name} has no permission to access the message that it names by its place")
    return Verdict(who.name, None, wants if record is None else (*wants, record))


def may_send(accounts: Accounts, name: str, source: str, topic: str) -> bool:
    """Whether ``name``, who signed a request from the address ``source``, may send to ``topic``: who may not is not
    asked about a transaction in it either, for that question holds the message."""
    if accounts.trusts(name, source):
        return True
    account = accounts.get(name)
    if account is None or not account.enabled:
        return False
    return account.admin or decide(account.rights, Want("Topic", topic, ("Pub",)), source) is None
