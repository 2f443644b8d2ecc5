"""Who a browser is, without a table: a cookie and what is in a form are signed with a key of this process."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from aiorocket.runtime.entropy import secret

__all__ = ("Session", "Sessions")

#: Seconds that somebody who signed in stays so.
SESSION = 12 * 3600.0


class Session(NamedTuple):
    """``nonce`` tells browsers apart; ``signed_in`` says that the token was given."""

    nonce: str
    signed_in: bool


class Sessions:
    """After a restart nobody is signed in, and no form of before is taken."""

    def __init__(self) -> None:
        self._key = secret(32)

    def new(self, *, signed_in: bool) -> Session:
        return Session(secret(18).hex(), signed_in)

    def cookie(self, session: Session, now: float) -> str:
        return self.sign(f"{session.nonce} {int(session.signed_in)}", "session", now + SESSION)

    def read(self, cookie: str, now: float) -> Session | None:
        text = self.signed(cookie, "session", now)
        if text is None:
            return None
        nonce, _, signed_in = text.partition(" ")
        return Session(nonce, signed_in == "1")

    def csrf(self, session: Session) -> str:
        """What a form has to carry: another site can send the cookie along, but cannot read this."""
        return self._mac("csrf", session.nonce)

    def sign(self, text: str, purpose: str, until: float) -> str:
        payload = urlsafe_b64encode(f"{until:.0f} {text}".encode()).decode()
        return f"{payload}.{self._mac(purpose, payload)}"

    def signed(self, value: str, purpose: str, now: float) -> str | None:
        """The text that ``sign`` was given; None when it is not ours, for something else, or too old."""
        payload, _, mac = value.rpartition(".")
        if not same(mac, self._mac(purpose, payload)):
            return None
        until, _, text = urlsafe_b64decode(payload).decode().partition(" ")
        return text if now < float(until) else None

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()


def same(given: str, known: str) -> bool:
    """In a time that does not tell how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())
