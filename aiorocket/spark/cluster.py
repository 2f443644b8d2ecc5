"""What Spark's driver asks a cluster: which queues there are, what they hold, and what a group has committed.

Topics are the user's names throughout, without the client's namespace. Every function is for a started ``Session``.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from aiorocket.client.pipeline.reading import Bounds, QueueScan, unwrap, wrap
from aiorocket.errors import (
    NotConnectedError,
    ProtocolError,
    RemoteError,
    RocketError,
    TopicNotFoundError,
    UsageError,
)
from aiorocket.model import Queue
from aiorocket_protocol import (
    DLQ_PREFIX,
    PERM_READ_WRITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TOOLS_GROUP,
    ClusterInfo,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    RecordView,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicListBody,
    UpdateConsumerOffsetRequestHeader,
    decode_body,
    pull_header,
    reply_topic,
    split_records,
)

if TYPE_CHECKING:
    from aiorocket.client.pipeline.reading import Session, TopicRoute
    from aiorocket.spark.options import SourceOptions

__all__ = (
    "Bounds", "address_of", "asked_for", "bounds", "brokers", "commit", "committed", "has_master", "offsets_at",
    "queues", "stored_at", "wait_for_more",
)  # fmt: skip

log = logging.getLogger("aiorocket.spark")

T = TypeVar("T")

#: Requests to all brokers together that wait for an answer: a driver with thousands of queues asks so many at a time.
_AT_ONCE = 256
#: Queues that an error names one by one.
_NAMED = 4
#: A driver that waits for messages shall still notice within this time that its query is being stopped.
_LONGEST_WAIT = 0.5
_FOUND = int(ResponseCode.SUCCESS)
_NOTHING = (int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY))
_OUTSIDE = int(ResponseCode.PULL_OFFSET_MOVED)
_NO_OFFSET = int(ResponseCode.QUERY_NOT_FOUND)
#: The broker is there and does not have the queue.
_GONE = (int(ResponseCode.TOPIC_NOT_EXIST), int(ResponseCode.INVALID_PARAMETER))
#: With SYSTEM_TOPICS: what belongs to the cluster itself and is no data of anybody's.
_SYSTEM_PREFIXES = ("RMQ_SYS_", SYSTEM_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX)


async def address_of(client: Session, queue: Queue, *, refresh: bool = False) -> str:
    """``host:port`` of the master that has ``queue``, of a replica while there is no master.

    TopicNotFoundError for a topic without a route, NotConnectedError when its route does not have the broker.
    """
    topic = wrap(client.config.namespace, queue.topic)
    route = client.routes.known(topic)
    if route is None or refresh:
        route = await client.route(topic, refresh=refresh)
    address = route.reader(queue.broker_name)
    if address is None and not refresh:
        return await address_of(client, queue, refresh=True)
    if address is None:
        raise NotConnectedError(f"no route to broker {queue.broker_name!r} for topic {queue.topic!r}")
    return address


def has_master(client: Session, queue: Queue) -> bool:
    """Whether ``address_of`` names the master, by the last route that was asked for. A replica may not have the last
    messages yet, so what it lacks is not lost."""
    route = client.routes.known(wrap(client.config.namespace, queue.topic))
    return route is not None and route.master(queue.broker_name) is not None


def on_wire(client: Session, queue: Queue) -> Queue:
    """The queue by the name that brokers know."""
    return queue._replace(topic=wrap(client.config.namespace, queue.topic))


async def queues(
    client: Session,
    options: SourceOptions,
    read: Mapping[Queue, int] | None = None,
    *,
    missing: dict[str, TopicNotFoundError] | None = None,
) -> list[Queue]:
    """The readable queues of ``topics``, ``topic_pattern`` or ``assign``, sorted, by what the name server says now.

    A pattern matches whole names, also ``%DLQ%group`` and ``%RETRY%group``, and never the cluster's own topics; it may
    match nothing. TopicNotFoundError with the name for a topic that has no route, and how far it was read where
    ``read`` knows (the next offset of each queue); with ``missing`` it is put there. UsageError for one that has, but
    without permission to read. Of ``assign`` the queues are returned as they are written.
    """

    async def route_of(topic: str) -> TopicRoute | None:
        try:
            return await _route(client, topic, read)
        except TopicNotFoundError as error:
            if missing is None:
                raise
            missing[topic] = error
            return None

    if options.assign:
        topics = sorted({each.topic for each in options.assign})
        await _together(partial(route_of, topic) for topic in topics)
        return sorted(set(options.assign))
    if options.topic_pattern:
        names = await _matching(client, options.topic_pattern)
        known = await _together(partial(_route_or_none, client, topic) for topic in names)
        found = [each for route in known if route is not None for each in route.subscribe]
    else:
        names = sorted(set(options.topics))
        routes = await _together(partial(route_of, topic) for topic in names)
        for topic, route in zip(names, routes, strict=True):
            if route is not None and not route.subscribe:
                raise UsageError(
                    f"topic {topic!r} may not be read (its permission lacks 4; older brokers make %DLQ% topics "
                    f"write-only): set it with mqadmin updateTopicPerm -t {topic} -p {PERM_READ_WRITE}"
                )
        found = [each for route in routes if route is not None for each in route.subscribe]
    namespace = client.config.namespace
    return sorted({each._replace(topic=unwrap(namespace, each.topic)) for each in found})


def asked_for(options: SourceOptions, queue: Queue) -> bool:
    """Whether ``queues`` may return ``queue``, going by its name."""
    if options.assign:
        return queue in options.assign
    if options.topic_pattern:
        return re.fullmatch(options.topic_pattern, queue.topic) is not None
    return queue.topic in options.topics


async def _route(client: Session, topic: str, read: Mapping[Queue, int] | None = None) -> TopicRoute:
    try:
        return await client.route(wrap(client.config.namespace, topic), refresh=True)
    except TopicNotFoundError:
        if ends := [(queue, end) for queue, end in sorted((read or {}).items()) if queue.topic == topic]:
            where = ", ".join(f"{queue.broker_name}/{queue.queue_id}: {end}" for queue, end in ends[:_NAMED])
            more = f" and {len(ends) - _NAMED} queues more" if len(ends) > _NAMED else ""
            raise TopicNotFoundError(
                f"topic {topic!r} was read up to these offsets ({where}{more}), and no broker has it now: it was "
                "deleted, or its brokers are away"
            ) from None
        if not topic.startswith(DLQ_PREFIX):
            raise
        group = topic.removeprefix(DLQ_PREFIX)
        raise TopicNotFoundError(
            f"topic {topic!r} is not there: group {group!r} has given up no message, or is called otherwise "
            "(aiorocket group list)"
        ) from None


async def _route_or_none(client: Session, topic: str) -> TopicRoute | None:
    try:
        return await _route(client, topic)
    except TopicNotFoundError:
        return None  # it was deleted since it was listed


async def _matching(client: Session, pattern: str) -> list[str]:
    """Topics whose name, in this namespace, matches as a whole."""
    try:
        matches = re.compile(pattern).fullmatch
    except re.error as error:
        raise UsageError(f"topicPattern {pattern!r} is no regular expression: {error}") from None
    listed, cluster = await asyncio.gather(
        _ask_nameserver(client, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        _ask_nameserver(client, RequestCode.GET_BROKER_CLUSTER_INFO),
    )
    about = decode_body(ClusterInfo, cluster.body, cluster.serialize_type)
    # Apache's brokers have a topic of the name of each broker and cluster, and one for replies to requests.
    clusters = about.cluster_addr_table
    own = {*about.broker_addr_table, *clusters, *map(reply_topic, clusters)}
    namespace = client.config.namespace
    found = []
    for name in decode_body(TopicListBody, listed.body, listed.serialize_type).topics:
        topic = unwrap(namespace, name)
        system = name in SYSTEM_TOPICS or name.startswith(_SYSTEM_PREFIXES)
        if wrap(namespace, topic) == name and name not in own and not system and matches(topic):
            found.append(topic)
    return sorted(set(found))


async def _ask_nameserver(client: Session, code: int) -> RemotingCommand:
    """The answer of the first name server that gives one."""
    said: list[str] = []
    for address in client.config.nameservers:
        try:
            return await client.call(address, code)
        except (RocketError, ProtocolError) as error:
            said.append(f"{address}: {error}")
    raise NotConnectedError(f"no name server answers {RequestCode(code).name}: {'; '.join(said)}")


async def brokers(client: Session) -> set[str]:
    """The names of the brokers that are registered now."""
    answer = await _ask_nameserver(client, RequestCode.GET_BROKER_CLUSTER_INFO)
    return set(decode_body(ClusterInfo, answer.body, answer.serialize_type).broker_addr_table)


async def bounds(
    client: Session, queues: Iterable[Queue], *, failures: dict[Queue, Exception] | None = None
) -> dict[Queue, Bounds]:
    """The offsets that each queue has now.

    Left out are queues that their broker says it does not have. A queue that could not be asked (no route to its
    broker, no connection, no answer) is put into ``failures`` with the error; without ``failures`` the first such error
    is raised.
    """

    async def ask(queue: Queue, address: str) -> Bounds | None:
        # Not scan.bounds() of an unknown topic, which is (0, 0): deleted and empty are different here.
        scan = QueueScan(client, on_wire(client, queue), address)
        try:
            found = await scan.bounds()
        except RemoteError as error:
            if error.code in _GONE:
                return None
            raise
        return None if found == (0, 0) and await _is_gone(client, queue, address) else found

    answers = await _by_queue(client, queues, ask, failures)
    return {queue: found for queue, found in answers.items() if found is not None}


async def _is_gone(client: Session, queue: Queue, address: str) -> bool:
    """A pull says what the offset requests of Apache's brokers do not: whether topic and queue exist."""
    answer = await client.call(
        address, RequestCode.PULL_MESSAGE, _pull(client, queue, 0), accept=(_FOUND, *_NOTHING, _OUTSIDE, *_GONE)
    )
    return answer.code in _GONE


