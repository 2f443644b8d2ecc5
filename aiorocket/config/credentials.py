"""What every pair of keys must be, whoever has it."""

from __future__ import annotations

from aiorocket.errors import ConfigError

__all__ = ("check_credentials", "check_given")


def check_credentials(
    access_key: str | None,
    secret_key: str | None,
    security_token: str | None,
    where: str = "",
    *names: str,
) -> None:
    """ConfigError unless keys and token can be used; the text begins with ``where`` and never holds their values."""
    first, second, third = names or ("access_key", "secret_key", "security_token")
    if not access_key or not secret_key:
        missing, given = (second, first) if access_key else (first, second if secret_key else third)
        raise ConfigError(f"{where}{missing} is missing: {given} alone signs nothing")
    for name, value in ((first, access_key), (second, secret_key), (third, security_token or "")):
        if value != value.strip() or not value.isprintable():
            raise ConfigError(f"{where}{name} begins or ends with a blank, or holds a line end: is it cut out wrongly?")


def check_given(
    access_key: str | None, secret_key: str | None, security_token: str | None, credentials_file: str | None
) -> bool:
    """Whether a config has keys of its own, or a file of them; ConfigError when they cannot be used, or it has both."""
    if not (access_key or secret_key or security_token):
        return bool(credentials_file)
    if credentials_file:
        raise ConfigError(f"access_key and credentials_file={credentials_file!r}: either of them")
    check_credentials(access_key, secret_key, security_token)
    return True
