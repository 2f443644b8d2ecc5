"""Looking messages up by key (12) and by their place (33), as the Java clients and mqadmin ask."""

from __future__ import annotations

from typing import Any

import pytest

from aiorocket_protocol import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    RemotingCommand,
    SendMessageResponseHeader,
    parse_offset_msg_id,
)
from tests.broker.peer import Peer, records

END = (1 << 63) - 1


async def query(peer: Peer, key: str, topic: str = "T", most: int = 64, **more: Any) -> RemotingCommand:
    header = QueryMessageRequestHeader(topic, key, most, 0, END)._replace(
        **{name: more.pop(name) for name in list(more) if name in QueryMessageRequestHeader._fields}
    )
    return await peer.call(12, header, **more)


def bodies(answer: RemotingCommand) -> list[bytes]:
    assert answer.code == 0, answer.remark
    return [view.raw_body for view in records(answer)]


async def test_by_key_and_by_client_id(peer: Peer) -> None:
    """4.9 sends _UNIQUE_KEY_QUERY always, 5.5 an index type besides; maxNum of one by id is the broker's."""
    for number in range(40):
        await peer.send(b"%d" % number, {"UNIQ_KEY": f"ID{number}", "KEYS": f"order-{number} all", "TAGS": "a"})
    assert bodies(await query(peer, "order-7", _UNIQUE_KEY_QUERY="false")) == [b"7"]
    assert bodies(await query(peer, "order-7", index_type="K", _UNIQUE_KEY_QUERY="false")) == [b"7"]
    assert bodies(await query(peer, "ID7", most=1, _UNIQUE_KEY_QUERY="true")) == [b"7"]
    assert bodies(await query(peer, "all", most=2)) == [b"38", b"39"]
    assert len(bodies(await query(peer, "all", most=1, _UNIQUE_KEY_QUERY="true"))) == 32
    assert len(bodies(await query(peer, "a", index_type="T"))) == 40
    answer = await query(peer, "all", most=1 << 30)
    assert len(bodies(answer)) == 40
    told = answer.read(QueryMessageResponseHeader)
    last = records(answer)[-1]
    assert told.index_last_update_timestamp == last.store_timestamp
    assert told.index_last_update_phyoffset == last.physical_offset + last.size


@pytest.mark.parametrize("most", [64, 0, -1])
async def test_what_is_not_there_is_22_with_the_header_that_clients_decode(peer: Peer, most: int) -> None:
    await peer.send(b"x", {"KEYS": "k"})
    answer = await query(peer, "other" if most > 0 else "k", most=most)
    assert (answer.code, answer.remark) == (22, "can not find message, maybe time range not correct")
    assert answer.read(QueryMessageResponseHeader).index_last_update_timestamp > 0
    assert (await query(peer, "k", topic="Unknown")).code == 22
    assert (await query(peer, "k", end_timestamp=1)).code == 22


async def test_of_an_index_that_is_far_behind_it_is_said(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing found is no "not found" then, and what was found may lack the newest."""
    await peer.send(b"old", {"KEYS": "k"})
    old = (await query(peer, "k")).read(QueryMessageResponseHeader)
    monkeypatch.setattr("aiorocket.storage.key_index._PATIENCE", -1.0)
    await peer.send(b"new", {"KEYS": "k other"})
    answer = await query(peer, "k")
    assert bodies(answer) == [b"old"] and "the index of keys is behind: the newest" in (answer.remark or "")
    assert answer.read(QueryMessageResponseHeader) == old
    answer = await query(peer, "other")
    assert answer.code == 2 and "ask again" in (answer.remark or "")
    monkeypatch.undo()
    answer = await query(peer, "k")
    assert bodies(answer) == [b"old", b"new"] and answer.remark is None


async def test_items_of_a_batch_are_found(peer: Peer) -> None:
    await peer.send_batch(b"a", b"b")
    assert bodies(await query(peer, "K1", _UNIQUE_KEY_QUERY="true")) == [b"b"]


async def test_by_place(peer: Peer) -> None:
    sent = (await peer.send(b"x", {"KEYS": "k"})).read(SendMessageResponseHeader)
    _, _, offset = parse_offset_msg_id(sent.msg_id)
    for more in ({}, {"topic": "T"}):  # 5.5 names the topic
        assert bodies(await peer.call(33, None, offset=str(offset), **more)) == [b"x"]
    for nowhere in (offset + 1, 1 << 40, -1):
        answer = await peer.call(33, None, offset=str(nowhere))
        assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {nowhere}")
