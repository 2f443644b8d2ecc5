"""From settings to an ``ssl.SSLContext``, of clients and servers; what a failed handshake means in words."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta

from aiorocket.config import ServerTlsConfig, TlsConfig
from aiorocket.errors import ConfigError

__all__ = ("client_context", "first_certificate", "server_context", "tls_trouble", "untimely")

_SELF_SIGNED = (18, 19, 20, 21)  # X509_V_ERR: self-signed, self-signed in the chain, no issuer here, leaf alone
_NAMES = (62, 64)  # X509_V_ERR: host name, IP address
_TIMES = (9, 10)  # X509_V_ERR: not yet valid, expired
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
#: How long before its end a certificate is spoken of.
_SOON = timedelta(days=14)


def client_context(tls: ssl.SSLContext | TlsConfig | bool) -> ssl.SSLContext | None:
    """The context for this setting, None for plain text. Reads files; ConfigError names the one that cannot be used."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is False:
        return None
    settings = TlsConfig() if tls is True else tls
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if not settings.verify else _trusting(settings.ca, "TlsConfig.ca")
    context.check_hostname = settings.verify and settings.check_hostname
    if not settings.verify:
        context.verify_mode = ssl.CERT_NONE
    if settings.cert is not None:
        _show(context, "TlsConfig", settings.cert, settings.key, settings.key_password or "")
    return context


def server_context(settings: ServerTlsConfig) -> ssl.SSLContext:
    """The context for these settings. Reads files; ConfigError names the one that cannot be used."""
    context = _trusting(settings.client_ca, "ServerTlsConfig.client_ca", ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _show(context, "ServerTlsConfig", settings.cert, settings.key, settings.key_password or "")
    if settings.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED if settings.client_cert == "required" else ssl.CERT_OPTIONAL
    return context


def _trusting(ca: str | None, name: str, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> ssl.SSLContext:
    try:
        if ca is not None and os.path.isdir(ca):
            return ssl.create_default_context(purpose, capath=ca)
        return ssl.create_default_context(purpose, cafile=ca)
    except FileNotFoundError:
        raise ConfigError(f"{name}={ca!r}: there is no such file") from None
    except ssl.SSLError as error:
        raise ConfigError(f"{name}={ca!r} holds no certificates in PEM form ({error.reason or error})") from None
    except OSError as error:
        raise ConfigError(f"{name}={ca!r} cannot be read: {error.strerror}") from None


def _show(context: ssl.SSLContext, config: str, cert: str, key: str | None, password: str) -> None:
    for name, path in (("cert", cert), ("key", key)):
        if path is not None and not os.path.isfile(path):
            raise ConfigError(f"{config}.{name}={path!r}: there is no such file")
    try:
        # Without a password OpenSSL would ask at the terminal for one; an empty one is refused instead.
        context.load_cert_chain(cert, key, lambda: password)
    except ssl.SSLError as error:
        if key is None and not _has_key(cert):
            raise ConfigError(
                f"{config}.cert={cert!r} holds no private key; {config}.key (--tls-key) names the file that does"
            ) from None
        where = repr(cert) if key is None else f"{cert!r} with key={key!r}"
        raise ConfigError(
            f"{config}.cert={where}: not a certificate and its private key in PEM form, or key_password does not open "
            f"it ({error.reason or error})"
        ) from None
    except OSError as error:
        raise ConfigError(f"{config}.cert={cert!r}, key={key!r} cannot be read: {error.strerror}") from None


def _has_key(path: str) -> bool:
    with open(path, "rb") as file:
        return b"PRIVATE KEY-----" in file.read()


def tls_trouble(error: OSError) -> str | None:
    """What a failed TLS handshake says, and what to do; None when the error is not one of TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = getattr(error, "verify_code", 0)
        advice = ""
        if code in _SELF_SIGNED:
            advice = "; TlsConfig.ca (--tls-ca) must name the authority that signed it"
        elif code in _NAMES:
            advice = (
                "; TlsConfig(check_hostname=False) accepts any name of a trusted authority "
                "(AIOROCKET_TLS_CHECK_HOSTNAME=false)"
            )
        elif code in _TIMES:
            advice = "; put a new one in its place, a server reads it while it runs, or is this machine's clock wrong?"
        said = str(getattr(error, "verify_message", "") or error).rstrip(".")
        return f"its certificate is refused: {said}{advice}"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed: {error.reason or error}: does it speak TLS on this port?"
    if isinstance(error, ConnectionResetError | ConnectionAbortedError):
        return "it closed the connection during the TLS handshake: does it speak TLS on this port?"
    return None


def first_certificate(path: str) -> bytes:
    """In DER, what a server shows of a file in PEM; nothing when there is none."""
    try:
        with open(path, "rb") as file:
            text = file.read()
        return ssl.PEM_cert_to_DER_cert((_BEGIN + text.partition(_BEGIN)[2].partition(_END)[0] + _END).decode())
    except (OSError, ValueError):
        return b""


def untimely(certificate: bytes, now_ms: int) -> str | None:
    """What is wrong with the time of a certificate in DER, or will be soon. None also when it cannot be read."""
    try:
        begins, ends = _times(certificate)
    except (IndexError, ValueError):
        return None
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    anew = "put a new one in its place, a server reads it while it runs"
    if now < begins:
        return f"is not valid before {begins:%Y-%m-%d %H:%M} UTC: clients refuse it until then, or is the clock wrong?"
    if now >= ends:
        return f"has expired, at {ends:%Y-%m-%d %H:%M} UTC: clients refuse it; {anew}"
    if ends - now < _SOON:
        return f"expires at {ends:%Y-%m-%d %H:%M} UTC, in {(ends - now).days} days; {anew}"
    return None


def _times(certificate: bytes) -> tuple[datetime, datetime]:
    """From when and until when, of an X.509 certificate: what stands behind version, number, algorithm and issuer. (ssl
    says it of a peer's that it has verified, and of a file's never; a library for it is none of the core's.)"""
    _, at, _ = _element(certificate, 0)
    _, at, _ = _element(certificate, at)
    for _ in range(4 if certificate[at] == 0xA0 else 3):  # the first version says none
        _, _, at = _element(certificate, at)
    _, at, _ = _element(certificate, at)
    times = []
    for _ in range(2):
        tag, begin, at = _element(certificate, at)
        form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"
        times.append(datetime.strptime(certificate[begin:at].decode(), form).replace(tzinfo=UTC))
    return times[0], times[1]


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Tag of what stands there in DER, and where its contents begin and end."""
    tag, length, begin = data[at], data[at + 1], at + 2
    if length & 0x80:
        more = length & 0x7F
        length = int.from_bytes(data[begin : begin + more], "big")
        begin += more
    return tag, begin, begin + length
