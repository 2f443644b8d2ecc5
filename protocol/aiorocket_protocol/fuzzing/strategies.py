"""Strategies for hypothesis (``pip install aiorocketmq[fuzz]``); ``form`` is "legal", "odd", "broken", None for any.

@given(strategies.requests(form="broken"))
def test_a_broken_request_never_ends_the_server(drawn: Drawn) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st

from aiorocket_protocol.command import JSON, MSGPACK, ROCKETMQ
from aiorocket_protocol.fuzzing.chance import Draw
from aiorocket_protocol.fuzzing.draws import CODES, FORMS, Drawn, batch, legal_words, record, request, stream
from aiorocket_protocol.headers import REQUEST_HEADERS

__all__ = ("batches", "bodies", "headers", "records", "requests", "streams")

T = TypeVar("T")
_KINDS = (JSON, ROCKETMQ, MSGPACK)


def _drawn(function: Callable[[Draw, str], T], form: str | None) -> st.SearchStrategy[T]:
    if form is not None and form not in FORMS:
        raise ValueError(f"form {form!r}: there are {', '.join(FORMS)}")
    forms = st.sampled_from(FORMS) if form is None else st.just(form)
    return st.builds(function, st.randoms(use_true_random=False), forms)


def requests(
    codes: Sequence[int] = CODES, *, kinds: Sequence[int] = _KINDS, form: str | None = None
) -> st.SearchStrategy[Drawn]:
    """One request as a frame."""
    return st.tuples(st.sampled_from(codes), st.sampled_from(kinds)).flatmap(
        lambda of: _drawn(lambda random, wanted: request(random, of[0], legal_words(), kind=of[1], form=wanted), form)
    )


def headers(codes: Sequence[int] = tuple(REQUEST_HEADERS), *, kind: int = JSON, form: str | None = None,
            ) -> st.SearchStrategy[bytes]:  # fmt: skip
    """The header of a request alone, in one serialize type."""
    return requests(codes, kinds=(kind,), form=form).map(lambda drawn: _cut(drawn.data)[0])


def bodies(code: int, *, kind: int = JSON, form: str | None = None) -> st.SearchStrategy[bytes]:
    """The body of a request of this code."""
    return requests((code,), kinds=(kind,), form=form).map(lambda drawn: _cut(drawn.data)[1])


def records(*, form: str | None = None) -> st.SearchStrategy[bytes]:
    """One stored message."""
    return _drawn(record, form)


def batches(*, form: str | None = None) -> st.SearchStrategy[bytes]:
    """The body of SEND_BATCH_MESSAGE."""
    return _drawn(batch, form)


def streams(*, form: str | None = None, frames: int = 5) -> st.SearchStrategy[bytes]:
    """Requests behind one another, as bytes that may be cut anywhere."""
    return _drawn(lambda random, wanted: stream(random, wanted, frames=frames), form)


def _cut(frame: bytes) -> tuple[bytes, bytes]:
    """Header and body as far as the frame's own words lead to them."""
    length = int.from_bytes(frame[5:8], "big")
    return frame[8 : 8 + length], frame[8 + length :]
