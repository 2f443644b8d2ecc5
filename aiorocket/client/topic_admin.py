"""Topics at their brokers: where they are administered, setting them up, and having them there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from aiorocket.client.core.namespace import wrap
from aiorocket.client.core.retry import NO_NAMESERVER
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.session import Session
from aiorocket.errors import (
    NotConnectedError,
    RemoteError,
    RequestTimeoutError,
    RocketError,
    TopicNotFoundError,
    UsageError,
)
from aiorocket.model import check_topic
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    MASTER_ID,
    PERM_READ_WRITE,
    SINGLE_TAG,
    ClusterInfo,
    CreateTopicRequestHeader,
    ProtocolError,
    RequestCode,
    ResponseCode,
    decode_body,
)

__all__ = ("DEFAULT_QUEUES", "configure", "create_topic", "ensure_topics", "master_of", "masters_of")

log = logging.getLogger("aiorocket.client")

#: Of a topic that is created without a number, on each broker: as many as one that a first send creates.
DEFAULT_QUEUES = 4
#: Between two looks for a route, and two tries to reach anybody.
_PAUSE = 0.1


def master_of(route: TopicRoute, broker_name: str) -> str:
    """The address of the broker's master; NotConnectedError when it has none."""
    address = route.master(broker_name)
    if address is None:
        raise NotConnectedError(f"broker {broker_name!r} of topic {route.topic!r} has no master at the moment")
    return address


async def configure(client: Session, address: str, topic: str, queues: int) -> None:
    """Create ``topic`` on the broker at ``address``, or change it: so many queues, for reading and writing. RemoteError
    when the broker serves no administration."""
    header = CreateTopicRequestHeader(topic, AUTO_CREATE_TOPIC, queues, queues, PERM_READ_WRITE, SINGLE_TAG, False)
    await client.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)


async def create_topic(
    client: Session, topic: str, queues: int = DEFAULT_QUEUES, *, masters: Mapping[str, str] | None = None
) -> None:
    """Create ``topic`` (its name on the wire) on every master, or on ``masters`` (addresses by name), or change its
    queues there. Clients find it when this returns.

    A broker that cannot be reached is passed over with a warning; the first error is raised when none could.
    NotConnectedError when no broker is registered.
    """
    if masters is None:
        masters = await masters_of(client, None)
    made = await asyncio.gather(
        *(configure(client, address, topic, queues) for address in masters.values()), return_exceptions=True
    )
    failures = {name: error for name, error in zip(masters, made, strict=True) if error is not None}
    for error in failures.values():
        if len(failures) == len(masters) or not isinstance(error, RocketError | ProtocolError):
            raise error
    for name, error in failures.items():
        log.warning("topic %s is not created on broker %s: %s", topic, name, error)
    await _routed(client, topic, masters.keys() - failures.keys())


async def ensure_topics(client: Session, topics: Iterable[str]) -> None:
    """Have each of ``topics`` (names of the application's): one that nobody has is created with ``DEFAULT_QUEUES``
    queues on every master. Nobody who can be asked is waited for up to the client's ``start_timeout``."""
    deadline = client.loop.time() + client.config.start_timeout
    for name in topics:
        topic = wrap(client.config.namespace, check_topic(name))
        while True:
            try:
                await client.route(topic)
                break
            except TopicNotFoundError:
                log.info("creating topic %s, which nobody has", topic)
            except NotConnectedError:
                if client.loop.time() >= deadline:
                    raise
            try:
                await create_topic(client, topic)
                break
            except NotConnectedError:
                if client.loop.time() >= deadline:
                    raise
            await asyncio.sleep(_PAUSE)


def no_brokers(failed: Mapping[str, Exception]) -> NotConnectedError:
    """``failed``: what came of each name server."""
    text = "; ".join(str(error) if server in str(error) else f"{server}: {error}" for server, error in failed.items())
    if any(isinstance(error, RemoteError) and error.code == ResponseCode.NO_PERMISSION for error in failed.values()):
        advice = "Sign in with the keys of a user who may look at the cluster (--credentials, access_key=)"
    else:
        advice = NO_NAMESERVER
    return NotConnectedError(
        f"no name server says which brokers there are: {text}{'' if text.endswith('?') else '.'} {advice}"
    )


async def masters_of(client: Session, cluster: str | None) -> dict[str, str]:
    """The addresses of the masters by their brokers' names, as the first name server that answers knows them."""
    failed: dict[str, Exception] = {}
    for nameserver in client.config.nameservers:
        try:
            answer = await client.call(nameserver, RequestCode.GET_BROKER_CLUSTER_INFO)
            about = decode_body(ClusterInfo, answer.body, answer.serialize_type)
            break
        except (RocketError, ProtocolError) as error:
            failed[nameserver] = error
    else:
        raise no_brokers(failed)
    if cluster is not None and about.cluster_addr_table and cluster not in about.cluster_addr_table:
        known = ", ".join(sorted(about.cluster_addr_table))
        raise UsageError(f"no broker of cluster {cluster!r} is registered; there are {known}")
    masters = {
        name: broker.broker_addrs[MASTER_ID]
        for name, broker in sorted(about.broker_addr_table.items())
        if MASTER_ID in broker.broker_addrs and cluster in (None, broker.cluster)
    }
    if not masters:
        raise NotConnectedError(
            f"no broker is registered with {nameserver}: `aiorocket broker --nameserver {nameserver}` starts one"
        )
    return masters


async def _routed(client: Session, topic: str, brokers: Iterable[str]) -> None:
    """Brokers tell the name servers of a new topic before they answer, or a moment later."""
    missing = set(brokers)
    limit = client.config.remoting.request_timeout
    deadline = client.loop.time() + limit
    while True:
        try:
            route = await client.route(topic, refresh=True)
            missing -= {queue.broker_name for queue in route.subscribe}
        except TopicNotFoundError:
            pass
        if not missing:
            return
        if client.loop.time() >= deadline:
            named = ", ".join(sorted(missing))
            raise RequestTimeoutError(f"topic {topic!r} was created, but has no route to {named} after {limit:g} s")
        await asyncio.sleep(_PAUSE)
