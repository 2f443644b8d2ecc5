"""Why a message was given up, as the properties that its dead letter gets."""

from __future__ import annotations

from aiorocket_protocol import PROPERTY_DLQ_ERROR, PROPERTY_DLQ_HOST, PROPERTY_DLQ_REASON, reason_text

__all__ = ("log_line", "reason_of", "text_of")


def text_of(error: BaseException) -> str:
    """What ``error`` says of itself; which it is, where that fails: it is the application's."""
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - whatever its __str__ does
        return f"{type(error).__qualname__}, whose text cannot be had ({type(failed).__qualname__})"


def reason_of(error: BaseException | None, client_id: str) -> dict[str, str]:
    """``error`` by its class and its text, as far as they are kept, and who gave up. Nothing for None: a message that
    was settled by hand, without a reason."""
    if error is None:
        return {}
    texts = {
        PROPERTY_DLQ_ERROR: type(error).__qualname__, PROPERTY_DLQ_REASON: text_of(error), PROPERTY_DLQ_HOST: client_id,
    }  # fmt: skip
    return {name: kept for name, text in texts.items() if (kept := reason_text(text))}


def log_line(group: str, msg_id: str, topic: str, attempt: int, error: BaseException | None) -> str:
    """What the log says of it."""
    said = "no error" if error is None else f"{type(error).__name__}: {text_of(error)}"
    whose = f"to the dead letters of group {group}: message {msg_id} of topic {topic}"
    return f"{whose}, after {attempt} attempts: {said:.500}"