def _pull(client: Session, queue: Queue, offset: int, flags: int = 0, hold_ms: int = 0) -> PullMessageRequestHeader:
    """For one message, as the tools' group."""
    topic = wrap(client.config.namespace, queue.topic)
    return pull_header(TOOLS_GROUP, topic, queue.queue_id, offset, 1, flags=PULL_SUBSCRIPTION | flags, hold_ms=hold_ms)


async def offsets_at(client: Session, queues: Iterable[Queue], millis: int) -> dict[Queue, int]:
    """The offset of the first message of each queue that was stored at ``millis`` (wall clock) or later; the queue's
    end when there is none. RemoteError and connection errors are raised."""

    async def ask(queue: Queue, address: str) -> int:
        offset = await QueueScan(client, on_wire(client, queue), address).offset_at(millis)
        # RocketMQ 4.9 answers with the last message for a time after it.
        stored = await _stored(client, queue, offset, address)
        return offset + 1 if stored is not None and stored < millis else offset

    return await _by_queue(client, queues, ask, None)


async def stored_at(client: Session, offsets: Mapping[Queue, int]) -> dict[Queue, int | None]:
    """When the message at the offset was stored, in milliseconds by its broker's clock; None where none is to be had.
    RemoteError and connection errors are raised."""
    return await _by_queue(
        client, offsets, lambda queue, address: _stored(client, queue, offsets[queue], address), None
    )


