"""The broker: builds its parts, starts them in order, stops them in reverse. No decision is made here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from aiorocket.broker.addresses import advertised, is_loopback
from aiorocket.broker.core.counters import GroupCounters, SendBack
from aiorocket.broker.core.delay import DelaySchedule
from aiorocket.broker.core.groups import GroupConfigs, GroupTable
from aiorocket.broker.core.locks import LockTable
from aiorocket.broker.core.offsets import ConsumerOffsets
from aiorocket.broker.core.topics import Topic, TopicTable
from aiorocket.broker.core.transactions import TransactionTable
from aiorocket.broker.handlers.calls import CallHandlers
from aiorocket.broker.handlers.client import ClientHandlers
from aiorocket.broker.handlers.locks import LockHandlers
from aiorocket.broker.handlers.offset import OffsetHandlers
from aiorocket.broker.handlers.pull import PullHandlers
from aiorocket.broker.handlers.query import QueryHandlers
from aiorocket.broker.handlers.reply import ReplyHandlers
from aiorocket.broker.handlers.send import SendHandlers
from aiorocket.broker.handlers.send_back import SendBackHandler
from aiorocket.broker.handlers.statistics import StatisticsHandlers
from aiorocket.broker.handlers.topic import TopicHandlers, only_local
from aiorocket.broker.handlers.transaction import TransactionHandlers
from aiorocket.broker.registration import Registration
from aiorocket.broker.schedule import DelayDelivery
from aiorocket.broker.state import BrokerState
from aiorocket.broker.transaction_check import TransactionChecks
from aiorocket.config import BrokerConfig
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.remoting.server import RemotingServer
from aiorocket.runtime.disk import MemoryDisk
from aiorocket.runtime.env import Env
from aiorocket.runtime.tasks import TaskScope
from aiorocket.storage.results import Recovery
from aiorocket.storage.store import MessageStore
from aiorocket_protocol import SCHEDULE_TOPIC, DataVersion, RecordView, tags_code

__all__ = ("Broker",)

_log = logging.getLogger("aiorocket.broker")


class Broker:
    """One broker. ``start()`` returns when it serves and is registered; ``close()`` makes everything durable and ends
    it.

    ``start()`` raises UsageError (port in use, a name server refuses the name, no address for clients),
    StoreLockedError, StoreCorruptedError or StoreError, and leaves nothing behind then.
    """

    def __init__(self, env: Env, config: BrokerConfig) -> None:
        self.config = config
        self._memory = MemoryDisk() if config.data is None else None
        self._env = env if self._memory is None else Env(env.clock, env.entropy, self._memory)
        self._directory = (config.data or "memory").rstrip("/") or "/"
        self.topics = TopicTable(
            broker=config.name,
            cluster=config.cluster,
            auto_create=config.auto_create_topics,
            default_queues=config.default_topic_queues,
            delay_levels=len(config.delay_levels),
        )
        self.configs = GroupConfigs(config.retry_max_times, config.auto_create_groups)
        self.consumers = GroupTable(config.channel_expiry)
        self.producers = GroupTable(config.channel_expiry)
        self.offsets = ConsumerOffsets()
        self.locks = LockTable(config.lock_lease, config.lock_grace)
        self.counters = GroupCounters()
        #: Called with every message that a consumer sent back, once it is stored; must return quickly.
        self.on_send_back: list[Callable[[SendBack], None]] = []
        self.delays = DelaySchedule(config.delay_levels)
        self.transactions = TransactionTable(
            timeout=config.transaction_timeout,
            interval=config.transaction_check_interval,
            max_checks=config.transaction_check_max,
        )
        #: What opening the store found; None before ``start()``.
        self.recovery: Recovery | None = None
        #: ``host:port`` as clients are told; valid after ``start()``.
        self.address = ""
        self.store: MessageStore
        self._processors = ProcessorTable()
        self._server = RemotingServer(self._env, self._processors, config.remoting, on_close=self._lost)
        self._tasks = TaskScope("broker")
        self._state: BrokerState | None = None
        self._registration: Registration | None = None
        self._pulls: PullHandlers | None = None
        self._clients: ClientHandlers | None = None
        self._delivery: DelayDelivery | None = None
        self._checks: TransactionChecks | None = None
        self._boot = env.clock.wall_ms()
        self._store_open = False
        self._closed = False

    @property
    def server(self) -> RemotingServer:
        """Its listening side; ``aiorocket.testing`` puts faults between it and the handlers."""
        return self._server

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def parked_pulls(self) -> int:
        return 0 if self._pulls is None else self._pulls.polls.count

    async def start(self) -> None:
        """Open the store, load the state, listen, register."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        config = self.config
        if config.port:
            # The store first: whoever reaches the port is served at once.
            await self._open(config.port)
            await self._server.start(config.host, config.port)
        else:
            # Nobody knows a port that was not asked for, so it may be bound before there is something to serve.
            await self._server.start(config.host, 0)
            await self._open(self._server.port)
        if self._delivery is not None:
            self._delivery.start()
        if self._state is not None:
            self._tasks.start(self._state.keep_saving(lambda: config.offset_flush_interval), name="state")
        self._registration = Registration(
            self._env,
            config,
            self.topics,
            address=self.address,
            version=self._topic_version,
            order_topics=self._order_topics,
        )
        await self._registration.start()

    async def _open(self, port: int) -> None:
        config = self.config
        self.address, store_host = await advertised(config, port)
        self.store = store = MessageStore(self._env, config.store, self._directory, store_host=store_host)
        store.tags_code_of = self._tags_code_of
        store.on_arrival = self._arrived
        self.recovery = await store.open()
        self._store_open = True
        self._state = BrokerState(
            self._env.disk,
            f"{self._directory}/config",
            {
                "topics": self.topics,
                "groups": self.configs,
                "offsets": self.offsets,
                "delays": self.delays,
                "transactions": self.transactions,
                "locks": self.locks,
            },
            replaceable=("locks", "transactions"),
        )
        await self._state.load()
        self._start_locks(self._state, empty=self._state.new and not store.topics())
        for name in store.topics():
            # A crash came before the topic's own record of its creation; its queues tell enough.
            if name not in self.topics:
                queues = max(store.queues(name)) + 1
                self.topics.put(Topic(name, queues, queues))
        self._wire(store, store_host)

    def _start_locks(self, state: BrokerState, *, empty: bool) -> None:
        lost = "locks" in state.lost and not empty
        if lost:
            grace = self.config.lock_grace
            _log.warning("who holds which queue lock is not on record: none is granted for %g s", grace)
        self.locks.start(asyncio.get_running_loop().time(), lost=lost, floor=self._boot)
        state.begin("locks")  # before the first message, so that a store with messages and no record has lost it

    def _wire(self, store: MessageStore, store_host: bytes) -> None:
        loop = asyncio.get_running_loop()
        env, config, topics, configs, offsets = self._env, self.config, self.topics, self.configs, self.offsets
        changed = self._topics_changed
        state = self._state
        assert state is not None
        locks = LockHandlers(
            loop, self.locks, self._server, broker=config.name, counters=self.counters, save=lambda: state.save("locks")
        )
        self._checks = checks = TransactionChecks(
            loop,
            env.clock,
            self.transactions,
            store=store,
            store_host=store_host,
            broker=config.name,
            producers=self.producers,
            topics=topics,
            topics_changed=changed,
        )
        checks.start()  # before the first request can end a transaction
        halves = TransactionHandlers(env, config, store=store, store_host=store_host, checks=checks)
        sends = SendHandlers(
            env,
            config,
            store=store,
            store_host=store_host,
            topics=topics,
            configs=configs,
            delays=self.delays,
            transactions=halves,
            topics_changed=changed,
            has_locks=locks.has_locks,
            counters=self.counters,
        )
        replies = ReplyHandlers(
            env,
            config,
            store=store,
            store_host=store_host,
            address=self.address,
            producers=self.producers,
            sends=sends,
        )
        self._pulls = pulls = PullHandlers(
            loop,
            config,
            store=store,
            topics=topics,
            groups=self.consumers,
            configs=configs,
            offsets=offsets,
            stale=locks.stale,
        )
        self._clients = clients = ClientHandlers(
            loop,
            topics=topics,
            consumers=self.consumers,
            producers=self.producers,
            configs=configs,
            topics_changed=changed,
            property_filter=config.property_filter,
        )
        positions = OffsetHandlers(store=store, topics=topics, configs=configs, offsets=offsets, stale=locks.stale)
        calls = CallHandlers(
            config, store=store, topics=topics, consumers=self.consumers, configs=configs, offsets=offsets,
            reset=pulls.reset, save=lambda: state.save("offsets"),
        )  # fmt: skip
        backs = SendBackHandler(
            env,
            store=store,
            topics=topics,
            configs=configs,
            delays=self.delays,
            topics_changed=changed,
            counters=self.counters,
            hooks=self.on_send_back,
        )
        queries = QueryHandlers(store)
        admin = TopicHandlers(
            store=store,
            topics=topics,
            configs=configs,
            offsets=offsets,
            topic_version=self._topic_version,
            save=self._save_admin,
            deleted=self._topic_deleted,
        )
        self._delivery = DelayDelivery(loop, env.clock, self.delays, store)
        statistics = StatisticsHandlers(
            env.clock, config.name, store, topics, self.consumers, self.producers, offsets, self.counters
        )
        for each in (sends, halves, replies, pulls, positions, clients, locks, backs, queries):
            for code, handler in each.codes().items():
                self._processors.add(code, handler)
        local = is_loopback(config.host)
        for administration in (admin, calls, statistics):
            for code, handler in administration.codes().items():
                self._processors.add(code, handler if local else only_local)

    def clock_changed(self) -> None:
        """The wall clock was set: delayed messages that are due now need not wait for the next look at it."""
        if self._delivery is not None:
            self._delivery.clock_changed()

    async def close(self) -> None:
        """Leave the name servers, answer what is in flight, save everything. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._registration is not None:
            await self._registration.close()
        if self._pulls is not None:
            self._pulls.close()
        await self._server.close()
        await self._tasks.close()
        if self._clients is not None:
            self._clients.close()
        if self._delivery is not None:
            await self._delivery.close()
        if self._checks is not None:
            await self._checks.close()
        if self._state is not None:
            await self._state.save_all()
        if self._store_open:
            await self.store.close()
        if self._memory is not None:
            await self._memory.close()

    # ---- what the parts tell each other

    def _arrived(self, topic: str, queue_id: int, max_offset: int, code: int | None) -> None:
        if topic == SCHEDULE_TOPIC and self._delivery is not None:
            self._delivery.arrived(queue_id)
        if self._pulls is not None:
            self._pulls.arrived(topic, queue_id, max_offset, code)

    def _tags_code_of(self, record: RecordView) -> int:
        """What stands beside a record in its queue: the hash of its tag, or when it is due in a delay queue."""
        if record.topic == SCHEDULE_TOPIC and 0 <= record.queue_id < len(self.config.delay_levels):
            return self.delays.due_at(record.queue_id + 1, record.store_timestamp)
        return tags_code(record.tag) if record.tag else 0

    def _lost(self, connection: Connection) -> None:
        if self._pulls is not None:
            self._pulls.lost(connection)
        if self._clients is not None:
            self._clients.lost(connection)

    def _topics_changed(self) -> None:
        if self._state is not None:
            self._state.begin("topics")
        if self._registration is not None:
            self._registration.changed()

    def _order_topics(self, names: Iterable[str]) -> None:
        if self.topics.make_orderly(names):
            self._topics_changed()

    def _topic_deleted(self, topic: Topic) -> None:
        if self._pulls is not None:
            self._pulls.withdraw(topic.name, topic.read_queues)

    async def _save_admin(self) -> None:
        if self._state is not None:
            for name in ("topics", "groups"):
                await self._state.save(name)
        if self._registration is not None:
            await self._registration.register()

    def _topic_version(self) -> DataVersion:
        return DataVersion(timestamp=self._boot, counter=self.topics.version)
