"""Whom an Admin asks, and how: one server, every master side by side, every name server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from aiorocket.client.core.namespace import holds, unwrap, wrap
from aiorocket.client.core.retry import NO_NAMESERVER, remote_error
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.session import Session
from aiorocket.client.topic_admin import master_of, masters_of, no_brokers
from aiorocket.errors import (
    ConnectionLostError,
    NotConnectedError,
    RemoteError,
    RequestTimeoutError,
    RocketError,
    UsageError,
)
from aiorocket.remoting.address import parse_address, unix_path
from aiorocket_protocol import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    ProtocolError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_body,
    decode_configuration,
    decode_plain,
    encode_body,
)
from aiorocket_protocol.plain import Plain

__all__ = ("ABSENT", "Answers", "Asking", "Broker", "Missing", "side_by_side")

T = TypeVar("T")
K = TypeVar("K")

#: Answers of a broker that has nothing of what was asked about.
ABSENT = (
    int(ResponseCode.TOPIC_NOT_EXIST),
    int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    int(ResponseCode.CONSUMER_NOT_ONLINE),
)
#: A broker asks a client for up to 10 s before it answers us.
CLIENT_CALL = 15.0
#: Questions of one kind that are under way at a time.
_AT_ONCE = 16


class Broker(NamedTuple):
    """A master, and where it is asked."""

    name: str
    address: str


class Missing(NamedTuple):
    """A server whose part of an answer is missing, and why."""

    server: str
    why: str


class Answers(list[T]):
    """What the servers that could be asked said; ``missing`` names the others. It is empty when the answer is
    whole."""

    missing: tuple[Missing, ...] = ()


class Asking:
    """``brokers`` are addresses to ask instead of the masters that name servers know (an administration listener, a
    port that is mapped). UsageError for what is no address."""

    def __init__(self, client: Session, brokers: Sequence[str] = ()) -> None:
        for address in brokers:
            if unix_path(address) is None:
                parse_address(address)
        self.client = client
        self.given = tuple(brokers)
        client.remoting.reached.update(brokers)  # as if: they are the user's, not what brokers registered

    # ---- names

    def wire(self, name: str) -> str:
        """As brokers know the topic or group: with the namespace."""
        return wrap(self.client.config.namespace, name)

    def shown(self, name: str) -> str:
        """As the application knows it."""
        return unwrap(self.client.config.namespace, name)

    def holds(self, wire: str) -> bool:
        """Is the topic or group, by its name on the wire, in the namespace?"""
        return holds(self.client.config.namespace, wire)

    # ---- whom

    async def cluster_info(self) -> ClusterInfo:
        """Which brokers there are, as the first name server that answers knows them; NotConnectedError."""
        if self.given:
            found = await self.brokers()
            data = {each.name: BrokerData("", each.name, {MASTER_ID: each.address}) for each in found}
            return ClusterInfo(data, {})
        failed: dict[str, Exception] = {}
        for nameserver in self.client.config.nameservers:
            try:
                answer = await self.client.call(nameserver, RequestCode.GET_BROKER_CLUSTER_INFO)
                return decode_body(ClusterInfo, answer.body, answer.serialize_type)
            except (RocketError, ProtocolError) as error:
                failed[nameserver] = error
        raise no_brokers(failed)

    async def brokers(self, *, cluster: str | None = None, broker: str | None = None) -> list[Broker]:
        """The masters of one cluster or of all, or the one named ``broker``. UsageError when there is none of the name,
        NotConnectedError when nobody can be reached or is registered."""
        away: Exception | None = None
        found: list[Broker] = []
        for address in self.given:
            try:
                found.append(Broker(await self.name_of(address), address))
            except (RocketError, ProtocolError) as error:
                found.append(Broker(address, address))  # what is asked next will miss it
                away = away or error
        if not self.given:
            found = [Broker(*each) for each in (await masters_of(self.client, cluster)).items()]
        if broker is None:
            return found
        named = [each for each in found if broker in each]
        if not named and away is not None:  # it may be the one
            raise away
        if not named:
            raise UsageError(f"no broker {broker!r}: there are {', '.join(each.name for each in found)}")
        return named

    async def name_of(self, address: str) -> str:
        """The name of the broker at ``address``, or ``address`` when it does not say: it may be asked other things."""
        try:
            answer = await self.call(address, RequestCode.GET_BROKER_CONFIG)
        except RemoteError:
            return address
        return decode_configuration(answer.body).get("brokerName", address)

    async def master(self, route: TopicRoute, broker: str) -> str:
        """Where the master named ``broker`` is asked about the route's topic; NotConnectedError when nobody says."""
        given = {each.name: each.address for each in await self.brokers()} if self.given else {}
        return given.get(broker) or master_of(route, broker)

    # ---- how

    async def call(
        self, address: str, code: int, header: tuple[Any, ...] | None = None, *, accept: Iterable[int] = (),
        timeout: float | None = None,
    ) -> RemotingCommand:  # fmt: skip
        """The answer of one server; RemoteError unless its code is 0 or in ``accept``."""
        return await self.client.call(address, code, header, accept=(0, *accept), timeout=timeout)

    async def plain(
        self, address: str, code: int, header: tuple[Any, ...] | None = None, *, accept: Iterable[int] = ()
    ) -> Plain | None:
        """The object in the answer's body; None for an answer in ``accept``, and for an empty one."""
        answer = await self.call(address, code, header, accept=accept)
        if answer.code or not answer.body:
            return None
        return Plain(decode_plain(answer.body, answer.serialize_type), RequestCode(code).name)

    async def of_member(self, client_id: str, address: str, code: int, header: tuple[Any, ...]) -> Plain:
        """The object that a member answered its broker; RemoteError where there is none, with the member's reason."""
        try:
            answer = await self.call(address, code, header, timeout=CLIENT_CALL)
        except RemoteError as error:
            if "not online" not in (error.remark or ""):
                raise
            said = f"{error.remark}; `aiorocket group members GROUP` names who is"
            raise RemoteError(error.code, said, request=RequestCode(code).name, address=address) from None
        if not answer.body:  # Go's client says only in the remark that it could not write its answer
            raise RemoteError(1, f"{client_id} gave an empty answer: {answer.remark}", address=address)
        return Plain(decode_plain(answer.body, answer.serialize_type), RequestCode(code).name)

    async def put(
        self, address: str, code: int, header: tuple[Any, ...] | None, body: dict[str, Any] | list[Any]
    ) -> RemotingCommand:
        """As ``call``, with a body in the form that the connection speaks."""
        connection = await self.client.connection(address)
        request = RemotingCommand.request(code, header, body=encode_body(body, connection.serialize_type))
        answer = await connection.request(request, self.client.config.remoting.request_timeout)
        if answer.code:
            raise remote_error(answer.code, answer.remark, request=RequestCode(code).name, address=address)
        return answer

    async def each(
        self,
        ask: Callable[[Broker], Awaitable[list[T]]],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Answers[T]:
        """What each master says, side by side. The first error is raised when none of them could be asked."""
        brokers = await self.brokers(cluster=cluster, broker=broker)
        return await gathered([(each.name, ask(each)) for each in brokers])

    async def each_nameserver(self, ask: Callable[[str], Awaitable[list[T]]]) -> Answers[T]:
        """The same of every name server."""

        async def one(nameserver: str) -> list[T]:
            with advised():
                return await ask(nameserver)

        return await gathered([(each, one(each)) for each in self.client.config.nameservers])

    async def first_nameserver(
        self, code: int, header: tuple[Any, ...] | None = None, *, accept: Iterable[int] = ()
    ) -> RemotingCommand:
        """The answer of the first one that is reached; the last one's error when none is."""
        *others, last = self.client.config.nameservers
        for nameserver in others:
            with suppress(NotConnectedError, ConnectionLostError, RequestTimeoutError):
                return await self.call(nameserver, code, header, accept=accept)
        with advised():
            return await self.call(last, code, header, accept=accept)


@contextmanager
def advised() -> Iterator[None]:
    """A name server that is not reached is NotConnectedError with what to do."""
    try:
        yield
    except NotConnectedError as error:
        raise NotConnectedError(f"{error}. {NO_NAMESERVER}") from None


async def gathered(asked: Sequence[tuple[str, Awaitable[list[T]]]]) -> Answers[T]:
    """What they say, in their order. Other errors than those of servers are raised; the first one when all failed."""
    results = await asyncio.gather(*(each for _, each in asked), return_exceptions=True)
    answers: Answers[T] = Answers()
    failed: list[tuple[str, BaseException]] = []
    for (name, _), result in zip(asked, results, strict=True):
        if not isinstance(result, BaseException):
            answers.extend(result)
        elif isinstance(result, RocketError | ProtocolError):
            failed.append((name, result))
        else:
            raise result
    if failed and len(failed) == len(asked):
        raise failed[0][1]
    answers.missing = tuple(Missing(name, str(error)) for name, error in failed)
    return answers


async def side_by_side(ask: Callable[[K], Awaitable[T]], about: Iterable[K]) -> list[T]:
    """What ``ask`` says of each, in their order, 16 under way at a time. The first error is raised when all have
    ended."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(each: K) -> T:
        async with room:
            return await ask(each)

    results = await asyncio.gather(*map(one, about), return_exceptions=True)
    found: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found
