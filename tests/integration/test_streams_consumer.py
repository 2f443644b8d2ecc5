"""The streams face on its own: one complete consumer, in one coroutine that reads from top to bottom."""

from __future__ import annotations

import asyncio

from aiorocket import embed
from aiorocket.remoting import open_command_stream
from aiorocket_protocol import (
    ConsumerData,
    ConsumerListBody,
    GetConsumerListByGroupRequestHeader,
    HeartbeatData,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    decode_body,
    encode_body,
    split_records,
)

COMMIT, SUSPEND = 1, 2


async def test_a_long_poll_consumer_from_its_heartbeat_to_its_leave() -> None:
    async with embed() as mq, mq.producer() as producer:
        await mq.create_topic("t", queues=1)
        for n in range(3):
            await producer.send("t", b"early %d" % n)
        host, port = mq.broker.address.rsplit(":", 1)
        reader, writer = await open_command_stream(host, int(port))
        opaque = 0

        async def call(code: RequestCode, header: tuple[object, ...] | None, body: bytes = b"") -> RemotingCommand:
            nonlocal opaque
            opaque += 1
            request = RemotingCommand.request(code, header, body=body)
            request.opaque = opaque
            writer.write(request)
            await writer.drain()
            while True:
                answer = await reader.read()
                assert answer is not None, "the broker closed the connection"
                if answer.is_response:
                    assert answer.opaque == opaque
                    return answer
                assert answer.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED  # the only member is we: nothing to share

        subscriptions = [SubscriptionData.parse(topic, "*", 1) for topic in ("t", "%RETRY%g")]
        heartbeat = HeartbeatData("me@1", [], [ConsumerData("g", subscriptions=subscriptions)])
        assert (await call(RequestCode.HEART_BEAT, None, encode_body(heartbeat, 0))).code == 0
        members = await call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader("g"))
        assert list(decode_body(ConsumerListBody, members.body, members.serialize_type).consumer_ids) == ["me@1"]

        asked = await call(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequestHeader("g", "t", 0))
        offset = asked.read(QueryConsumerOffsetResponseHeader).offset if asked.code == 0 else 0
        got: list[bytes] = []
        late = asyncio.get_running_loop().call_later(
            0.05, lambda: tasks.append(asyncio.create_task(producer.send("t", b"late")))
        )
        tasks: list[asyncio.Task[object]] = []
        while len(got) < 4:
            answer = await call(
                RequestCode.PULL_MESSAGE,
                PullMessageRequestHeader("g", "t", 0, offset, 32, COMMIT | SUSPEND, offset, 15_000, 1),
            )
            assert answer.code == 0, answer
            got += [record.body for record in split_records(answer.body)]
            offset = answer.read(PullMessageResponseHeader).next_begin_offset
        late.cancel()
        await asyncio.gather(*tasks)
        assert got == [b"early 0", b"early 1", b"early 2", b"late"]

        await call(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequestHeader("g", "t", 0, offset))
        asked = await call(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequestHeader("g", "t", 0))
        assert asked.read(QueryConsumerOffsetResponseHeader).offset == 4
        left = await call(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader("me@1", consumer_group="g"))
        assert left.code == 0
        nobody = await call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader("g"))
        assert nobody.code == ResponseCode.SYSTEM_ERROR
        await writer.close()
