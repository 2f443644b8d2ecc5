"""What a peer sends that cannot be served is refused in words, told once a minute, and never a traceback of ours."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aiorocket_protocol import REQUEST_HEADERS, SPECS, RequestCode
from tests.broker.peer import Peer, running


async def raw(peer: Peer, code: int, fields: dict[str, Any], body: bytes = b"") -> int:
    """The code of the answer to a request written without our encoder, which is strict."""
    header = json.dumps({"code": code, "opaque": 1, "language": "GO", "extFields": fields}).encode()
    peer.writer._stream.write(
        (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body
    )
    return (await peer.answer()).code


async def test_a_refusal_is_logged_once_a_minute_with_peer_code_field_and_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as broker:
        peer = await Peer.connect(broker.port)
        with caplog.at_level(logging.WARNING, "aiorocket.remoting"):
            for queue in ("first", "x", "y"):
                assert await raw(peer, 30, {"topic": "T", "queueId": queue}) == 1
            assert await raw(peer, 9999, {}) == await raw(peer, 8888, {}) == 3
            assert await raw(peer, 34, {}, b'{"clientID":[]}') == 1
        await peer.close()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0].startswith("refused request 30 (GET_MAX_OFFSET) of 127.0.0.1:")
    assert lines[0].endswith("GetMaxOffsetRequestHeader.queueId: int is needed, found 'first'")
    assert "9999 (unknown)" in lines[1] and "not supported" in lines[1]
    assert "HeartbeatData.clientID: text is needed, found list []" in lines[2]


#: What may end or block a whole broker if it is asked for, or waits for an answer by design, stays out.
CODES = sorted(REQUEST_HEADERS.keys() - {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.sampled_from(["T", "", "%RETRY%g", "\ud800", "a b", "\x01\x02", "x" * 300, "SQL92", "||"]),
    "int": st.sampled_from([0, -1, "3", 2**31 - 1, -(2**31), "x", None, True]),
    "long": st.sampled_from([0, -1, 2**63 - 1, -(2**63), "", 1.5]),
    "bool": st.sampled_from([True, "0", "yes", 1, None]),
}
BODIES = st.sampled_from(
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"clientID":"c","consumerDataSet":[{"groupName":"\\ud800"}]}',
     b'{"groupName":"\\ud800"}', b'{"consumerGroup":"g","clientId":"\\udfff","mqSet":[{"topic":"T","brokerName":"b"}]}',
     b'{"subscriptionData":{"expressionType":"SQL92","subString":"\\ud800 ="}}']
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, dict[str, Any], bytes]:
    code = draw(st.sampled_from([*CODES, 34, 41, 42, 46, 200, 21, 28, 201]))
    specs = SPECS[REQUEST_HEADERS[code]] if code in REQUEST_HEADERS else ()
    fields = {spec.wire: {"str": "T", "bool": "false"}.get(spec.kind, "0") for spec in specs}
    odd = [spec for spec in specs if draw(st.integers(0, 2)) == 0]  # the others pass the checks before it
    return code, {**fields, **{spec.wire: draw(VALUES[spec.kind]) for spec in odd}}, draw(BODIES)


SEND = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "\ud800"}


@example([(310, SEND, b"half a surrogate pair in the properties, which JSON can escape")])
@settings(max_examples=3 * settings.default.max_examples // 5, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(requests(), min_size=1, max_size=12))
def test_no_bytes_of_a_peer_make_a_traceback(asked: list[tuple[int, dict[str, Any], bytes]]) -> None:
    async def main() -> list[dict[str, Any]]:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        async with running(client_call_timeout=0.05) as broker:
            peer = await Peer.connect(broker.port)
            for request in asked:
                async with asyncio.timeout(30):
                    await raw(peer, *request)
            await peer.close()
        return failures

    assert not asyncio.run(main())