async def _stored(client: Session, queue: Queue, offset: int, address: str) -> int | None:
    accept = (_FOUND, *_NOTHING, _OUTSIDE)
    answer = await client.call(address, RequestCode.PULL_MESSAGE, _pull(client, queue, offset), accept=accept)
    if answer.code != _FOUND:
        return None
    message = split_records(answer.body, RecordView)[0]
    return message.store_timestamp if message.queue_offset == offset else None


async def committed(client: Session, group: str, queues: Iterable[Queue]) -> dict[Queue, int | None]:
    """The next offset of ``group`` in each queue; None where its broker knows none. (Old brokers answer 0 instead for a
    young queue.) RemoteError and connection errors are raised."""
    wire_group = wrap(client.config.namespace, group)

    async def ask(queue: Queue, address: str) -> int | None:
        header = QueryConsumerOffsetRequestHeader(wire_group, on_wire(client, queue).topic, queue.queue_id, False)
        code = RequestCode.QUERY_CONSUMER_OFFSET
        answer = await client.call(address, code, header, accept=(_FOUND, _NO_OFFSET))
        return answer.read(QueryConsumerOffsetResponseHeader).offset if answer.code == _FOUND else None

    return await _by_queue(client, queues, ask, None)


async def commit(client: Session, group: str, offsets: Mapping[Queue, int]) -> None:
    """Store ``offsets`` (the next ones to be read) for ``group`` and wait for every broker's word. All are tried; then
    the first error is raised."""
    wire_group = wrap(client.config.namespace, group)

    async def tell(queue: Queue, address: str) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            wire_group, on_wire(client, queue).topic, queue.queue_id, offsets[queue]
        )
        await client.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    failures: dict[Queue, Exception] = {}
    await _by_queue(client, offsets, tell, failures)
    for queue, error in failures.items():
        log.warning("commit of %s at %d for group %s: %s", queue, offsets[queue], group, error)
    if failures:
        raise next(iter(failures.values()))


