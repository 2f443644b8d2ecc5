"""Avro schemas of a schema registry, by the number that its wire format puts in front of each body: a zero byte and
four more, as Confluent's, Redpanda's and Apicurio's (in Confluent's mode) serializers write them."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from aiorocket.errors import RocketError, UsageError

__all__ = ("HEADER", "RegistryError", "SchemaRegistry", "number_of")

#: Bytes in front of a datum.
HEADER = 5
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_TIMEOUT, _LARGEST = 10.0, 4 << 20
#: Numbers without a schema that the registry is asked for in one task: no producer makes it ask for ever.
_MOST_UNKNOWN = 1000
#: References of references.
_DEEPEST = 16


class RegistryError(RocketError):
    """The registry could not be asked. That is no fault of a row: the task fails, and Spark tries it again."""


class SchemaRegistry:
    """``url`` is ``http://host:8081``, with ``user:password@`` where it wants them. Each schema is asked for once in a
    task. It is pickled without what it has learnt."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and parts.port != 0
        except ValueError:  # a port that is no number, a host that is none: the text of it may have the password
            fits = False
        if not fits:
            raise UsageError(f"registry={_bare(url)!r:.200}: its address is meant, such as http://registry:8081")
        self._url = url
        self._schemas: dict[int, Any] = {}
        self._refused: dict[int, str] = {}

    def __reduce__(self) -> tuple[type[SchemaRegistry], tuple[str]]:
        return type(self), (self._url,)

    def schema(self, number: int) -> Any:
        """The parsed Avro schema ``number``. ValueError when the registry has none, or one that is no Avro, or behind
        so many such numbers that no more are asked for; RegistryError when it does not answer."""
        if number not in self._schemas:
            if number in self._refused:
                raise ValueError(self._refused[number])
            if len(self._refused) >= _MOST_UNKNOWN:
                raise ValueError(
                    f"schema {number} was not asked for: {_MOST_UNKNOWN} other numbers in this task's bodies have none "
                    "in the registry. Decode what is quarantined for this reason once more, without those"
                )
            try:
                found = self._ask(f"/schemas/ids/{number}")
                if found.get("schemaType", "AVRO") != "AVRO":
                    raise ValueError(f"schema {number} is {found['schemaType']}, no Avro")
                self._schemas[number] = self._parsed(found, {}, 0)
            except ValueError as error:
                self._refused[number] = str(error)
                raise
        return self._schemas[number]

    def _parsed(self, found: Any, named: dict[str, Any], depth: int) -> Any:
        from fastavro import parse_schema

        if depth > _DEEPEST:
            raise ValueError(f"references of schemas more than {_DEEPEST} deep")
        for each in found.get("references") or ():
            path = f"/subjects/{quote(str(each['subject']), safe='')}/versions/{int(each['version'])}"
            if each["name"] not in named:
                self._parsed(self._ask(path), named, depth + 1)
        try:
            return parse_schema(json.loads(found["schema"]), named_schemas=named)
        except Exception as error:
            raise ValueError(f"the registry's schema is no Avro: {type(error).__name__}: {error}") from error

    def _ask(self, path: str) -> dict[str, Any]:
        parts = urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        headers = {"Accept": _ACCEPT}
        if parts.username:
            both = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(both.encode()).decode()}"
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)
        where = f"the schema registry at {parts.scheme}://{parts.hostname}:{parts.port or kind.default_port}"
        try:
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(_LARGEST + 1)
        except (OSError, http.client.HTTPException) as error:
            raise RegistryError(f"{where} does not answer: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()
        if answer.status == 404:
            what = path.strip("/").replace("schemas/ids/", "schema ")
            raise ValueError(f"{what} is not in the registry")
        if answer.status != 200 or len(body) > _LARGEST:
            raise RegistryError(f"{where} answered {path} with {answer.status} {answer.reason}, {len(body)} bytes")
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict) or not isinstance(value.get("schema"), str):
            raise RegistryError(f"{where} answered {path} with what is no schema: is it a schema registry?")
        return value


def number_of(body: bytes) -> int:
    """The number in front of a body; ValueError when there is none."""
    if len(body) < HEADER or body[0]:
        raise ValueError("no schema's number in front: a zero byte and four more are expected")
    return int.from_bytes(body[1:HEADER], "big")


def _bare(url: str) -> str:
    """Without a password."""
    return url.rpartition("@")[2]
