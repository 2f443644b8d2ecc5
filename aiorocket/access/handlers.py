"""Users and their rights by command: RocketMQ 5's codes (3001 to 3010) and 4.9's (50 to 53).

A secret goes in and never comes out: answers leave ``password`` out. What stands in the access file is shown and cannot
be changed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from aiorocket.access.core.accounts import Account, Accounts, entry_from_plain, entry_to_plain, merged
from aiorocket.access.core.addresses import check_addresses
from aiorocket.access.core.rights import ACTIONS, Entry, Rights, entry_of_permission, parse_resource
from aiorocket.access.file import LEAST_SECRET
from aiorocket.config import Limits
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.one_at_a_time import OneAtATime
from aiorocket.remoting.processors import RequestHandler
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    MAX_LENIENT,
    CreateAccessConfigRequestHeader,
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAccessConfigRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    GetAclRequestHeader,
    GetBrokerAclConfigResponseHeader,
    GetUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    bare_list,
    decode_plain,
    encode_body,
)

__all__ = ("AccessHandlers",)

_SUBJECT = "User:"
#: Users and entries that are written in one turn of the loop: some 5 ms.
A_TURN = 1_000


class _RefusedError(Exception):
    """The answer "no", with its remark."""


class AccessHandlers:
    """``save`` makes the accounts durable; an answer comes after it. ``name``, ``cluster`` and ``address`` are the
    server's."""

    def __init__(
        self, accounts: Accounts, save: Callable[[], Awaitable[None]], limits: Limits, name: str, cluster: str,
        address: str,
    ) -> None:  # fmt: skip
        self._accounts = accounts
        self._save = save
        self._limits = limits
        self._server = name, address, cluster

    def codes(self) -> dict[int, RequestHandler]:
        whole = OneAtATime().whole
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self._changing(self._put_config),
            RequestCode.DELETE_ACL_CONFIG: self._changing(self._delete_config),
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self._changing(self._white_addresses),
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self._config_version,
            RequestCode.AUTH_CREATE_USER: self._changing(self._create_user),
            RequestCode.AUTH_UPDATE_USER: self._changing(self._update_user),
            RequestCode.AUTH_DELETE_USER: self._changing(self._delete_user),
            RequestCode.AUTH_GET_USER: self._get_user,
            RequestCode.AUTH_LIST_USER: whole(self._list_users),
            RequestCode.AUTH_CREATE_ACL: self._changing(self._put_acl),
            RequestCode.AUTH_UPDATE_ACL: self._changing(self._put_acl),
            RequestCode.AUTH_DELETE_ACL: self._changing(self._delete_acl),
            RequestCode.AUTH_GET_ACL: self._get_acl,
            RequestCode.AUTH_LIST_ACL: whole(self._list_acls),
        }

    def _changing(self, change: Callable[[RemotingCommand], None]) -> RequestHandler:
        async def handler(_connection: Connection, command: RemotingCommand) -> RemotingCommand:
            try:
                change(command)
            except _RefusedError as error:
                return RemotingCommand.response(ResponseCode.NO_PERMISSION, remark=str(error))
            except ValueError as error:
                return RemotingCommand.response(ResponseCode.INVALID_PARAMETER, remark=str(error))
            await self._save()
            return RemotingCommand.response()

        return handler

    # ---- users

    def _create_user(self, command: RemotingCommand) -> None:
        name = _name(command.read(CreateUserRequestHeader).username)
        if self._accounts.get(name) is not None:
            raise _RefusedError(f"The user is existed: {name}")
        body = _body(command)
        self._put(Account(name, _secret(body.get("password"), name), _is_super(body), _is_enabled(body)))

    def _update_user(self, command: RemotingCommand) -> None:
        account = self._changeable(command.read(CreateUserRequestHeader).username)
        body = _body(command)
        if body.get("password"):
            account = replace(account, secret=_secret(body["password"], account.name))
        if body.get("userType"):
            account = replace(account, admin=_is_super(body))
        if body.get("userStatus"):
            account = replace(account, enabled=_is_enabled(body))
        self._put(account)

    def _delete_user(self, command: RemotingCommand) -> None:
        name = _name(command.read(DeleteUserRequestHeader).username)
        if self._accounts.get(name) is not None:  # as RocketMQ: one that is not there is deleted
            self._accounts.remove(self._changeable(name).name)

    def _get_user(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        account = self._accounts.get(_name(command.read(GetUserRequestHeader).username))
        return _answer(connection, command, _shown(account) if account is not None else None)

    async def _list_users(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        part = command.read(ListUsersRequestHeader).filter or ""
        return await self._listed(connection, command, lambda each: _shown(each) if part in each.name else None)

    # ---- rights

    def _put_acl(self, command: RemotingCommand) -> None:
        account = self._changeable(_user_of(command.read(CreateAclRequestHeader).subject))
        policies = [policy for policy in _list(_body(command), "policies") if isinstance(policy, dict)]
        self._check(account.name, len(policies))
        given = [
            (policy, plain) for policy in policies for plain in _list(policy, "entries") if isinstance(plain, dict)
        ]
        if not given:
            raise ValueError("The body of acl is null: policies with entries are needed")
        self._check(account.name, sum(_count(plain) for _, plain in given))
        new: tuple[list[Entry], list[Entry]] = [], []
        for policy, plain in given:
            new[_is_default(policy.get("policyType"))].append(entry_from_plain(plain))
        self._put(replace(account, rights=Rights(*map(merged, account.rights, new))))

    def _delete_acl(self, command: RemotingCommand) -> None:
        header = command.read(DeleteAclRequestHeader)
        account = self._changeable(_user_of(header.subject))
        rights = Rights()
        if header.resource:
            resource = parse_resource(header.resource)
            custom, default = account.rights
            if _is_default(header.policy_type):
                rights = Rights(custom, tuple(entry for entry in default if entry.resource != resource))
            else:
                rights = Rights(tuple(entry for entry in custom if entry.resource != resource), default)
        self._put(replace(account, rights=rights))

    def _get_acl(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        account = self._accounts.get(_user_of(command.read(GetAclRequestHeader).subject))
        if account is None:
            return RemotingCommand.response(ResponseCode.NO_PERMISSION, remark="The subject is not exist.")
        return _answer(connection, command, _acl(account) if any(account.rights) else None)

    async def _list_acls(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = command.read(ListAclsRequestHeader)
        subject, resource = header.subject_filter or "", header.resource_filter or ""

        def shown(account: Account) -> dict[str, Any] | None:
            acl = _acl(account, resource) if subject in _SUBJECT + account.name else None
            return acl if acl and acl["policies"] else None

        return await self._listed(connection, command, shown)

    # ---- as RocketMQ 4.9 has it

    def _put_config(self, command: RemotingCommand) -> None:
        header = command.read(CreateAccessConfigRequestHeader)
        name = _name(header.access_key)
        old = self._accounts.get(name)
        if old is not None:
            self._changeable(name)
        secret = header.secret_key or (old.secret if old is not None else None)
        white = header.white_remote_address or ""
        lists = white if "{" not in white else "", header.topic_perms or "", header.group_perms or ""
        self._check(name, sum(1 + text.count(",") for text in lists if text))
        trusted = (white,) if "{" in white else tuple(part.strip() for part in white.split(",") if part.strip())
        if (wrong := check_addresses(trusted)) is not None:
            raise ValueError(wrong)
        custom = (
            *_permissions("Topic", header.topic_perms),
            *_permissions("Group", header.group_perms),
        )
        default = (
            *_permissions("Topic", header.default_topic_perm and f"*={header.default_topic_perm}"),
            *_permissions("Group", header.default_group_perm and f"*={header.default_group_perm}"),
        )
        self._put(Account(name, _secret(secret, name), header.admin or False, True, trusted, Rights(custom, default)))

    def _delete_config(self, command: RemotingCommand) -> None:
        self._accounts.remove(self._changeable(command.read(DeleteAccessConfigRequestHeader).access_key).name)

    def _white_addresses(self, _command: RemotingCommand) -> None:
        raise _RefusedError("addresses that need no signature stand in the access file (trusted), and only there")

    def _config_version(self, _connection: Connection, _command: RemotingCommand) -> RemotingCommand:
        name, address, cluster = self._server
        version = f'{{"counter":{self._accounts.version},"timestamp":0}}'
        header = GetBrokerAclConfigResponseHeader(version, name, address, cluster, f'{{"aiorocket":{version}}}')
        return RemotingCommand.response(header=header)

    # ---- what they share

    async def _listed(
        self, connection: Connection, command: RemotingCommand, show: Callable[[Account], dict[str, Any] | None]
    ) -> RemotingCommand:
        """What is to be shown of each user, in turns."""
        kind = connection.reply_type(command)
        written: list[bytes] = []
        looked = 0
        for account in self._accounts.all():
            if (shown := show(account)) is not None:
                written.append(encode_body(shown, kind))
            looked += 1 + account.count()
            if looked >= A_TURN:
                looked = 0
                await asyncio.sleep(0)
        return RemotingCommand.response(body=await in_turns(bare_list(written, kind)) if written else b"")

    def _changeable(self, name: str | None) -> Account:
        account = self._accounts.get(_name(name))
        if account is None:
            raise _RefusedError(f"The user is not exist: {name:.200}" if name else "The subject is not exist.")
        if self._accounts.is_fixed(account.name):
            raise _RefusedError(f"{account.name} stands in the access file: change it there")
        return account

    def _check(self, name: str, count: int) -> None:
        """Before they are read, too: a body holds tens of thousands."""
        if count > (rights := self._limits.rights):
            raise _RefusedError(f"{name} would have {count} entries: the server's limit is rights={rights}")

    def _put(self, account: Account) -> None:
        users, most, known = self._limits.users, self._limits.all_rights, self._accounts.get(account.name)
        if known is None and len(self._accounts.names()) >= users:
            raise _RefusedError(f"no more users: the server's limit users={users} is reached")
        new, had = account.count(), 0 if known is None else known.count()
        if new > had:  # who has too many, from before the limit, can still be disabled, and have less
            self._check(account.name, new)
            if self._accounts.entries + new - had > most:
                why = f"{account.name} gets no more entries: the server's limit all_rights={most} is reached"
                raise _RefusedError(why)
        self._accounts.put(account)


def _answer(connection: Connection, command: RemotingCommand, value: dict[str, Any] | None) -> RemotingCommand:
    body = encode_body(value, connection.reply_type(command)) if value else b""
    return RemotingCommand.response(body=body)


def _body(command: RemotingCommand) -> dict[str, Any]:
    plain = decode_plain(command.body, command.serialize_type, lenient=MAX_LENIENT) if command.body else None
    if not isinstance(plain, dict):
        raise ValueError("the body is no object")
    return plain


def _list(plain: Mapping[str, Any], name: str) -> list[Any]:
    value = plain.get(name)
    return value if isinstance(value, list) else []


def _count(plain: Mapping[str, Any]) -> int:
    """An entry and its addresses; of actions there are as many as an entry can have."""
    return 1 + len(_list(plain, "sourceIps")) + len(_list(plain, "actions")) // (len(ACTIONS) + 2)


def _name(name: str | None) -> str:
    if not name or not name.strip():
        raise ValueError("The username is blank")
    if name != name.strip() or not name.isprintable() or len(name) > 255:
        raise ValueError(f"{name!r:.200} is no name of a user: printable, no blank at its ends, 255 characters at most")
    return name


def _user_of(subject: str | None) -> str:
    if subject is None or not subject.startswith(_SUBJECT):
        raise ValueError(f"subject {subject!r:.200}: User:NAME is needed")
    return subject.removeprefix(_SUBJECT)


def _secret(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) < LEAST_SECRET or not value.isprintable() or value != value.strip():
        raise ValueError(f"the password of {name} needs {LEAST_SECRET} printable characters at least")
    return value


def _is_super(body: Mapping[str, Any]) -> bool:
    return _one_of(body, "userType", ("Super", "Normal"), "Normal") == "Super"


def _is_enabled(body: Mapping[str, Any]) -> bool:
    return _one_of(body, "userStatus", ("enable", "disable"), "enable") == "enable"


def _is_default(policy_type: Any) -> bool:
    return _one_of({"policyType": policy_type}, "policyType", ("Custom", "Default"), "Custom") == "Default"


def _one_of(plain: Mapping[str, Any], name: str, words: Iterable[str], absent: str) -> str:
    value = plain.get(name) or absent
    for word in words:
        if str(value).lower() == word.lower():
            return word
    raise ValueError(f"{name} {value!r:.100}: {' or '.join(words)}")


def _shown(account: Account) -> dict[str, Any]:
    return {
        "username": account.name,
        "userType": "Super" if account.admin else "Normal",
        "userStatus": "enable" if account.enabled else "disable",
    }


def _acl(account: Account, resource: str = "") -> dict[str, Any]:
    policies = []
    for kind, entries in (("Custom", account.rights.custom), ("Default", account.rights.default)):
        shown = [entry_to_plain(entry) for entry in entries if resource in str(entry.resource)]
        if shown:
            policies.append({"policyType": kind, "entries": shown})
    return {"subject": _SUBJECT + account.name, "policies": policies}


def _permissions(kind: str, text: str | None) -> list[Entry]:
    """``a=PUB,b=PUB|SUB``."""
    entries = []
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        resource, _, permission = part.partition("=")
        entry = entry_of_permission(kind, resource.strip(), permission)
        if entry is None:
            raise ValueError(f"{part!r:.200}: NAME=PUB, SUB, PUB|SUB, ANY or DENY")
        entries.append(entry)
    return entries
