"""Signatures: the values a peer would compute from what it received, and nothing to be read from a Signer."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket_protocol import (
    JSON,
    ROCKETMQ,
    FrameSplitter,
    ProtocolError,
    PullMessageRequestHeader,
    RemotingCommand,
    RequestCode,
    SendMessageRequestHeaderV2,
    decode,
    encode,
)
from aiorocket_protocol.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, Signer, signature_of, signed_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def by_the_book(fields: dict[str, str], body: bytes, secret: str) -> str:
    """The three steps as RocketMQ's AclUtils takes them, written once more."""
    content = b"".join(fields[key].encode() for key in sorted(fields) if key != "Signature")
    return base64.b64encode(hmac.new(secret.encode(), content + body, hashlib.sha1).digest()).decode()


def received(command: RemotingCommand, serialize_type: int) -> RemotingCommand:
    (frame,) = FrameSplitter().feed(encode(command, serialize_type))
    return decode(*frame)


def test_values_in_the_order_of_their_keys_without_the_signature() -> None:
    fields = {"topic": "t", "AccessKey": "me", "b": "2", "Signature": "old", "a": None}
    assert signed_text(fields) == b"me2t"


def test_apaches_own_signature() -> None:
    """The Signature that AclClientRPCHook of RocketMQ 5.5.0 put into this very request."""
    text = "of\x01gr\u00fcn \U0001f680\x02"
    fields = {"AccessKey": "ak", "SecurityToken": "tk", "topic": "orders", "queueId": "3", "i": text}
    assert signature_of(fields, b"body", "sk") == "MbtlQO475jQudsXMZ0HRGpTY6ik="
    command = RemotingCommand.request(10, ext={"topic": "orders", "queueId": "3", "i": text}, body=b"body")
    Signer("ak", "sk", "tk").sign(command)
    assert command.ext == {**fields, "Signature": "MbtlQO475jQudsXMZ0HRGpTY6ik="}


@given(st.dictionaries(st.text("opqrsXYZ_", min_size=1, max_size=8), TEXT, max_size=6), st.binary(max_size=200), TEXT)
def test_a_server_that_reads_the_frame_computes_the_same(ext: dict[str, str], body: bytes, token: str) -> None:
    command = RemotingCommand.request(
        RequestCode.SEND_MESSAGE_V2,
        SendMessageRequestHeaderV2("g", "t", "TBW102", 4, 1, 0, 1700000000000, 0, "K\x01v\x02", 0, False, None, True),
        ext=ext,
        body=body,
    )
    Signer("me", "hidden", token).sign(command)
    got = received(command, JSON)
    assert got.ext is not None
    fields = {key: value for key, value in got.ext.items() if value is not None}
    assert fields[ACCESS_KEY] == "me" and fields.get(SECURITY_TOKEN, "") == token
    assert fields[SIGNATURE] == by_the_book(fields, got.body, "hidden")


def test_signing_again_replaces_and_does_not_sign_the_old_signature() -> None:
    header = PullMessageRequestHeader("g", "t", 0, 7, 32, 0, 0, 15000, None, 1, None)
    command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
    Signer("me", "one", "token").sign(command)
    first = dict(command.ext or {})
    Signer("me", "one", "token").sign(command)
    assert command.ext == first and list(first) == [ACCESS_KEY, SECURITY_TOKEN, SIGNATURE]
    assert command.header is header
    got = received(command, ROCKETMQ).ext
    assert got is not None and got[SIGNATURE] == by_the_book({k: v or "" for k, v in got.items()}, b"", "one")


def test_the_callers_ext_is_left_alone() -> None:
    ext = {"a": "1"}
    command = RemotingCommand.request(RequestCode.HEART_BEAT, ext=ext)
    shared = command.ext = ext
    Signer("me", "hidden").sign(command)
    assert shared == {"a": "1"}


def test_secrets_do_not_show() -> None:
    assert repr(Signer("me", "hidden", "token")) == "Signer(access_key='me')"


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(ProtocolError, match="signature"):
        signed_text({"a": "\ud800"})
