"""The broker: starts its parts in order and stops them in reverse. No decision is made here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from aiorocket.access.core.accounts import Accounts
from aiorocket.access.security import Security
from aiorocket.broker.addresses import advertised
from aiorocket.broker.core.counters import SendBack
from aiorocket.broker.core.queue_codes import queue_codes
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.topics import Topic
from aiorocket.broker.parts import Parts
from aiorocket.broker.state import BrokerState
from aiorocket.config import BrokerConfig
from aiorocket.errors import UsageError
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.server import RemotingServer
from aiorocket.runtime.env import Env
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.runtime.tasks import TaskScope
from aiorocket.storage.results import Recovery
from aiorocket.storage.store import MessageStore

__all__ = ("Broker",)

_log = logging.getLogger("aiorocket.broker")


class Broker:
    """One broker. ``start()`` returns when it serves and is registered; ``close()`` makes everything durable and ends
    it. ``tables`` are what it begins with, instead of new ones; ``accounts`` are shared with a name server.

    ``start()`` raises UsageError (port in use, a name server refuses the name, no address for clients),
    StoreLockedError, StoreCorruptedError or StoreError, and leaves nothing behind then.
    """

    def __init__(
        self, env: Env, config: BrokerConfig, tables: Tables | None = None, accounts: Accounts | None = None
    ) -> None:
        self.config = config
        self._env = env if config.data is not None else Env(env.clock, env.entropy, MemoryDisk())
        self._directory = (config.data or "memory").rstrip("/") or "/"
        self._tables = tables = tables if tables is not None else Tables.of(config)
        self.topics = tables.topics
        self.configs = tables.configs
        self.consumers = tables.consumers
        self.producers = tables.producers
        self.offsets = tables.offsets
        self.locks = tables.locks
        self.counters = tables.counters
        self.delays = tables.delays
        self.timers = tables.timers
        self.transactions = tables.transactions
        self.alarms = tables.alarms  # empty unless ``broker/alarms.py`` watches it, as servers do
        #: Called with every message that a consumer sent back, once it is stored; must return quickly.
        self.on_send_back: list[Callable[[SendBack], None]] = []
        #: What opening the store found; None before ``start()``.
        self.recovery: Recovery | None = None
        #: ``host:port`` as clients are told; valid after ``start()``.
        self.address = ""
        #: Its listening side; ``aiorocket.testing`` puts faults between it and the handlers.
        self._security = security = Security(env, config, accounts, config)
        processors = security.processors(cluster=config.cluster, server=config.name, record_at=self._record_at)
        self.server = RemotingServer(self._env, processors, config.remoting, on_close=self._lost, tls=security.tls)
        self._parts: Parts | None = None
        self._tasks = TaskScope("broker")
        self._starting = asyncio.Lock()
        self._closed = False
        #: What was started, to be stopped in reverse.
        self._started = AsyncExitStack()

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def parts(self) -> Parts | None:
        """What works on its store; None while it does not serve."""
        return None if self._closed or self._starting.locked() else self._parts

    @property
    def store(self) -> MessageStore:
        """Its messages. UsageError before ``start()``."""
        if self._parts is None:
            raise UsageError(f"broker {self.config.name} has no store yet: start it first")
        return self._parts.store

    @property
    def parked_pulls(self) -> int:
        return 0 if self._parts is None else self._parts.pulls.polls.count

    @property
    def popped(self) -> int:
        """Messages that are with consumers that popped them."""
        return 0 if self._parts is None else self._parts.revival.table.count

    async def start(self) -> None:
        """Open the store, load the state, listen, register. UsageError when it is closed meanwhile."""
        async with self._starting:
            self._closed = False
            try:
                await self._start()
                if self._closed:
                    raise UsageError(f"broker {self.config.name} was closed while it started")
            except BaseException:
                await self._end()
                raise

    async def _start(self) -> None:
        env, config, started = self._env, self.config, self._started
        started.push_async_callback(self.server.close)
        if not config.port:
            # Nobody knows a port that was not asked for, so it may be bound before there is something to serve.
            await self.server.start(config.host, 0)
        self.address, host = await advertised(config, config.port or self.server.port)
        codes = queue_codes(self.delays)
        store = await MessageStore.open(env, config.store, self._directory, store_host=host, codes=codes)
        self.recovery = store.recovery
        started.push_async_callback(store.close)
        state = await self._load(store)
        started.push_async_callback(state.save_all)
        self._parts = parts = Parts(
            env, config, self._tables, store, state, self.server, address=self.address, hooks=self.on_send_back,
            security=self._security,
        )  # fmt: skip
        store.on_arrival = parts.arrived
        started.push_async_callback(parts.checks.close)
        await parts.checks.start()  # before the first request can end a transaction
        started.callback(parts.revival.close)
        await parts.revival.start()
        started.callback(parts.repetitions.close)
        await parts.repetitions.start(self.topics, lambda: state.begin("sent"))
        started.push_async_callback(parts.delivery.close)
        started.push_async_callback(parts.timers.close)
        started.callback(parts.clients.close)
        started.push_async_callback(self._tasks.close)
        started.push_async_callback(self.server.close)
        if (accounts := self._security.accounts) is not None:
            started.enter_context(accounts.telling(*[one.ask_again for one in (parts.pulls, parts.pops, parts.rates)]))
        if config.port:
            # The store first: whoever reaches the port is served at once.
            await self.server.start(config.host, config.port)
            await self._listen_vip(config.port - 2)
        for waiting in (parts.pulls, parts.pops, parts.rates):
            started.push_async_callback(waiting.close)  # answers them, so that the server need not wait
        started.callback(self.server.stop_reading)
        parts.delivery.start()
        await parts.timers.start()
        self._tasks.start(state.keep_saving(config.offset_flush_interval), name="state")
        await self._security.open(self.server, config.host, f"broker {config.name}")
        if self._security.changes:
            self._tasks.start(self._security.keep_fresh(), name="security")
        self._tasks.start(parts.traffic.keep_sampling(), name="traffic")
        started.push_async_callback(parts.registration.close)
        await parts.registration.start()

    async def _listen_vip(self, port: int) -> None:
        if self.config.vip_listener and port > 0:
            try:
                await self.server.listen(self.config.host, port)
            except UsageError as error:
                _log.warning("no VIP channel (RocketMQ's dashboard and some 4.x clients use it): %s", error)

    async def _load(self, store: MessageStore) -> BrokerState:
        """The tables as they were saved, and what the store knows better."""
        tables = self._tables
        state = BrokerState(
            self._env.disk, f"{self._directory}/config", {**tables.saved(), **self._security.tables()},
            # Known from elsewhere, or defaults will do. Without offsets and delays messages would be passed over or
            # repeated in numbers, without the access tables anybody would be let in: that is for people to decide.
            replaceable=("locks", "transactions", "topics", "groups", "settings", "modes", "sent"),
            behind_sync=store.behind_sync, ahead=store.ahead,
        )  # fmt: skip
        await state.load()
        # The generation that is left may be from before anybody was idempotent.
        tables.sent.used |= "sent" in state.lost and tables.sent.at is not None
        if state.new and store.topics():
            _log.warning("%s/config is missing: what groups had consumed is not on record", self._directory)
        lost = store.damaged or store.recovery.truncated_bytes
        if lost and (further := tables.offsets.come_back(store.max_offset)):
            _log.warning("%d offsets of groups go back to the ends of queues that lost their last messages", further)
        tables.follow_settings()
        if tables.settings.changed:
            _log.warning("settings changed while it ran are in force: %s", tables.settings.changed)
        self._start_locks(state, empty=state.new and not store.topics())
        for name in store.topics():
            # A crash came before the topic's own record of its creation; its queues tell enough.
            if name not in tables.topics:
                queues = max(store.queues(name)) + 1
                tables.topics.put(Topic(name, queues, queues))
        return state

    def _start_locks(self, state: BrokerState, *, empty: bool) -> None:
        lost = "locks" in state.lost and not empty
        if lost:
            _log.warning("who holds which queue lock is not on record: none for %g s", self.config.lock_grace)
        self.locks.start(asyncio.get_running_loop().time(), lost=lost, floor=self._env.clock.wall_ms())
        state.begin("locks")  # before the first message, so that a store with messages and no record has lost it

    def reload(self) -> None:
        """Read the access file and the certificates again."""
        self._security.reload()

    def clock_changed(self) -> None:
        """The wall clock was set: delayed messages that are due now need not wait for the next look at it."""
        if self._parts is not None:
            self._parts.delivery.clock_changed()
            self._parts.timers.clock_changed()

    async def close(self) -> None:
        """Leave the name servers, answer what is in flight, save everything. A second call does nothing. A start that
        is under way is undone."""
        self._closed = True
        await self._end()
        async with self._starting:
            await self._end()

    async def _end(self) -> None:
        await self._started.pop_all().aclose()

    def _record_at(self, place: int) -> bytes | None:
        return None if self._parts is None else self._parts.store.read_record(place)

    def _lost(self, connection: Connection) -> int:
        return 0 if self._parts is None else self._parts.lost(connection)
