"""Where two servers answer one request differently: code, names of the fields, shape of the body; and rules that say
which differences are on purpose."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from aiorocket.errors import ConfigError
from aiorocket_protocol import ProtocolError, fastjson

__all__ = ("Rule", "differences", "said")


class Answer(Protocol):
    """What came back; ``fields`` is what the header said."""

    @property
    def code(self) -> int: ...
    @property
    def fields(self) -> dict[str, str]: ...
    @property
    def body(self) -> bytes: ...


class Rule(NamedTuple):
    """``what`` differs in the answers to ``cases``, and ``why``; ``*`` stands for anything. ``of``: of which versions
    of the other server (the file's ``from``)."""

    of: Sequence[str]
    cases: Sequence[str]
    what: Sequence[str]
    why: str

    def allows(self, case: str, difference: str) -> bool:
        return any(matches(each, case) for each in self.cases) and any(matches(each, difference) for each in self.what)

    @classmethod
    def read(cls, text: str) -> list[Rule]:
        """``[[difference]]`` tables of TOML with from, cases, what and why. ConfigError."""
        try:
            found = tomllib.loads(text).get("difference", [])
            return [cls(each.get("from", ()), each["cases"], each["what"], each["why"]) for each in found]
        except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"not a table of differences: {error!r}") from None


def matches(pattern: str, text: str) -> bool:
    r"""``*`` stands for anything, ``\*`` for itself."""
    parts = (re.escape(part.replace(r"\*", "*")) for part in _ANYTHING.split(pattern))
    return re.fullmatch(".*".join(parts), text, re.DOTALL) is not None


#: Members that are tables: their keys are names of topics, groups and brokers, and masked like values.
_TABLES = {"topicConfigTable", "subscriptionGroupTable", "brokerAddrTable", "clusterAddrTable", "data", "brokerAddrs",
           "offsetTable", "pullOffsetTable", "groupTopicMap"}  # fmt: skip
_PATH = re.compile(r"_/.*")
_ANYTHING = re.compile(r"(?<!\\)\*")


def shape(value: Any, *, table: bool = False) -> Any:
    """What remains when values are masked: kinds and members; of a list or a table the members that any entry has."""
    if isinstance(value, dict):
        if table or (value and not any(str(key)[:1].isalpha() for key in value)):
            return {"*": _merged(value.values())}
        if "consumeStatsList" in value:  # a list of tables of one group each, most without any progress
            progress = [item for each in value["consumeStatsList"] for item in each.values() if item]
            value = {**value, "consumeStatsList": progress}
        return {
            _PATH.sub("_PATH", str(key)): shape(item, table=key in _TABLES)
            for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))
        }
    if isinstance(value, (list, tuple)):
        return [_merged(value)]
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def _merged(values: Iterable[Any]) -> Any:
    merged: Any = None
    for item in map(shape, values):
        merged = {**merged, **item} if isinstance(merged, dict) and isinstance(item, dict) else item
    return merged


def said(answer: Answer | None, exact: str = "") -> dict[str, Any]:
    """Code, names of the fields, one of them with its value, and shape of the body."""
    if answer is None:
        return {"code": "none", "fields": [], "body": "none"}
    found: Any = "none"
    if answer.body:
        try:
            found = shape(fastjson.loads(answer.body))
        except ProtocolError:
            found = "properties" if b"=" in answer.body and b"\0" not in answer.body else "bytes"
    fields = [f"{name}={answer.fields[name]}" if name == exact else name for name in sorted(answer.fields)]
    return {"code": answer.code, "fields": fields, "body": found}


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in _flat(item, f"{path}.{key}").items()} or {path: "{}"}
    if isinstance(value, list):
        return _flat(value[0], f"{path}[]") if value else {f"{path}[]": None}
    return {path: value}


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Of what ``said`` gave: ``code 0/1`` (the first one's first), ``+x`` what only the first has, ``-x`` what only the
    second has."""
    found = [f"code {ours['code']}/{theirs['code']}"] if ours["code"] != theirs["code"] else []
    if not found:
        mine, their = set(ours["fields"]), set(theirs["fields"])
        found += [f"+{name}" for name in sorted(mine - their)] + [f"-{name}" for name in sorted(their - mine)]
        left, right = _flat(ours["body"], "body"), _flat(theirs["body"], "body")
        found += [f"+{name}" for name in sorted(left.keys() - right.keys())]
        found += [f"-{name}" for name in sorted(right.keys() - left.keys())]
        same = sorted(left.keys() & right.keys())
        found += [f"{name} {left[name]}/{right[name]}" for name in same if left[name] != right[name]
                  and None not in (left[name], right[name])]  # fmt: skip
    return found
