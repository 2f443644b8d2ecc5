"""The access file: users with their secrets and what they may, in TOML, or RocketMQ 4's plain_acl.yml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from aiorocket.access.core.accounts import Account, FromFile, entry_from_plain
from aiorocket.access.core.addresses import check_addresses
from aiorocket.access.core.rights import Entry, Rights, entry_of_permission
from aiorocket.config.credentials import check_credentials
from aiorocket.errors import ConfigError
from aiorocket.runtime.disk import Disk

__all__ = ("LEAST_SECRET", "read_access_file")

#: Characters of a secret, as of RocketMQ 4.
LEAST_SECRET = 7

_USER = (
    "secret", "admin", "enabled", "trusted", "topics", "groups", "default_topic", "default_group", "policies",
)  # fmt: skip
_POLICY = ("resource", "actions", "from", "decision")


def read_access_file(disk: Disk, path: str) -> FromFile:
    """Read ``path`` (blocking, a small file). ConfigError says what is wrong with it and never quotes a secret."""
    try:
        data = disk.read_bytes(path)
    except OSError as error:
        raise ConfigError(f"access file {path!r} cannot be read: {error.strerror or error}") from None
    read = _read_yaml if path.endswith((".yml", ".yaml")) else _read_toml
    try:
        return read(data)
    except ValueError as error:
        raise ConfigError(f"access file {path!r}: {error}") from None


def _read_toml(data: bytes) -> FromFile:
    try:
        plain = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        where = str(error).rpartition("(")[2].rstrip(")") if isinstance(error, tomllib.TOMLDecodeError) else "bytes"
        raise ValueError(f"it is not TOML ({where})") from None  # the whole text of the error may quote a secret
    _known(plain, ("trusted", "users"), "the file")
    users = _table(plain, "users", "the file")
    if not users:
        raise ValueError("it has no users: [users.NAME] with a secret is needed, or nobody could sign in")
    accounts = {name: _account(name, value) for name, value in users.items()}
    return FromFile(accounts, _addresses(plain, "trusted", "the file"))


def _account(name: str, plain: Any) -> Account:
    where = f"user {name!r}"
    if not isinstance(plain, dict):
        raise ValueError(f"{where} is no table: [users.{name}]")
    _known(plain, _USER, where)
    custom = [
        _permission(where, kind, resource, permission)
        for kind, table in (("Topic", "topics"), ("Group", "groups"))
        for resource, permission in _table(plain, table, where).items()
    ]
    custom += [_policy(where, policy) for policy in _list(plain, "policies", where)]
    default = [
        _permission(where, kind, "*", plain[key])
        for kind, key in (("Topic", "default_topic"), ("Group", "default_group"))
        if key in plain
    ]
    return _made(
        where, name, plain.get("secret"), _flag(plain, "admin", False, where), _flag(plain, "enabled", True, where),
        _addresses(plain, "trusted", where), Rights(tuple(custom), tuple(default)),
    )  # fmt: skip


def _made(
    where: str, name: str, secret: Any, admin: bool, enabled: bool, trusted: tuple[str, ...], rights: Rights
) -> Account:
    if not isinstance(secret, str) or len(secret) < LEAST_SECRET:
        raise ValueError(f"{where}: a secret of at least {LEAST_SECRET} characters is needed")
    try:
        check_credentials(name, secret, None, f"{where}: ")
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return Account(name, secret, admin, enabled, trusted, rights)


def _permission(where: str, kind: str, resource: str, permission: Any) -> Entry:
    entry = entry_of_permission(kind, resource, permission) if isinstance(permission, str) else None
    if entry is None:
        raise ValueError(
            f"{where}, {kind.lower()} {resource!r}: {permission!r:.100} is none of PUB, SUB, PUB|SUB, ANY and DENY"
        )
    return entry


def _policy(where: str, plain: Any) -> Entry:
    if not isinstance(plain, dict):
        raise ValueError(f"{where}: a policy is a table: [[users.NAME.policies]]")
    _known(plain, _POLICY, f"{where}, policy")
    try:
        return entry_from_plain({"decision": "Allow", **plain, "sourceIps": plain.get("from")})
    except ValueError as error:
        raise ValueError(f"{where}, policy: {error}") from None


def _known(plain: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(plain) - set(names))
    if unknown:
        raise ValueError(f"{where}: {', '.join(unknown)} is unknown; known: {', '.join(names)}")


def _table(plain: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    value = plain.get(name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {name} is no table")
    return value


def _list(plain: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = plain.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{where}: {name} is no list")
    return value


def _flag(plain: Mapping[str, Any], name: str, default: bool, where: str) -> bool:
    value = plain.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{where}: {name} is true or false")
    return value


def _addresses(plain: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    rules = _list(plain, name, where)
    if not all(isinstance(rule, str) for rule in rules):
        raise ValueError(f"{where}: {name} is a list of addresses")
    if (wrong := check_addresses(rules)) is not None:
        raise ValueError(f"{where}: {name}: {wrong}")
    return tuple(rules)


# ---- RocketMQ 4's file


def _read_yaml(data: bytes) -> FromFile:
    load: Callable[[bytes], Any]
    try:
        from yaml import YAMLError, safe_load

        load = safe_load
    except ImportError:
        raise ValueError("YAML needs the extra 'acl' (pip install 'aiorocketmq[acl]'); TOML needs nothing") from None
    try:
        plain = load(data)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"it is not YAML{line}") from None
    if not isinstance(plain, dict):
        raise ValueError("it has no accounts")
    accounts = [_plain_account(account) for account in _list(plain, "accounts", "the file")]
    if not accounts:
        raise ValueError("it has no accounts")
    trusted = _addresses(plain, "globalWhiteRemoteAddresses", "the file")
    return FromFile({account.name: account for account in accounts}, trusted)


def _plain_account(plain: Any) -> Account:
    if not isinstance(plain, dict) or not plain.get("accessKey"):
        raise ValueError("an account without accessKey")
    name = str(plain["accessKey"])
    where = f"account {name!r}"
    custom = []
    for kind, key in (("Topic", "topicPerms"), ("Group", "groupPerms")):
        for line in _list(plain, key, where):
            resource, _, permission = str(line).partition("=")
            custom.append(_permission(where, kind, resource.strip(), permission))
    default = [
        _permission(where, kind, "*", str(plain[key]))
        for kind, key in (("Topic", "defaultTopicPerm"), ("Group", "defaultGroupPerm"))
        if plain.get(key)
    ]
    white = str(plain.get("whiteRemoteAddress") or "")
    # A comma within braces is of one address: 10.0.0.{1,2}.
    addresses = [white] if "{" in white else [part.strip() for part in white.split(",") if part.strip()]
    trusted = _addresses({"whiteRemoteAddress": addresses}, "whiteRemoteAddress", where)
    admin = _flag(plain, "admin", False, where)
    rights = Rights(tuple(custom), tuple(default))
    return _made(where, name, str(plain.get("secretKey") or ""), admin, True, trusted, rights)
