"""What administrators ask of a broker: who serves it, and what of it is one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aiorocket.broker.core.tables import Tables
from aiorocket.broker.handlers.assignment import ModeHandler
from aiorocket.broker.handlers.calls import CallHandlers
from aiorocket.broker.handlers.cleaning import CleaningHandlers
from aiorocket.broker.handlers.inspection import InspectionHandlers
from aiorocket.broker.handlers.offset import OffsetHandlers
from aiorocket.broker.handlers.settings import SettingsHandlers
from aiorocket.broker.handlers.statistics import StatisticsHandlers
from aiorocket.broker.handlers.topic import TopicHandlers
from aiorocket.broker.traffic import TrafficMeter
from aiorocket.config import BrokerConfig
from aiorocket.remoting.one_at_a_time import OneAtATime
from aiorocket.remoting.processors import RequestHandler
from aiorocket.runtime.env import Env
from aiorocket.storage.store import MessageStore
from aiorocket_protocol import RequestCode

if TYPE_CHECKING:
    from aiorocket.broker.state import BrokerState

__all__ = ("administration",)

#: What goes through whole tables, or brings one.
_WIDE = frozenset(
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.CLONE_GROUP_OFFSET,
    )
)


def administration(
    env: Env,
    config: BrokerConfig,
    tables: Tables,
    store: MessageStore,
    state: BrokerState,
    traffic: TrafficMeter,
    topics: TopicHandlers,
    offsets: OffsetHandlers,
    *,
    address: str,
    port: int,
    boot: int,
    save_settings: Callable[[], Any],
    reset: Callable[[str, str, int], None],
) -> Iterator[Mapping[int, RequestHandler]]:
    """Handlers by their codes."""
    one = OneAtATime()
    for changing in (
        topics,
        CleaningHandlers(tables, store),
        SettingsHandlers(tables, save=save_settings, port=port, boot=boot),
        CallHandlers(config, tables, store, reset=reset, save=lambda: state.save("offsets")),
        ModeHandler(tables, save=lambda: state.save("modes")),
    ):
        yield {code: one.begun(each) if code in _WIDE else each for code, each in changing.codes().items()}
    loop = asyncio.get_running_loop()
    for looking in (
        topics.looks(),
        offsets.looks(),
        InspectionHandlers(loop, env.clock, config, tables, store, address=address).codes(),
        StatisticsHandlers(env.clock, config.name, tables, store, traffic, boot=boot).codes(),
    ):
        yield {code: one.whole(each) for code, each in looking.items()}
