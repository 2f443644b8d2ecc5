"""The parts of a broker that work on an open store: all that answers requests, and what runs behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from aiorocket.access.handlers import AccessHandlers
from aiorocket.access.security import Security
from aiorocket.broker.administration import administration
from aiorocket.broker.core.counters import SendBack
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.topics import Topic
from aiorocket.broker.handlers.ack import AckHandlers
from aiorocket.broker.handlers.assignment import AssignmentHandler
from aiorocket.broker.handlers.client import ClientHandlers
from aiorocket.broker.handlers.locks import LockHandlers
from aiorocket.broker.handlers.offset import OffsetHandlers
from aiorocket.broker.handlers.pop import PopHandlers
from aiorocket.broker.handlers.pull import PullHandlers
from aiorocket.broker.handlers.pull_rates import PullRates
from aiorocket.broker.handlers.query import QueryHandlers
from aiorocket.broker.handlers.rates import SendRates
from aiorocket.broker.handlers.recall import RecallHandler
from aiorocket.broker.handlers.reply import ReplyHandlers
from aiorocket.broker.handlers.send import SendHandlers
from aiorocket.broker.handlers.send_back import SendBackHandler
from aiorocket.broker.handlers.topic import TopicHandlers
from aiorocket.broker.handlers.transaction import TransactionHandlers
from aiorocket.broker.keeping import keep
from aiorocket.broker.plain_send import plain_sends
from aiorocket.broker.registration import Registration
from aiorocket.broker.repetitions import Repetitions
from aiorocket.broker.revive import PopRevival
from aiorocket.broker.schedule import DelayDelivery
from aiorocket.broker.state import BrokerState
from aiorocket.broker.timers import TimerDelivery
from aiorocket.broker.traffic import TrafficMeter
from aiorocket.broker.transaction_check import TransactionChecks
from aiorocket.config import BrokerConfig
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import RequestHandler
from aiorocket.remoting.server import RemotingServer
from aiorocket.runtime.env import Env
from aiorocket.runtime.turns import in_turns
from aiorocket.storage.store import MessageStore
from aiorocket_protocol import SCHEDULE_TOPIC, TIMER_TOPIC, DataVersion

__all__ = ("Parts",)

_ENDED_AS_ONE = 4  #: So many parked requests, or members of groups, cost about as much as the end of a connection.


class Parts:
    """Whole when made. The broker starts ``checks``, ``delivery``, ``timers``, ``registration``, ``repetitions`` and
    the sampling of ``traffic``; it closes the first five, ``clients``, ``pulls``, ``pops`` and ``rates``. ``address``
    is what clients are told; ``hooks`` are called with every message that was sent back.
    """

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        tables: Tables,
        store: MessageStore,
        state: BrokerState,
        server: RemotingServer,
        *,
        address: str,
        hooks: Sequence[Callable[[SendBack], None]],
        security: Security,
    ) -> None:
        loop = asyncio.get_running_loop()
        changed = self._topics_changed
        self.store = store
        self._topics = tables.topics
        self._settings = tables.settings
        self._state = state
        self._boot = boot = env.clock.wall_ms()
        self.traffic = TrafficMeter(loop, env.clock, config.cluster, tables, store)
        self.registration = Registration(
            env,
            config,
            tables.topics,
            address=address,
            version=self._topic_version,
            order_topics=self._order_topics,
            permission=lambda: tables.settings.config.permission,
            security=security,
        )
        keep(store.retention, tables, config.cluster, lambda: state.save("sent"))
        self.delivery = DelayDelivery(loop, env.clock, tables.delays, tables.topics, store)
        self.timers = TimerDelivery(loop, env.clock, tables.timers, tables.topics, store)
        self.checks = TransactionChecks(
            loop, env.clock, tables, store, broker=config.name, topics_changed=changed, may_send=security.may_send
        )
        self.clients = ClientHandlers(loop, config, tables, topics_changed=changed)
        locks = LockHandlers(loop, tables, server, broker=config.name, save=lambda: state.save("locks"))
        self.pulls = PullHandlers(loop, config, tables, store, stale=locks.stale)
        self.revival = PopRevival(loop, env.clock, tables, store, cluster=config.cluster, topics_changed=changed)
        self.pops = PopHandlers(
            loop, env.clock, config, tables, store,
            revival=self.revival, subscription=self.pulls.subscription,
        )  # fmt: skip
        self.repetitions = Repetitions(store, config.name, tables.sent, config.limits.repetitions)
        offsets = OffsetHandlers(tables, store, stale=locks.stale)
        halves = TransactionHandlers(env, config, store, self.checks)
        sends = SendHandlers(
            env, config, tables, store,
            store_half=halves.store_half, has_locks=locks.has_locks, topics_changed=changed, once=self.repetitions,
        )  # fmt: skip
        serving = (
            sends,
            halves,
            self.pulls,
            self.pops,
            AckHandlers(loop, env.clock, tables, store, self.revival),
            AssignmentHandler(tables, broker=config.name, route=self.registration.route),
            self.clients,
            locks,
            ReplyHandlers(
                env, config, tables, store, address=address, admit=sends.admit, awaited=server.processors.awaited
            ),
            offsets,
            SendBackHandler(env, tables, store, topics_changed=changed, hooks=hooks),
            RecallHandler(env, config, tables, store),
            QueryHandlers(store, max_bytes=config.max_pull_bytes),
        )
        topics = TopicHandlers(
            tables, store, self.revival, version=self._topic_version, save=self._save_admin, begin=state.save,
            deleted=self._deleted)  # fmt: skip
        admin = administration(
            env, config, tables, store, state, self.traffic, topics, offsets, address=address,
            port=server.port or config.port, boot=boot, save_settings=self._save_settings, reset=self._reset,
        )  # fmt: skip

        self.rates = PullRates(loop, env.clock, config, tables, store)
        limits = SendRates(loop, tables.topics), self.rates

        def add(codes: Mapping[int, RequestHandler]) -> None:
            for code, handler in codes.items():
                server.processors.add(code, security.door.guarded(code, handler))

        def follow_rates() -> None:
            for limit in limits:
                limit.follow(tables.settings.config.rates)
            for each in (sends, self.pulls, self.pops):
                for code, handler in each.codes().items():
                    for limit in limits:
                        handler = limit.limited(code, handler)
                    server.processors.replace(code, security.door.guarded(code, handler))

        for each in serving:
            add(each.codes())
        follow_rates()
        self._follow_rates = follow_rates
        for codes in admin:
            add(codes)
        server.processors.plain = plain_sends(config, tables, store, sends, server.processors)
        if security.accounts is not None:
            names = config.name, config.cluster, address
            add(AccessHandlers(security.accounts, lambda: state.save("access"), config.limits, *names).codes())

    def arrived(self, topic: str, queue_id: int, max_offset: int, code: int | None) -> None:
        """The store has visible messages in a queue, which ends at ``max_offset`` now."""
        if topic == SCHEDULE_TOPIC:
            self.delivery.arrived(queue_id)
        elif topic == TIMER_TOPIC:
            self.timers.arrived()
        self.pulls.arrived(topic, queue_id, max_offset, code)
        if topic in self.pops.awaited:
            self.pops.arrived(topic, queue_id)

    def lost(self, connection: Connection) -> int:
        """A connection ended, and with it so many pulls, pops and members that it counts for this many ends more."""
        gone: list[int] = [it.lost(connection) for it in (self.pulls, self.pops, self.rates, self.clients, self.timers)]
        return sum(gone) // _ENDED_AS_ONE

    # ---- what they tell each other

    def _topics_changed(self) -> None:
        self._state.begin("topics")
        self.registration.changed()

    async def _order_topics(self, names: Iterable[str]) -> None:
        if await in_turns(self._topics.make_orderly(names)):
            self._topics_changed()

    def _deleted(self, topic: Topic) -> None:
        self.pulls.withdraw(topic.name, topic.read_queues)
        self.pops.withdraw(topic.name)

    def _reset(self, group: str, topic: str, queue_id: int) -> None:
        self.pulls.reset(group, topic, queue_id)
        self.pops.wake(topic, group)

    async def _save_admin(self, *more: str) -> None:
        for name in (*more, "topics", "groups"):
            await self._state.save(name)
        await self.registration.register()

    async def _save_settings(self) -> None:
        self._follow_rates()
        await self._state.save("settings")
        await self._save_admin()

    def _topic_version(self) -> DataVersion:
        # Settings are in it because one of them changes what name servers are told of every topic.
        return DataVersion(timestamp=self._boot, counter=self._topics.version + self._settings.version)
