"""Name servers: ``admin.nameservers``."""

from __future__ import annotations

from collections.abc import Mapping

from aiorocket.client.admin.asking import Answers, Asking
from aiorocket_protocol import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    KVTable,
    PutKVConfigRequestHeader,
    RequestCode,
    ResponseCode,
    decode_body,
    decode_configuration,
    encode_configuration,
)

__all__ = ("NameServers",)

_NONE = (int(ResponseCode.QUERY_NOT_FOUND),)


class NameServers:
    """See ``Admin``. What is put or changed is put on every name server; what is asked is the first one's answer."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking

    async def config(self, nameserver: str | None = None) -> dict[str, str]:
        """The settings of one, under RocketMQ's names."""
        code = RequestCode.GET_NAMESRV_CONFIG
        asked = self._ask.first_nameserver(code) if nameserver is None else self._ask.call(nameserver, code)
        return decode_configuration((await asked).body)

    async def set_config(self, values: Mapping[str, str]) -> Answers[str]:
        """Change settings while they run."""
        body = encode_configuration(values)

        async def ask(nameserver: str) -> list[str]:
            await self._ask.client.call(nameserver, RequestCode.UPDATE_NAMESRV_CONFIG, None, body=body)
            return [nameserver]

        return await self._ask.each_nameserver(ask)

    async def values(self, namespace: str) -> dict[str, str]:
        """All key-values of a namespace of the KV configuration."""
        header = GetKVListByNamespaceRequestHeader(namespace)
        answer = await self._ask.first_nameserver(RequestCode.GET_KVLIST_BY_NAMESPACE, header, accept=_NONE)
        return {} if answer.code else decode_body(KVTable, answer.body, answer.serialize_type).table

    async def get(self, namespace: str, key: str) -> str | None:
        header = GetKVConfigRequestHeader(namespace, key)
        answer = await self._ask.first_nameserver(RequestCode.GET_KV_CONFIG, header, accept=_NONE)
        return None if answer.code else answer.read(GetKVConfigResponseHeader).value

    async def put(self, namespace: str, key: str, value: str) -> Answers[str]:
        async def ask(nameserver: str) -> list[str]:
            header = PutKVConfigRequestHeader(namespace, key, value)
            await self._ask.call(nameserver, RequestCode.PUT_KV_CONFIG, header)
            return [nameserver]

        return await self._ask.each_nameserver(ask)

    async def delete(self, namespace: str, key: str) -> Answers[str]:
        async def ask(nameserver: str) -> list[str]:
            header = DeleteKVConfigRequestHeader(namespace, key)
            await self._ask.call(nameserver, RequestCode.DELETE_KV_CONFIG, header)
            return [nameserver]

        return await self._ask.each_nameserver(ask)
