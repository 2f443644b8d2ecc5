"""Who a client, or a broker at a name server, says it is: the credentials of its config, or of the file it names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

from aiorocket.config.credentials import check_credentials
from aiorocket.errors import ConfigError
from aiorocket.runtime.disk import Disk

if TYPE_CHECKING:
    from aiorocket_protocol.signing import Signer

__all__ = ("signer_of",)

_MEMBERS = ("accessKey", "secretKey", "securityToken")


class HasCredentials(Protocol):
    """What configs have in common."""

    @property
    def access_key(self) -> str | None: ...
    @property
    def secret_key(self) -> str | None: ...
    @property
    def security_token(self) -> str | None: ...
    @property
    def credentials_file(self) -> str | None: ...


def signer_of(config: HasCredentials, disk: Disk) -> Signer | None:
    """What signs requests under ``config``, None without credentials. Reads ``credentials_file`` (blocking: a few
    hundred bytes, once); ConfigError says what is wrong with it and never what it holds."""
    if config.credentials_file:
        keys = _read(config.credentials_file, disk)
    elif config.access_key and config.secret_key:
        keys = config.access_key, config.secret_key, config.security_token
    else:
        return None
    from aiorocket_protocol.signing import Signer  # loads OpenSSL, which most clients never need

    return Signer(*keys)


def _read(path: str, disk: Disk) -> tuple[str, str, str | None]:
    try:
        data = disk.read_bytes(path)
    except OSError as error:
        raise ConfigError(f"credentials_file={path!r} cannot be read: {error.strerror or error}") from None
    try:
        plain = json.loads(data)
    except ValueError:  # its text would quote the file
        raise ConfigError(f"credentials_file={path!r} is not JSON") from None
    if not isinstance(plain, dict):
        raise ConfigError(f"credentials_file={path!r}: a JSON object with accessKey and secretKey is needed")
    unknown = sorted(set(plain) - set(_MEMBERS))
    if unknown:
        known = ", ".join(_MEMBERS)
        raise ConfigError(f"credentials_file={path!r}: unknown members {', '.join(unknown)}; known: {known}")
    access_key, secret_key, token = (plain.get(name) for name in _MEMBERS)
    if not isinstance(access_key, str) or not isinstance(secret_key, str) or not isinstance(token, str | None):
        raise ConfigError(f"credentials_file={path!r}: accessKey and secretKey are needed, and all values are text")
    check_credentials(access_key, secret_key, token, f"credentials_file={path!r}: ", *_MEMBERS)
    return access_key, secret_key, token
