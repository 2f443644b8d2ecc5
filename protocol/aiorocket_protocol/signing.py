"""Signatures of requests, as Apache RocketMQ's access control checks them (ACL 1.0 and 2.0 over remoting)."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping

from aiorocket_protocol.command import RemotingCommand
from aiorocket_protocol.errors import ProtocolError

__all__ = ("ACCESS_KEY", "SECURITY_TOKEN", "SIGNATURE", "Signer", "signature_of", "signed_text")

#: Ext fields of a signed request, in Java's SessionCredentials under the same names.
ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"


def signed_text(fields: Mapping[str, str | None]) -> bytes:
    """What is signed of the ext fields, before the body: the values alone, in the order of their keys, without the
    signature itself. A field that is None is not sent, so it is not signed. ProtocolError for text that is not
    Unicode."""
    values = [fields[key] for key in sorted(fields) if key != SIGNATURE]
    try:
        return "".join([value for value in values if value is not None]).encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"text that is not Unicode: {error.reason}", where="signature") from None


def signature_of(fields: Mapping[str, str | None], body: bytes, secret_key: str) -> str:
    """The Signature of these ext fields (all of them, AccessKey too) and this body: base64 of HMAC-SHA1."""
    return Signer("", secret_key).signature(fields, body)


class Signer:
    """The credentials of one client. Neither the secret key nor the token can be read from its repr."""

    __slots__ = ("_mac", "_token", "access_key")

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self.access_key = access_key
        self._token = security_token
        #: Keyed once; a copy of it costs less than keying anew for each request.
        self._mac = hmac.new(secret_key.encode(), digestmod="sha1")

    def signature(self, fields: Mapping[str, str | None], body: bytes) -> str:
        """As ``signature_of`` with this key."""
        mac = self._mac.copy()
        mac.update(signed_text(fields))
        mac.update(body)
        return b64encode(mac.digest()).decode()

    def sign(self, command: RemotingCommand) -> None:
        """Put AccessKey, SecurityToken and Signature into the command's ext fields; what it had of them is replaced.

        The signature covers every field as JSON carries it, those of the header too, so nothing may be added after it.
        """
        ext = dict(command.ext) if command.ext else {}
        ext[ACCESS_KEY] = self.access_key
        if self._token:
            ext[SECURITY_TOKEN] = self._token
        command.ext = ext
        ext[SIGNATURE] = self.signature(command.ext_fields(), command.body)

    def __repr__(self) -> str:
        return f"Signer(access_key={self.access_key!r})"
