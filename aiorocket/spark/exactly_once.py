"""The exactly-once sink: half messages, a decision in the ledger, then the ends of the transactions.

* A task sends its rows as half messages, which nobody sees, each with the batch and the task attempt it belongs to.
* The driver writes the batch's entry into the ledger: the attempts that count. From here on the batch is decided.
* Only then the transactions are ended: committed where the entry names the attempt, rolled back otherwise.

Whatever is left open, because something died in between, is asked for by its broker, and anybody of the sink's producer
group answers from the ledger: every process that has written or committed with this mode. A broker asks only when
``check_immunity`` has passed, and from then on takes no END_TRANSACTION but the answer to its question, so each half
message is ended by one of the two. For the same reason an END_TRANSACTION is sent again only if it certainly did not
arrive: Apache's brokers deliver twice what is committed twice.

A broker gives up on a half message after ``transactionCheckMax`` questions without a decision (15, at intervals of
30 s, 60 s before RocketMQ 5): that is how long a driver that died may stay away. A batch that took longer is not
committed. Clocks of brokers, driver and executors are expected to agree within seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from aiorocket import Message, TransactionProducer
from aiorocket.client.pipeline.reading import QueueScan, wrap
from aiorocket.config import ProducerConfig
from aiorocket.errors import (
    BackPressureError,
    BrokerBusyError,
    NotConnectedError,
    ProtocolError,
    RocketError,
    TopicNotFoundError,
)
from aiorocket.model import TxState
from aiorocket.spark.ledger import Entry, Ledger
from aiorocket.spark.outgoing_rows import ATTEMPT, LEDGER, TXN, OutgoingRow
from aiorocket.spark.sink_sending import Sent, send_rows
from aiorocket_protocol import (
    MAX_CHECKS_TOPIC,
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_PGROUP,
    PROPERTY_TRAN_MSG,
    EndTransactionRequestHeader,
    RecordView,
    RequestCode,
    parse_offset_msg_id,
)

if TYPE_CHECKING:
    from aiorocket.client.pipeline.reading import Session
    from aiorocket.spark.options import SinkOptions

__all__ = ("HALF_GROUP", "HalfSink", "Halves", "OpenBatchError")

_log = logging.getLogger(__name__)

#: Behind the sink's group: the producers of half messages are a group of their own, whose members all can answer.
HALF_GROUP = "_exactly_once"
#: How much older than its immunity a half message may be for its batch to be committed: half of the seconds that a
#: broker asks before it gives up (15 questions, 30 s apart).
_NEEDED = 15 * 30.0 / 2
#: How long brokers that are away are waited for when transactions are to be ended: for a rollback, nobody waits.
_PATIENCE = {TxState.COMMIT: 30.0, TxState.ROLLBACK: 2.0}
#: How long an open batch waits for brokers, beyond the time in which they ask.
_HEAL_PATIENCE = 120.0
_PAUSE = 0.1
_TICK = 0.25
_LATER = (NotConnectedError, BackPressureError, BrokerBusyError, TopicNotFoundError)


class OpenBatchError(RocketError):
    """A batch is decided and not all of its half messages could be delivered so far."""


class Place(NamedTuple):
    """Where half messages lie: those of one queue, in the order of their rows, or (None) any of a topic."""

    broker_name: str
    topic: str
    queue_id: int | None


@dataclass
class Halves:
    """The half messages of one attempt to write one partition: (half queue offset, commit log offset) by place.
    ``oldest`` and ``latest``: when the first and the last was born, at the earliest and latest (wall clock, ms)."""

    attempt: str
    oldest: int = 0
    latest: int = 0
    places: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, sent: Iterable[Sent]) -> None:
        for row, receipt, pinned in sent:
            place = Place(receipt.queue.broker_name, row.topic, receipt.queue.queue_id if pinned else None)
            _, _, physical = parse_offset_msg_id(receipt.offset_msg_id)
            self.places.setdefault(place, []).append((receipt.offset, physical))

    def __len__(self) -> int:
        return sum(map(len, self.places.values()))


def immunity(options: SinkOptions) -> int:
    """``check_immunity`` as the property has it: whole seconds."""
    return max(1, round(options.check_immunity))


class HalfSink:
    """The part of a process in exactly-once writes: a producer that answers questions, and the ledgers it reads. One
    for each client and group; it lives as long as the client, so that there is somebody to ask."""

    def __init__(self, client: Session, group: str) -> None:
        self.client = client
        # Nothing that may be stored is ever sent again: a second half message of the same row would be committed too.
        config = ProducerConfig(retries=0, check_concurrency=64, max_waiting_checks=100_000)
        self.producer = _Producer(group, client=client, config=config, checker=self._check)
        self.producer.sink = self
        self._ledgers: dict[str, Ledger] = {}
        #: COMMIT answers given, by (query, batch).
        self.answered: Counter[tuple[str, int]] = Counter()

    @classmethod
    async def of(cls, client: Session, group: str) -> HalfSink:
        """The one of this client, started."""
        found = client.producers.get(wrap(client.config.namespace, group))
        if found is None:
            made = cls(client, group)
            await made.producer.start()
            return made
        sink = getattr(found.producer, "sink", None)
        assert sink is not None, f"producer group {group!r} belongs to somebody else"
        kept: HalfSink = sink
        return kept

    def ledger(self, topic: str) -> Ledger:
        """The ledger in ``topic``, with what is known of it."""
        return self._ledgers.setdefault(topic, Ledger(self.client, self.producer, topic))

    # ---- the questions of brokers

    async def _check(self, message: Message) -> TxState:
        properties = message.properties
        try:
            query, number, _, _ = properties[TXN].rsplit("/", 3)
            batch, attempt, topic = int(number), properties[ATTEMPT], properties[LEDGER]
        except (KeyError, ValueError):
            _log.warning("half message %s does not say which batch it is of", message.msg_id)
            return TxState.UNKNOWN
        state = (await self.ledger(topic).look(query, batch)).state_of(attempt)
        if state is TxState.COMMIT:
            self.answered[query, batch] += 1
        return state

    # ---- what a task does

    async def send(self, rows: Sequence[OutgoingRow], where: str, halves: Halves, options: SinkOptions) -> None:
        """Send ``rows`` as half messages of ``halves.attempt``, which afterwards knows all that are certainly there.
        Errors as of ``send_rows``."""
        clock, sent = self.client.env.clock, list[Sent]()
        halves.oldest = halves.oldest or clock.wall_ms()
        half = (
            f"{PROPERTY_TRAN_MSG}\x01true\x02{PROPERTY_PGROUP}\x01{self.producer.sender.wire_group}\x02"
            f"{PROPERTY_CHECK_IMMUNITY_TIME}\x01{immunity(options)}\x02"
        )
        try:
            await send_rows(
                self.producer, rows, where=where, batch_size=1, in_flight=options.sends_in_flight,
                timeout=options.send_timeout, compress_over=options.compress_over, half=half, sent=sent,
            )  # fmt: skip
        finally:
            halves.add(sent)
            halves.latest = clock.wall_ms()

    # ---- what a driver does

    async def commit(
        self,
        query: str,
        batch: int,
        parts: Sequence[Halves],
        skipped: bool,
        options: SinkOptions,
        seen: int | None = None,
    ) -> None:
        """Decide the batch for ``parts``, unless it is decided, and see to it that it is delivered. ``skipped``: a task
        found it decided. ``seen`` is how many rows the batch has now. OpenBatchError when it is decided and could not
        be delivered in time: to be called again."""
        ledger = self.ledger(options.ledger_topic)
        fold = await ledger.refresh(query, batch)
        rows = sum(map(len, parts))
        if fold.decided:
            had = fold.entry.rows if fold.entry is not None else 0
            if seen not in (None, had):
                _log.error(
                    "query %s, batch %d was decided with %d rows and has %d now, which are not written: its checkpoint "
                    "was set back or has lost its end, or another write had this queryId, or the query gives other "
                    "rows each time", query, batch, had, seen,
                )  # fmt: skip
        else:
            if skipped:
                raise OpenBatchError(
                    f"query {query}, batch {batch}: a task found it in the ledger {options.ledger_topic!r}, and now it "
                    "is not there. Was the topic deleted, or its broker exchanged?"
                )
            if not rows:
                return  # nothing to decide
            self._need_time(query, batch, parts, options)
            fold = await ledger.decide(_entry(query, batch, parts, options), options.send_timeout)
        entry = fold.entry
        named = frozenset(entry.attempts if entry is not None else ())
        losers = [part for part in parts if part.attempt not in named]
        if any(map(len, losers)):
            _log.warning("query %s, batch %d is decided already: what was sent now is rolled back", query, batch)
            await self.end(losers, TxState.ROLLBACK, options)
        if entry is None or fold.ended:
            return
        winners = [part for part in parts if part.attempt in named]
        left = await self.end(winners, TxState.COMMIT, options)
        mine = sum(map(len, winners)) == entry.rows
        if left or not mine:
            if not mine and (await ledger.refresh(query, batch)).ended:
                return
            await self._heal(entry, left if mine else None, options)
        try:
            await ledger.mark(query, batch, options.send_timeout)
        except RocketError as error:
            _log.warning("query %s, batch %d is delivered; a repetition will not know: %s", query, batch, error)

    async def abort(self, query: str, batch: int, parts: Sequence[Halves], options: SinkOptions) -> None:
        """Roll back attempts of which it is certain that no entry names them or will."""
        left = await self.end(parts, TxState.ROLLBACK, options)
        _log.info("query %s, batch %d: rolled back, %d half messages are left to check-back", query, batch, left)

    def _need_time(self, query: str, batch: int, parts: Sequence[Halves], options: SinkOptions) -> None:
        oldest = min(part.oldest for part in parts if len(part))
        age = (self.client.env.clock.wall_ms() - oldest) / 1000
        if age > immunity(options) + _NEEDED:
            raise OpenBatchError(
                f"query {query}, batch {batch} took {age:.0f} s: brokers may give up on its half messages, so it is "
                f"not committed. Make batches smaller, or checkImmunity ({immunity(options)} s) longer than one takes"
            )

    async def end(self, parts: Iterable[Halves], state: TxState, options: SinkOptions) -> int:
        """End the transactions of ``parts``, as far as that is certain to end each once; how many are left to
        check-back."""
        units = list(_units(parts))
        waiting = iter(units)
        left = 0
        deadline = self.client.loop.time() + _PATIENCE[state]
        spare = min(5.0, immunity(options) / 4)

        async def work() -> None:
            nonlocal left
            for part, place, offsets in waiting:
                last = part.oldest + 1000 * (immunity(options) - spare)
                for offset in offsets:
                    if not await self._end(part.attempt, place, offset, state, last, deadline):
                        left += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(min(options.sends_in_flight, len(units))):
                group.create_task(work())
        if left:
            _log.warning("%d half messages (%s) are left to check-back", left, state.name)
        return left

    async def _end(
        self, attempt: str, place: Place, offset: tuple[int, int], state: TxState, last: float, deadline: float
    ) -> bool:
        name = wrap(self.client.config.namespace, place.topic)
        half, physical = offset
        header = EndTransactionRequestHeader(
            self.producer.sender.wire_group, half, physical, state.value, attempt, False, None, name
        )
        clock, loop = self.client.env.clock, self.client.loop
        while clock.wall_ms() < last:
            try:
                address = (await self.client.route(name)).master(place.broker_name)
                if address is None:
                    raise NotConnectedError(f"broker {place.broker_name!r} has no master just now")
                await self.client.call(address, RequestCode.END_TRANSACTION, header)
            except _LATER as error:
                if loop.time() >= deadline:
                    _log.debug("%s of half message %d at %s: %s", state.name, half, place.broker_name, error)
                    return False
                await asyncio.sleep(_PAUSE)
            except (RocketError, ProtocolError) as error:
                _log.info("%s of half message %d at %s: %s", state.name, half, place.broker_name, error)
                return False
            else:
                return True
        return False

    async def _heal(self, entry: Entry, left: int | None, options: SinkOptions) -> None:
        """Be there until brokers have asked about every half message of a decided batch that is still open. ``left`` is
        how many there are, None when that is not known."""
        loop, key = self.client.loop, (entry.query, entry.batch)
        what = f"query {entry.query}, batch {entry.batch}, decided in the ledger {options.ledger_topic!r}"
        asked_from = (entry.latest - self.client.env.clock.wall_ms()) / 1000 + entry.immunity
        _log.warning("%s: waiting until brokers have asked about what is left open of %d rows", what, entry.rows)
        target = entry.rows if left is None else self.answered[key] + left
        now = loop.time()
        until = now + max(0.0, asked_from) + options.check_round
        limit = until + _HEAL_PATIENCE
        while True:
            away = await self._away(entry)
            now = loop.time()
            if away:
                until = max(until, now + options.check_round)  # it asks again within a round of its return
            elif (now >= until or self.answered[key] >= target) and not await self._away(entry, again=True):
                # The answers went over the same connections, which have just been answered on: they have been read.
                break
            if now >= limit:
                raise OpenBatchError(
                    f"{what}: {'; '.join(away) or 'its brokers'} could not be reached for long enough. Its rows are "
                    "delivered when the brokers are back and this query runs again"
                )
            await asyncio.sleep(_TICK)
        lost = await self._given_up(entry)
        if lost:
            text = f"{what}: brokers have given up on {lost} of {entry.rows} rows, which are now in {MAX_CHECKS_TOPIC}"
            if options.fail_on_data_loss:
                raise OpenBatchError(f"{text}, with {TXN}; failOnDataLoss=false goes on without them")
            _log.error("%s", text)

    async def _given_up(self, entry: Entry) -> int:
        """How many rows of a batch wait for an administrator, because nobody could be asked for too long."""
        try:
            route = await self.client.route(MAX_CHECKS_TOPIC, refresh=True)
        except TopicNotFoundError:
            return 0
        found = set[str]()
        for queue in route.subscribe:
            address = route.reader(queue.broker_name)
            if address is None:
                continue
            scan = QueueScan(self.client, queue, address)
            end = (await scan.bounds()).end
            async for view in scan.messages(await scan.offset_at(entry.latest), end, RecordView):
                values = view.properties
                place = values.get(TXN, "").rsplit("/", 2)
                if place[0] == f"{entry.query}/{entry.batch}" and values.get(ATTEMPT) in entry.attempts:
                    found.add(values[TXN])
        return len(found)

    async def _away(self, entry: Entry, again: bool = False) -> list[str]:
        """The brokers of the batch that do not know this process as one to be asked."""
        away: list[str] = []
        for broker_name, topic in entry.brokers:
            try:
                route = await self.client.route(wrap(self.client.config.namespace, topic))
                address = route.master(broker_name)
                if address is None:
                    raise NotConnectedError(f"broker {broker_name!r} has no master just now")
                connection = await self.client.member_connection(address)
                if again:
                    self.client.forget_registration(connection)
                    await self.client.member_connection(address)
            except (RocketError, ProtocolError) as error:
                away.append(f"{broker_name}: {error}")
        return away


class _Producer(TransactionProducer):
    """Knows its sink, so that the client's list of producers finds it again."""

    sink: HalfSink


def _units(parts: Iterable[Halves]) -> Iterator[tuple[Halves, Place, list[tuple[int, int]]]]:
    """What may be ended at the same time: all of one queue are ended in turn, others one by one."""
    for part in parts:
        for place, offsets in part.places.items():
            if place.queue_id is not None:
                yield part, place, sorted(offsets)
            else:
                for offset in offsets:
                    yield part, place, [offset]


def _entry(query: str, batch: int, parts: Sequence[Halves], options: SinkOptions) -> Entry:
    full = [part for part in parts if len(part)]
    brokers = {place.broker_name: place.topic for part in full for place in part.places}
    return Entry(
        query, batch, tuple(sorted(part.attempt for part in full)), sum(map(len, full)), tuple(sorted(brokers.items())),
        max(part.latest for part in full), immunity(options),
    )  # fmt: skip
