"""What official clients sent, byte for byte: our broker takes messages, batches and members as they were meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aiorocket_protocol import HeartbeatData, RemotingCommand
from tests.broker.peer import Peer, records, running

FILE = Path(__file__).parents[2] / "protocol" / "aiorocket_protocol" / "vectors" / "recorded.json"
RECORDED: dict[str, dict[str, Any]] = {
    vector["name"]: vector for vector in json.loads(FILE.read_text(encoding="utf-8"))["vectors"]
}
CLIENTS = ("java5", "java4", "go", "cpp", "node", "python")


async def replay(peer: Peer, name: str) -> RemotingCommand:
    peer.writer._stream.write(bytes.fromhex(RECORDED[name]["hex"]))
    return await peer.answer()


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_recorded_send_is_stored(client: str) -> None:
    async with running() as broker:
        peer = await Peer.connect(broker.port)
        answer = await replay(peer, f"{client} send")
        assert answer.code == 0, answer.remark
        _, topic, _, _, queue_id, *_ = RECORDED[f"{client} send"]["values"]
        (record,) = records(await peer.pull(topic, queue_id))
        assert bytes.fromhex(RECORDED[f"{client} send"]["hex"]).endswith(record.body)
        assert record.tag in ("even", "tag-j5", "tag-j4")
        await peer.close()


@pytest.mark.parametrize("client", ["go", "cpp"])
async def test_a_recorded_batch_is_stored_message_by_message(client: str) -> None:
    async with running() as broker:
        peer = await Peer.connect(broker.port)
        answer = await replay(peer, f"{client} batch")
        assert answer.code == 0, answer.remark
        _, topic, _, _, queue_id, *_ = RECORDED[f"{client} batch"]["values"]
        found = records(await peer.pull(topic, queue_id))
        assert [record.body[1:] for record in found] == [b"-batch-0", b"-batch-1"]
        assert [record.tag for record in found] == ["even", "odd"]
        await peer.close()


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_recorded_heartbeat_makes_a_member(client: str) -> None:
    async with running() as broker:
        peer = await Peer.connect(broker.port)
        answer = await replay(peer, f"{client} heartbeat")
        assert answer.code == 0, answer.remark
        plain = RECORDED[f"{client} heartbeat"]["plain"]
        told = HeartbeatData.from_plain(plain).consumers[0]
        assert await peer.members(told.group) == [plain["clientID"]]
        live = broker.consumers.get(told.group)
        assert live is not None
        assert (live.consume_type, live.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
        assert {topic: known.data for topic, known in live.subscriptions.items()} == {
            subscription.topic: subscription for subscription in told.subscriptions
        }
        await peer.close()