async def wait_for_more(client: Session, offsets: Mapping[Queue, int], timeout: float) -> None:
    """Return as soon as one of the queues has a message at its offset or later; after ``timeout`` seconds, and 500 ms
    at most, in any case. Brokers that cannot be asked are waited for like silent ones."""
    limit = min(timeout, _LONGEST_WAIT)
    if limit <= 0:
        return
    try:
        async with asyncio.timeout(limit):
            if not offsets:
                await asyncio.Event().wait()
            waits = [asyncio.ensure_future(_arrival(client, *entry, limit)) for entry in sorted(offsets.items())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
    except TimeoutError:
        pass


async def _arrival(client: Session, queue: Queue, offset: int, limit: float) -> None:
    """Ends when there is a message to read; otherwise never."""
    try:
        connection = await client.connection(await address_of(client, queue))
        header = _pull(client, queue, offset, PULL_SUSPEND, round(limit * 1000))
        answer = await connection.request(RemotingCommand.request(RequestCode.PULL_MESSAGE, header), limit + 1.0)
        if answer.code == _FOUND:
            return
        if answer.code == _OUTSIDE and answer.read(PullMessageResponseHeader).max_offset > offset:
            return  # retention has passed the offset: there is something, further on
    except (RocketError, ProtocolError) as error:
        log.debug("waiting for %s: %s", queue, error)
    await asyncio.Event().wait()


async def _by_queue(
    client: Session,
    queues: Iterable[Queue],
    ask: Callable[[Queue, str], Awaitable[T]],
    failures: dict[Queue, Exception] | None,
) -> dict[Queue, T]:
    """``ask`` for each queue, several at once. A queue whose broker cannot be asked at its known address is asked at
    the address the name server gives now."""

    async def one(queue: Queue) -> T:
        address = await address_of(client, queue)
        try:
            return await ask(queue, address)
        except (NotConnectedError, RemoteError):
            moved = await address_of(client, queue, refresh=True)
            if moved == address:
                raise
            return await ask(queue, moved)

    wanted = sorted(set(queues))
    answers: dict[Queue, T] = {}

    async def kept(queue: Queue) -> None:
        try:
            answers[queue] = await one(queue)
        except (RocketError, ProtocolError) as error:
            if failures is None:
                raise
            failures[queue] = error

    await _together(partial(kept, queue) for queue in wanted)
    return {queue: answers[queue] for queue in wanted if queue in answers}


async def _together(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """The results of all calls, in order, at most ``_AT_ONCE`` of them running; the first error after the others have
    ended."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with room:
            return await call()

    tasks = [asyncio.ensure_future(one(call)) for call in calls]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return [task.result() for task in tasks]
