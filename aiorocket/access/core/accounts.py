"""Who there is: users with their secrets and rights, those of a file and those that administrators made."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiorocket.access.core.addresses import check_addresses, matches_any
from aiorocket.access.core.rights import Entry, Rights, parse_actions, parse_resource
from aiorocket_protocol import EXT_UNIQUE_KEY_QUERY, ProtocolError, RemotingCommand
from aiorocket_protocol.signing import ACCESS_KEY, SIGNATURE, Signer

__all__ = ("Account", "Accounts", "FromFile", "SignIn", "entry_from_plain", "entry_to_plain", "merged")


@dataclass(frozen=True, slots=True)
class Account:
    """A user. ``admin`` may do everything (RocketMQ's Super user). Requests in its name from ``trusted`` addresses need
    no signature, and no right."""

    name: str
    secret: str = field(repr=False)
    admin: bool = False
    enabled: bool = True
    trusted: tuple[str, ...] = ()
    rights: Rights = field(default_factory=Rights)

    def count(self) -> int:
        """Entries and addresses."""
        return self.rights.count() + len(self.trusted)


class FromFile(NamedTuple):
    """What an access file says. ``trusted`` addresses need no user at all."""

    accounts: Mapping[str, Account]
    trusted: tuple[str, ...] = ()


class SignIn(NamedTuple):
    """Who sent a request. Without ``account`` it is nobody known and ``refusal`` says why, or the address is
    trusted."""

    name: str
    account: Account | None
    refusal: str | None = None
    trusted: bool = False


class Accounts:
    """All users of a server. Those of the file cannot be changed but in it; they count where both have a name."""

    def __init__(self, file: FromFile | None = None) -> None:
        #: Differs from the saved one when there is something to save.
        self.version = 0
        self._made: dict[str, Account] = {}
        #: Entries of those that were made, with their addresses.
        self.entries = 0
        self._file = file if file is not None else FromFile({})
        self._on_change: list[Callable[[], None]] = []
        #: Keys of signatures by user, made when they are first needed.
        self._signers: dict[str, Signer] = {}
        #: For users that do not exist: to find that out takes as long as to find a wrong signature.
        self._nobody = Signer("", "nobody")

    def renew(self, file: FromFile) -> None:
        """The file was read again."""
        self._file = file
        self._signers.clear()
        self._tell()

    def get(self, name: str) -> Account | None:
        return self._file.accounts.get(name) or self._made.get(name)

    def all(self) -> list[Account]:
        return [account for _, account in sorted({**self._made, **self._file.accounts}.items())]

    def names(self) -> set[str]:
        return self._made.keys() | self._file.accounts.keys()

    def is_fixed(self, name: str) -> bool:
        """Whether it stands in the file."""
        return name in self._file.accounts

    def put(self, account: Account) -> None:
        """Make the user, or change it."""
        if (known := self._made.get(account.name)) is not None:
            self.entries -= known.count()
        self.entries += account.count()
        self._made[account.name] = account
        self._changed(account.name)
        if known is not None:
            self._tell()

    def remove(self, name: str) -> bool:
        account = self._made.pop(name, None)
        if account is not None:
            self.entries -= account.count()
            self._changed(name)
            self._tell()
        return account is not None

    def _changed(self, name: str) -> None:
        self._signers.pop(name, None)
        self.version += 1

    @contextmanager
    def telling(self, *calls: Callable[[], None]) -> Iterator[None]:
        """These are called while a user that there was, or what one may, changes; they must return quickly."""
        self._on_change += calls
        try:
            yield
        finally:
            for call in calls:
                self._on_change.remove(call)

    def _tell(self) -> None:
        for call in self._on_change:
            call()

    # ---- who asks

    def trusts(self, name: str, source: str) -> bool:
        """Whether a request in the name of ``name`` from the address ``source`` needs neither signature nor right."""
        account = self.get(name)
        return matches_any(self._file.trusted, source) or (
            account is not None and account.enabled and matches_any(account.trusted, source)
        )

    def sign_in(self, command: RemotingCommand, fields: Mapping[str, str | None], source: str) -> SignIn:
        """Who sent ``command`` from the address ``source``; ``fields`` are all its fields as text.

        One refusal for unknown users, disabled ones and wrong signatures: which names there are is nobody's business.
        """
        name = fields.get(ACCESS_KEY) or ""
        if matches_any(self._file.trusted, source):
            return SignIn(name, None, trusted=True)
        if not name:
            return SignIn("", None, "it is not signed: AccessKey is missing")
        account = self.get(name)
        if account is not None and account.enabled and matches_any(account.trusted, source):
            return SignIn(name, account, trusted=True)
        signer = self._signer(account)
        good = _is_signed(signer, fields, command.body)
        if (
            not good and EXT_UNIQUE_KEY_QUERY in fields
        ):  # 4.x's servers leave it out of what they check, and some clients do
            rest = {key: value for key, value in fields.items() if key != EXT_UNIQUE_KEY_QUERY}
            good = _is_signed(signer, rest, command.body)
        if account is None or not good or not account.enabled:
            return SignIn(name, None, f"check signature failed for AccessKey {name!r:.100}")
        return SignIn(name, account)

    def _signer(self, account: Account | None) -> Signer:
        if account is None:
            return self._nobody
        signer = self._signers.get(account.name)
        if signer is None:
            signer = self._signers[account.name] = Signer(account.name, account.secret)
        return signer

    # ---- as saved

    def to_dict(self) -> dict[str, Any]:
        return self.later()()

    def later(self) -> Callable[[], dict[str, Any]]:
        """``to_dict`` of now, for another thread: users of 100 entries each take it 0.7 s for 10,000."""
        accounts = list(self._made.values())
        return lambda: {"users": [_to_plain(account) for account in accounts]}

    def load(self, data: Mapping[str, Any]) -> None:
        """What ``to_dict`` gave. ValueError, LookupError or TypeError when it is something else."""
        accounts = [_from_plain(plain) for plain in data["users"]]
        self._made = {account.name: account for account in accounts}
        self.entries = sum(account.count() for account in self._made.values())
        self._signers.clear()


def _is_signed(signer: Signer, fields: Mapping[str, str | None], body: bytes) -> bool:
    try:
        made = signer.signature(fields, body)
    except ProtocolError:  # text that is not Unicode: nobody has signed that
        return False
    claimed = fields.get(SIGNATURE) or ""
    return hmac.compare_digest(made.encode(), claimed.encode(errors="replace"))


def _to_plain(account: Account) -> dict[str, Any]:
    return {
        "name": account.name,
        "secret": account.secret,
        "admin": account.admin,
        "enabled": account.enabled,
        "trusted": list(account.trusted),
        "custom": [entry_to_plain(entry) for entry in account.rights.custom],
        "default": [entry_to_plain(entry) for entry in account.rights.default],
    }


def _from_plain(plain: Mapping[str, Any]) -> Account:
    return Account(
        str(plain["name"]),
        str(plain["secret"]),
        bool(plain["admin"]),
        bool(plain["enabled"]),
        tuple(plain["trusted"]),
        Rights(
            tuple(entry_from_plain(entry) for entry in plain["custom"]),
            tuple(entry_from_plain(entry) for entry in plain["default"]),
        ),
    )


def entry_to_plain(entry: Entry) -> dict[str, Any]:
    """As RocketMQ's PolicyEntryInfo has it."""
    return {
        "resource": str(entry.resource),
        "actions": list(entry.actions),
        "sourceIps": list(entry.sources),
        "decision": "Allow" if entry.allow else "Deny",
    }


def entry_from_plain(plain: Mapping[str, Any]) -> Entry:
    """The opposite. ValueError says what is wrong with it."""
    resource = parse_resource(str(plain.get("resource") or ""))
    if resource is None:
        raise ValueError(
            f"resource {str(plain.get('resource'))!r:.200}: Topic:NAME, Group:NAME or Cluster:NAME, where NAME may be "
            "PREFIX* or *, or * alone"
        )
    actions = parse_actions(_texts(plain, "actions"))
    if actions is None:
        raise ValueError(
            f"actions {plain.get('actions')!r:.200}: one or more of All, Pub, Sub, Create, Update, Delete, Get and List"
        )
    sources = _texts(plain, "sourceIps")
    if (wrong := check_addresses(sources)) is not None:
        raise ValueError(wrong)
    decision = str(plain.get("decision") or "").lower()
    if decision not in ("allow", "deny"):
        raise ValueError(f"decision {plain.get('decision')!r:.200}: Allow or Deny")
    return Entry(resource, actions, sources, decision == "allow")


def _texts(plain: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = plain.get(name)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} {value!r:.200}: a list of texts")
    return tuple(item.strip() for item in value)


def merged(entries: Iterable[Entry], new: Iterable[Entry]) -> tuple[Entry, ...]:
    """``entries`` with ``new`` in place of those of the same resource."""
    by_resource = {entry.resource: entry for entry in entries}
    by_resource.update((entry.resource, entry) for entry in new)
    return tuple(by_resource.values())
