"""Test data for Spark: synchronous, and every message goes to a queue and offset that the test can name beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aiorocket.client.app import Client
from aiorocket.client.sending.producer import Producer
from aiorocket.client.session import HasSession
from aiorocket.config import ClientConfig, ProducerConfig
from aiorocket.config.remoting import RemotingConfig
from aiorocket.errors import TopicNotFoundError
from aiorocket.model import OutgoingMessage, Queue, SendReceipt
from aiorocket.runtime import run
from aiorocket_protocol import AUTO_CREATE_TOPIC, CreateTopicRequestHeader, DeleteTopicRequestHeader, RequestCode

Body = bytes | str | OutgoingMessage

#: Of a client of these tests: for machines that have other things to do.
PATIENT = ClientConfig(
    remoting=RemotingConfig(request_timeout=30.0, connect_timeout=30.0), producer=ProducerConfig(send_timeout=30.0)
)
_BATCH = 400
_READ_AND_WRITE = 6


def create_topic(nameserver: str, topic: str, queues: int = 4) -> list[Queue]:
    """Create ``topic`` on every broker, or change its number of queues; its queues, in order."""
    return run(_created(nameserver, topic, queues))


def delete_topic(nameserver: str, topic: str) -> None:
    """Delete ``topic`` at its broker, which is one, and at the name server."""
    run(_deleted(nameserver, topic))


def send(
    nameserver: str, topic: str, bodies: Iterable[Body], queues: int = 4, *, queue_id: int | None = None
) -> list[SendReceipt]:
    """Send ``bodies`` to ``topic`` (created with ``queues`` if it has none): number n goes to queue n % queues, or all
    of them to ``queue_id``. An OutgoingMessage brings its tag, keys and properties; its topic is ignored. The receipts,
    in the order of ``bodies``; ``receipt.queue`` and ``receipt.offset`` say where each is."""
    return run(_sent(nameserver, topic, list(bodies), queues, queue_id))


async def _created(nameserver: str, topic: str, queues: int) -> list[Queue]:
    async with Client(nameservers=nameserver, config=PATIENT) as client:
        template = await client.session.route(AUTO_CREATE_TOPIC)
        header = CreateTopicRequestHeader(
            topic, AUTO_CREATE_TOPIC, queues, queues, _READ_AND_WRITE, "SINGLE_TAG", False
        )
        for name in sorted(template.addresses):
            address = template.master(name)
            assert address is not None
            await client.session.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        return sorted((await client.session.route(topic, refresh=True)).publish)


async def _deleted(nameserver: str, topic: str) -> None:
    async with Client(nameservers=nameserver, config=PATIENT) as client:
        route = await client.session.route(topic)
        [name] = route.addresses
        address = route.master(name)
        assert address is not None
        header = DeleteTopicRequestHeader(topic)
        await client.session.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        await client.session.call(nameserver, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)


async def _sent(
    nameserver: str, topic: str, bodies: Sequence[Body], queues: int, queue_id: int | None
) -> list[SendReceipt]:
    async with Client(nameservers=nameserver, config=PATIENT) as client, Producer("tests", client=client) as producer:
        known = await _route(client, topic) or await _created(nameserver, topic, queues)
        if queue_id is not None:
            known = [known[queue_id]]
        receipts: dict[int, SendReceipt] = {}
        for place, queue in enumerate(known):
            own = range(place, len(bodies), len(known))
            for start in range(0, len(own), _BATCH):
                part = own[start : start + _BATCH]
                items = [_item(topic, bodies[number]) for number in part]
                sent = (
                    await producer.send_batch(topic, items, queue=queue)
                    if len(items) > 1
                    else [await producer.send(items[0], queue=queue)]
                )
                receipts.update(zip(part, sent, strict=True))
        return [receipts[number] for number in range(len(bodies))]


async def _route(client: HasSession, topic: str) -> list[Queue]:
    try:
        return sorted((await client.session.route(topic)).publish)
    except TopicNotFoundError:
        return []


def _item(topic: str, body: Body) -> OutgoingMessage:
    if isinstance(body, OutgoingMessage):
        return OutgoingMessage(
            topic=topic, body=body.body, tag=body.tag, keys=body.keys, properties=body.properties, flag=body.flag,
            delay_level=body.delay_level, sharding_key=body.sharding_key,
        )  # fmt: skip
    return OutgoingMessage(topic=topic, body=body.encode() if isinstance(body, str) else body)
