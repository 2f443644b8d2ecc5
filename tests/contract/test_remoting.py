"""One request each way, on every loop and in every serialisation; the streams face reads the same frames."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiorocket.config import RemotingConfig
from aiorocket.errors import ConnectionLostError, NotConnectedError, RequestTimeoutError
from aiorocket.remoting import Connection, ProcessorTable, RemotingClient, RemotingServer, open_command_stream
from aiorocket.runtime import memory_env
from aiorocket_protocol import JSON, MSGPACK, ROCKETMQ, RemotingCommand

ECHO, LATER, NEVER, ASK_BACK, ONEWAY = 10, 11, 12, 13, 14


class Service:
    """A server with a few handlers and a client that serves one code itself."""

    def __init__(self, **config: Any) -> None:
        self.oneways: list[RemotingCommand] = []
        self.seen: list[int] = []
        processors = ProcessorTable()
        processors.add(ECHO, self.echo)
        processors.add(LATER, self.later)
        processors.add(NEVER, lambda connection, request: None)
        processors.add(ASK_BACK, self.ask_back)
        processors.add(ONEWAY, self.oneway)
        self.config = RemotingConfig(**config)
        self.server = RemotingServer(memory_env(), processors, RemotingConfig())
        own = ProcessorTable()
        own.add(ECHO, self.echo)
        self.client = RemotingClient(memory_env(), self.config, own)

    def echo(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.seen.append(request.serialize_type)
        return RemotingCommand.response(0, remark="echo", body=request.body)

    async def later(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0.01)
        return RemotingCommand.response(0, body=request.body[::-1])

    async def ask_back(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        answer = await connection.request(RemotingCommand.request(ECHO, body=b"from the server"), 60.0)
        return RemotingCommand.response(0, body=answer.body)

    def oneway(self, connection: Connection, request: RemotingCommand) -> None:
        self.oneways.append(request)

    async def __aenter__(self) -> Service:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.server.close(grace=0.01)

    async def call(self, code: int, body: bytes = b"", timeout: float = 60.0) -> RemotingCommand:
        return await self.client.request(self.server.address, RemotingCommand.request(code, body=body), timeout)


@pytest.mark.parametrize(
    ("serializer", "requests", "answer"),
    [("auto", [JSON, MSGPACK], MSGPACK), ("json", [JSON] * 2, JSON), ("rocketmq", [ROCKETMQ] * 2, ROCKETMQ),
     ("msgpack", [MSGPACK] * 2, MSGPACK)],
)  # fmt: skip
async def test_serialisation_is_negotiated_or_forced(serializer: str, requests: list[int], answer: int) -> None:
    async with Service(serializer=serializer) as service:
        answers = [await service.call(ECHO, b"a"), await service.call(ECHO, b"b")]
        assert service.seen == requests
        assert [a.serialize_type for a in answers] == [answer, answer]
        assert [(a.code, a.body, a.remark) for a in answers] == [(0, b"a", "echo"), (0, b"b", "echo")]
        back = await service.call(ASK_BACK)
        assert back.body == b"from the server"
        assert service.seen[-1] == requests[-1]  # the server asks in what it received last


async def test_many_requests_share_a_connection_and_answers_find_their_future() -> None:
    async with Service() as service:
        bodies = [bytes([n % 256]) * (n * 13 % 3000) for n in range(300)]
        answers = await asyncio.gather(
            *(service.call(LATER if n % 3 == 0 else ECHO, body) for n, body in enumerate(bodies))
        )
        for n, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
            assert answer.body == (body[::-1] if n % 3 == 0 else body)
        assert len(service.server.connections) == 1
        assert service.server.connections[0].in_flight == 0


async def test_large_bodies_both_ways() -> None:
    async with Service() as service:
        for size in (4095, 4096, 300_000, 5_000_000):
            assert (await service.call(ECHO, b"z" * size)).body == b"z" * size


async def test_an_answer_in_pieces_is_one_body() -> None:
    """As pulls are answered: behind a body or alone, small pieces, large ones, more than one write gathers."""
    pieces = [[b"a"], [b""], [b"b" * 5000, b"c"], [bytes([number]) * 300 for number in range(200)]]

    def answer(connection: Connection, request: RemotingCommand) -> None:
        number = request.body[0]
        connection.reply(request, RemotingCommand.response(0, body=request.body[1:]), pieces[number])

    async with Service() as service:
        service.server.processors.add(15, answer)
        for own in (b"", b"body", b"body" * 2000):
            calls = [service.call(15, bytes([number]) + own) for number in range(4)]
            answers = await asyncio.gather(*calls)
            assert [each.body for each in answers] == [own + b"".join(these) for these in pieces]


async def test_oneway_gets_no_answer() -> None:
    async with Service() as service:
        await service.client.oneway(service.server.address, RemotingCommand.request(ONEWAY, body=b"1"))
        await service.client.oneway(service.server.address, RemotingCommand.request(999, body=b"unknown code"))
        assert (await service.call(ECHO)).remark == "echo"
        assert [request.body for request in service.oneways] == [b"1"]
        assert service.server.connections[0].in_flight == 0


async def test_a_request_ends_by_its_deadline_and_leaves_nothing() -> None:
    async with Service() as service:
        loop = asyncio.get_running_loop()
        await service.call(ECHO)
        start = loop.time()
        with pytest.raises(RequestTimeoutError, match=r"request code 12 within 0\.05 s"):
            await service.call(NEVER, timeout=0.05)
        assert 0.04 <= loop.time() - start < 30
        connection = service.client.live(service.server.address)
        assert connection is not None and connection.pending == 0


async def test_a_cancelled_waiter_is_forgotten() -> None:
    async with Service() as service:
        await service.call(ECHO)
        connection = service.client.live(service.server.address)
        assert connection is not None
        future = connection.request(RemotingCommand.request(LATER), 60.0)
        future.cancel()
        assert (await service.call(LATER)).code == 0
        assert connection.pending == 0


async def test_pending_requests_fail_when_the_connection_ends() -> None:
    async with Service() as service:
        await service.call(ECHO)
        connection = service.client.live(service.server.address)
        assert connection is not None
        waiting = [connection.request(RemotingCommand.request(NEVER), 60.0) for _ in range(3)]
        await asyncio.sleep(0.01)
        service.server.connections[0].abort("test")
        for future in waiting:
            with pytest.raises(ConnectionLostError):
                await future
        assert connection.closed and service.client.live(service.server.address) is None
        with pytest.raises(NotConnectedError):
            connection.request(RemotingCommand.request(ECHO), 1.0)
        connection.send(RemotingCommand.request(ECHO))
        assert (await service.call(ECHO)).code == 0  # over a new connection


async def test_the_streams_face_speaks_the_same() -> None:
    async with Service() as service:
        for serializer, kind in (("json", JSON), ("rocketmq", ROCKETMQ), ("msgpack", MSGPACK)):
            reader, writer = await open_command_stream("127.0.0.1", service.server.port, serializer=serializer)
            first = writer.write(RemotingCommand.request(ECHO, body=b"x" * 100_000))
            second = writer.write(RemotingCommand.request(ECHO))
            await writer.drain()
            answers = [await reader.read(), await reader.read()]
            assert [answer.opaque for answer in answers if answer] == [first, second]
            assert answers[0] is not None and len(answers[0].body) == 100_000 and answers[0].serialize_type == kind
            await writer.close()


async def test_a_client_answers_a_server_in_its_own_serialisation() -> None:
    """Apache's brokers forward what an administrator asks of a member with the fields that our client sent them."""
    async with Service() as service:
        await service.call(ECHO)
        (connection,) = service.server.connections
        connection._send_type = JSON  # as Apache's
        command = RemotingCommand.request(ECHO, ext={"_accept": "msgpack"})
        assert (await connection.request(command, 5.0)).serialize_type == JSON


async def test_a_json_request_that_accepts_msgpack_is_answered_in_it() -> None:
    async with Service() as service:
        reader, writer = await open_command_stream("127.0.0.1", service.server.port)
        writer.write(RemotingCommand.request(ECHO, ext={"_accept": "msgpack"}))
        writer.write(RemotingCommand.request(ECHO, ext={"_accept": "cbor"}))
        answers = [await reader.read(), await reader.read()]
        assert [answer.serialize_type for answer in answers if answer] == [MSGPACK, JSON]
        await writer.close()
