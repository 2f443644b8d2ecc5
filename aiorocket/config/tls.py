"""How a client checks the servers it reaches over TLS, and shows itself; what a server shows, and whom it asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from aiorocket.errors import ConfigError

__all__ = ("ServerTlsConfig", "TlsConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Paths of PEM files. The files are read when the client starts; a ConfigError then names the one that is wrong."""

    #: The authorities to trust: a file with their certificates, or a directory of such files as OpenSSL hashes them.
    #: None takes those of the system.
    ca: str | None = None
    #: This client's certificate (with its chain) and its private key, for servers that ask for one. The key may be in
    #: the file of the certificate.
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    #: False trusts every server (as Java's clients do unless ``tls.client.authServer`` is set): encrypted, but to whom
    #: is not known.
    verify: bool = True
    #: The certificate must name the host of the address. Brokers register addresses, often bare IPs: where their
    #: certificates hold names only, False checks the authority alone.
    check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.cert is None and (self.key is not None or self.key_password is not None):
            raise ConfigError("TlsConfig.key or key_password without cert: give the certificate that belongs to it")
        if self.ca is not None and not self.verify:
            raise ConfigError(f"TlsConfig.verify=False trusts everybody, ca={self.ca!r} only some: leave one out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTlsConfig:
    """How a broker or name server speaks TLS: paths of PEM files, read when it starts and again when they change or a
    reload is asked for. Connections that are open stay as they are."""

    #: The server's certificate (with its chain) and its private key, which may be in the same file.
    cert: str
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    #: Whether clients show a certificate that one of ``client_ca`` signed: "none", "optional" or "required".
    client_cert: Literal["none", "optional", "required"] = "none"
    client_ca: str | None = None
    #: "enforcing": nothing but TLS; "permissive": plain text too, on the same port, as Apache's default.
    mode: Literal["enforcing", "permissive"] = "enforcing"

    def __post_init__(self) -> None:
        if self.mode not in ("enforcing", "permissive"):
            raise ConfigError(f"ServerTlsConfig.mode={self.mode!r}: 'enforcing' or 'permissive'")
        if self.client_cert not in ("none", "optional", "required"):
            raise ConfigError(f"ServerTlsConfig.client_cert={self.client_cert!r}: 'none', 'optional' or 'required'")
        if (self.client_cert == "none") != (self.client_ca is None):
            raise ConfigError(
                f"ServerTlsConfig.client_cert={self.client_cert!r} with client_ca={self.client_ca!r}: who asks for "
                "certificates names the authorities that sign them, and nobody else does"
            )
