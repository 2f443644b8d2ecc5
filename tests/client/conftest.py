"""A name server and a broker of a few lines that answer as a test wants, the client's counterpart when things go
wrong; and a real one with who administers it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest_asyncio

from aiorocket import Admin, Embedded, embed
from aiorocket.config import RemotingConfig
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.remoting.server import RemotingServer
from aiorocket.runtime.env import memory_env
from aiorocket_protocol import (
    BrokerData,
    GetRouteInfoRequestHeader,
    QueueData,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    TopicRouteData,
    encode_body,
)

Answer = Callable[[Connection, RemotingCommand], RemotingCommand | None]


class Scripted:
    """``on_send`` decides every answer to a send; ``sends`` are the headers that came."""

    def __init__(self) -> None:
        env = memory_env()
        config = RemotingConfig(serializer="auto")
        processors = ProcessorTable()
        processors.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        self._nameserver = RemotingServer(env, processors, config)
        self.brokers: list[RemotingServer] = []
        self._env, self._config = env, config
        self.sends: list[SendMessageRequestHeaderV2] = []
        self.on_send: Answer = lambda connection, command: self.stored()
        self.route_requests = 0
        self.queues = 2
        self.perm = 6

    async def start(self, brokers: int) -> None:
        await self._nameserver.start()
        for _ in range(brokers):
            processors = ProcessorTable()
            processors.add(RequestCode.SEND_MESSAGE_V2, self._send)
            processors.add(RequestCode.HEART_BEAT, lambda connection, command: RemotingCommand.response())
            processors.add(RequestCode.UNREGISTER_CLIENT, lambda connection, command: RemotingCommand.response())
            broker = RemotingServer(self._env, processors, self._config)
            await broker.start()
            self.brokers.append(broker)

    async def close(self) -> None:
        await asyncio.gather(*(broker.close(0.0) for broker in self.brokers))
        await self._nameserver.close(0.0)
        await self._env.disk.close()

    @property
    def address(self) -> str:
        return self._nameserver.address

    def stored(self, code: int = 0) -> RemotingCommand:
        return RemotingCommand.response(code, SendMessageResponseHeader("0" * 32, 0, len(self.sends)))

    def by_turns(self, *answers: RemotingCommand | None) -> None:
        """Answer the first sends with these (None: not at all), all others with success."""
        left = list(answers)
        self.on_send = lambda connection, command: left.pop(0) if left else self.stored()

    def _route(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self.route_requests += 1
        if command.read(GetRouteInfoRequestHeader).topic != "t":
            return RemotingCommand.response(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        names = [f"broker-{number}" for number in range(len(self.brokers))]
        data = TopicRouteData(
            [QueueData(name, self.queues, self.queues, self.perm) for name in names],
            [BrokerData("c", name, {0: broker.address}) for name, broker in zip(names, self.brokers, strict=True)],
        )
        return RemotingCommand.response(body=encode_body(data, connection.reply_type(command)))

    def _send(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        self.sends.append(command.read(SendMessageRequestHeaderV2))
        return self.on_send(connection, command)


@pytest_asyncio.fixture
async def mq() -> AsyncIterator[Embedded]:
    async with embed(broker={"register_interval": 0.3}) as embedded:
        await embedded.create_topic("orders", queues=2)
        yield embedded


@pytest_asyncio.fixture
async def admin(mq: Embedded) -> AsyncIterator[Admin]:
    async with Admin(nameservers=mq.nameservers) as admin:
        yield admin


@pytest_asyncio.fixture
async def scripted() -> AsyncIterator[Scripted]:
    """One broker."""
    peer = Scripted()
    await peer.start(1)
    yield peer
    await peer.close()


@pytest_asyncio.fixture
async def scripted_pair() -> AsyncIterator[Scripted]:
    """Two brokers with the same script."""
    peer = Scripted()
    await peer.start(2)
    yield peer
    await peer.close()
