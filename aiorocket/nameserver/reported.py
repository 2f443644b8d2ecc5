"""What a broker says of its topics. A table of 10,000 holds the loop for a tenth of a second, so it is read little by
little, and everybody else is served in between."""

from __future__ import annotations

import asyncio
from zlib import crc32

from aiorocket_protocol import (
    DataVersion,
    ProtocolError,
    QueueData,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    RemotingCommand,
)
from aiorocket_protocol.forms import check_unicode
from aiorocket_protocol.limits import INT32_MAX

__all__ = ("A_TURN", "reported")

#: Topics read in one turn of the loop.
A_TURN = 200


async def reported(
    command: RemotingCommand, header: RegisterBrokerRequestHeader, most: int
) -> tuple[DataVersion, dict[str, QueueData] | None]:
    """The version of its table, and the topics; None when it only renews its lease. Of more than ``most`` topics one
    more is read. ProtocolError for a wrong checksum or table, and for names that no route could tell to anybody."""
    check_unicode(header.broker_name, header.broker_addr, header.cluster_name, where="broker")
    # RocketMQ's checksums leave out the highest bit.
    if header.body_crc32 and (crc32(command.body) ^ header.body_crc32) & INT32_MAX:
        raise ProtocolError("crc32 not match", where="body")
    if not command.body:
        return DataVersion(0, 0), None
    reading = RegisterBrokerBody.one_by_one(
        command.body, compressed=bool(header.compressed), serialize_type=command.serialize_type
    )
    topics: dict[str, QueueData] = {}
    while len(topics) <= most:
        try:
            topic = next(reading)
        except StopIteration as end:
            return end.value, topics
        if topic is not None:
            topics[topic.topic_name] = QueueData(
                header.broker_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag
            )
        if topic is None or len(topics) % A_TURN == 0:
            await asyncio.sleep(0)
    return DataVersion(0, 0), topics
