"""Users and what they may: ``admin.users``. Our brokers and Apache's from 5.3 on; 4.9 has other requests."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

from aiorocket.client.admin.asking import Answers, Asking, Broker
from aiorocket.errors import RemoteError
from aiorocket_protocol import (
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    UpdateUserRequestHeader,
    decode_plain,
)
from aiorocket_protocol.plain import Plain

__all__ = ("AclEntry", "User", "Users")


class User(NamedTuple):
    """A user on one broker; ``admin`` may do everything."""

    name: str
    broker: str
    admin: bool
    enabled: bool


class AclEntry(NamedTuple):
    """What a user may on one broker: ``resource`` such as Topic:orders, ``actions`` such as Pub, ``decision`` Allow or
    Deny, ``sources`` the addresses it is for."""

    user: str
    broker: str
    resource: str
    actions: tuple[str, ...]
    decision: str
    sources: tuple[str, ...] = ()


class Users:
    """See ``Admin``. Each is done on every master."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking

    async def all(self, part: str = "") -> Answers[User]:
        """Users whose names hold ``part``."""

        async def ask(broker: Broker) -> list[User]:
            rows = await self._rows(broker, RequestCode.AUTH_LIST_USER, ListUsersRequestHeader(part))
            return [
                User(
                    row.text("username"), broker.name, row.text("userType", "").lower() == "super",
                    row.text("userStatus", "").lower() != "disable",
                )
                for row in rows
            ]  # fmt: skip

        answers = await self._ask.each(ask)
        answers.sort()
        return answers

    async def create(self, name: str, password: str, *, admin: bool = False) -> Answers[str]:
        body = {"username": name, "password": password, "userType": "Super" if admin else "Normal"}
        return await self._put(RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader(name), body)

    async def update(
        self, name: str, *, password: str | None = None, admin: bool | None = None, enabled: bool | None = None
    ) -> Answers[str]:
        """Change what is given and nothing else."""
        body: dict[str, Any] = {"username": name}
        if password is not None:
            body["password"] = password
        if admin is not None:
            body["userType"] = "Super" if admin else "Normal"
        if enabled is not None:
            body["userStatus"] = "enable" if enabled else "disable"
        return await self._put(RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader(name), body)

    async def delete(self, name: str) -> Answers[str]:
        return await self._put(RequestCode.AUTH_DELETE_USER, DeleteUserRequestHeader(name), {})

    async def rights(self, part: str = "") -> Answers[AclEntry]:
        """The rights of users whose names hold ``part``."""

        async def ask(broker: Broker) -> list[AclEntry]:
            header = ListAclsRequestHeader(f"User:{part}" if part else None)
            found = []
            for row in await self._rows(broker, RequestCode.AUTH_LIST_ACL, header):
                user = row.text("subject", "").removeprefix("User:")
                for policy in row.items("policies"):
                    for entry in Plain(policy, "policies").items("entries"):
                        plain = Plain(entry, "entries")
                        found.append(
                            AclEntry(
                                user, broker.name, plain.text("resource"), tuple(plain.texts("actions")),
                                plain.text("decision", "Allow"), tuple(plain.texts("sourceIps")),
                            )
                        )  # fmt: skip
            return found

        answers = await self._ask.each(ask)
        answers.sort()
        return answers

    async def grant(
        self, user: str, resource: str, actions: Sequence[str], *, decision: str = "Allow", sources: Sequence[str] = ()
    ) -> Answers[str]:
        """Add rights of ``user`` on ``resource``, or take them away with ``decision="Deny"``."""
        entry: dict[str, Any] = {"resource": resource, "actions": list(actions), "decision": decision}
        if sources:
            entry["sourceIps"] = list(sources)
        body = {"subject": f"User:{user}", "policies": [{"policyType": "Custom", "entries": [entry]}]}
        return await self._put(RequestCode.AUTH_CREATE_ACL, CreateAclRequestHeader(f"User:{user}"), body)

    async def revoke(self, user: str, resource: str | None = None) -> Answers[str]:
        """Drop what was said of ``user`` and ``resource``, or all of it."""
        return await self._put(RequestCode.AUTH_DELETE_ACL, DeleteAclRequestHeader(f"User:{user}", None, resource), {})

    async def _put(self, code: int, header: tuple[Any, ...], body: dict[str, Any]) -> Answers[str]:
        async def ask(broker: Broker) -> list[str]:
            await _managed(self._ask.put(broker.address, code, header, body))
            return [broker.name]

        return await self._ask.each(ask)

    async def _rows(self, broker: Broker, code: int, header: tuple[Any, ...]) -> list[Plain]:
        answer = await _managed(self._ask.call(broker.address, code, header))
        rows = decode_plain(answer.body, answer.serialize_type) if answer.body else None
        return [Plain(row, RequestCode(code).name) for row in rows or ()]


async def _managed(asked: Awaitable[RemotingCommand]) -> RemotingCommand:
    """The answer, or what to do where there are no users."""
    try:
        return await asked
    except RemoteError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        said = f"{error.remark}; it manages no users: ours do with --acl FILE, Apache's from 5.3 on"
        raise RemoteError(error.code, said, address=error.address) from None
