"""What brokers ask of a client, and the answers. Imported when a client has its first group: none is asked before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from aiorocket.client.answering import consumer_requests, producer_requests

if TYPE_CHECKING:
    from aiorocket.client.registered import GroupMember, GroupProducer
    from aiorocket.client.route_table import RouteTable
    from aiorocket.config import ClientConfig
    from aiorocket.remoting.processors import ProcessorTable
    from aiorocket.runtime.env import Env
    from aiorocket.runtime.tasks import TaskScope

__all__ = ("answer",)


def answer(
    processors: ProcessorTable,
    producers: Mapping[str, GroupProducer],
    consumers: Mapping[str, GroupMember],
    config: ClientConfig,
    env: Env,
    scope: TaskScope,
    routes: RouteTable,
) -> None:
    """Serve there what brokers ask of these groups, as they are when a request comes."""
    for code, handler in {
        **consumer_requests.handlers(consumers, config, env.clock, scope),
        **producer_requests.handlers(producers, config, env.clock, routes),
    }.items():
        processors.add(code, handler)
