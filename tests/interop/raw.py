"""One connection, JSON frames written by hand: it judges every server alike."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ("Answer", "Raw")


class Answer(NamedTuple):
    code: int
    fields: dict[str, str]
    body: bytes
    remark: str


class Raw:
    """``None`` for an answer that does not come within ``timeout``, or a connection that the server ended."""

    def __init__(self, address: str, *, timeout: float = 5.0) -> None:
        host, port = address.rsplit(":", 1)
        self._address = (host, int(port))
        self._timeout = timeout
        self._number = 0
        self._open()

    def _open(self) -> None:
        self._link = socket.create_connection(self._address, timeout=self._timeout)
        self._stream = self._link.makefile("rb")

    def close(self) -> None:
        self._stream.close()
        self._link.close()

    def ask(self, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"") -> Answer | None:
        self._number += 1
        number = self._number
        header: dict[str, Any] = {"code": code, "language": "JAVA", "version": 479, "opaque": number, "flag": 0}
        if fields is not None:
            header["extFields"] = {name: str(value) for name, value in fields.items()}
        data = json.dumps(header, separators=(",", ":")).encode()
        try:
            self._link.sendall(struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body)
            while True:
                total, length = struct.unpack(">II", self._read(8))
                head = json.loads(self._read(length))
                answer = self._read(total - 4 - length)
                if head["flag"] & 1 and head["opaque"] == number:
                    return Answer(head["code"], head.get("extFields") or {}, answer, head.get("remark") or "")
        except (OSError, EOFError):
            self.close()
            self._open()
            return None

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise EOFError
        return data
