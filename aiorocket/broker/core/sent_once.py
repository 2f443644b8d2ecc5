"""Messages of idempotent producers: which were stored lately, so that a send that is repeated is stored once.

A message is known by its UNIQ_KEY, which is its producer (address, process, seed) and its number there (time, counter),
and the same in every attempt. The last of each producer in each queue are known, whatever others send there; when all
together are too many, those that were quiet longest go.

What waits for its time stands in a queue that all topics share. A timer may be due by the time that it is sent again,
and would then be stored in its own queue: it is looked for in both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Generator, Mapping
from typing import Any, Generic, TypeVar
from zlib import crc32

from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.turns import A_TURN, whole
from aiorocket.config import Limits
from aiorocket_protocol import ResponseCode
from aiorocket_protocol.record_layout import SYS_FLAG_COMPRESSED

__all__ = ("PER_PRODUCER", "SentOnce", "SentTable", "content_of", "producer_of")

#: Messages that are known of one producer in one queue.
PER_PRODUCER = 1024
#: What of a UNIQ_KEY is the number at its producer: milliseconds and counter.
_NUMBER = 12
#: Bytes of the log that a start may have to read because nobody was idempotent while they were written.
_MUCH = 64 << 20

R = TypeVar("R")
#: What is answered: told to every attempt of a message when its first one has ended.
Done = Callable[[R], None]


def producer_of(unique: str) -> str:
    """What of a UNIQ_KEY is its producer."""
    return unique[:-_NUMBER]


def content_of(body: bytes, sys_flag: int) -> int | None:
    """By what two messages with one UNIQ_KEY are told apart. None for a compressed body: one program makes other bytes
    of the same content than another."""
    return None if sys_flag & SYS_FLAG_COMPRESSED else crc32(body)


def _another(unique: str, content: int | None, known: int | None) -> Refusal | None:
    if content is None or known is None or content == known:
        return None
    text = f"another message was sent with the UNIQ_KEY {unique!r:.140}, so this one is not stored: it needs its own id"
    return Refusal(ResponseCode.MESSAGE_ILLEGAL, text)


class SentTable:
    """By topic, queue id and UNIQ_KEY the queue offset of messages that are stored."""

    def __init__(self, per_producer: int = PER_PRODUCER, most: int = Limits().sent_once) -> None:
        self._per_producer = per_producer
        self.most = most
        #: By topic, queue id and producer; what was quiet longest is first.
        self._stored: OrderedDict[tuple[str, int, str], dict[str, int]] = OrderedDict()
        self._count = 0
        #: Messages that were forgotten because there were more than ``most``.
        self.forgotten = 0
        #: Log offset behind which messages may be missing here; None when this was never saved.
        self.at: int | None = None
        self._end: Callable[[], int] | None = None
        self._first: Callable[[], object] = lambda: None
        #: There was an idempotent producer, so a start looks for what is missing.
        self.used = False
        self.changes = 0

    @property
    def version(self) -> int:
        """Another one when something changed, or the log has grown by much: where a start begins to read is saved."""
        return self.changes + (self._end() // _MUCH if self.used and self._end is not None else 0)

    def __len__(self) -> int:
        return self._count

    def begin(self, end: Callable[[], int], first: Callable[[], object]) -> None:
        """Nothing is missing any more; ``end()`` says up to which log offset that is so. ``first`` is called when this
        is ``used`` from now on, which should be saved then."""
        self._end, self._first = end, first
        self.changes += 1

    def use(self) -> None:
        """One is about to be stored."""
        if not self.used:
            self.used = True
            self.changes += 1
            self._first()

    def offset(self, topic: str, queue_id: int, unique: str) -> int | None:
        """Where a message is stored, as far as is known."""
        return self._stored.get((topic, queue_id, producer_of(unique)), {}).get(unique)

    def keep(self, topic: str, queue_id: int, unique: str, offset: int) -> None:
        """It is stored."""
        key = topic, queue_id, producer_of(unique)
        stored = self._stored.setdefault(key, {})
        self._stored.move_to_end(key)
        self._count += unique not in stored
        stored[unique] = offset
        if len(stored) > self._per_producer:
            del stored[next(iter(stored))]
            self._count -= 1
        while self._count > self.most:
            gone = len(self._stored.popitem(last=False)[1])
            self._count -= gone
            self.forgotten += gone
        self.changes += 1
        self.use()

    def report(self) -> dict[str, str]:
        """For GET_BROKER_RUNTIME_INFO."""
        limit = f"the broker's limit sent_once={self.most} is reached"
        why = f"{limit}: {self.forgotten} messages of producers that were quiet longest are known no more"
        return {"limit_sent_once": why} if self.forgotten else {}

    def delete_topics(self, topics: Container[str]) -> None:
        for key in [key for key in self._stored if key[0] in topics]:
            self._count -= len(self._stored.pop(key))
            self.changes += 1

    def producers(self) -> set[str]:
        return {producer for _, _, producer in self._stored}

    def fill(self, others: SentTable) -> None:
        """Take what there is room for of ``others``, which are of other producers: they are the first to go."""
        for key, stored in reversed(others._stored.items()):
            if self._count + len(stored) > self.most:
                break
            self._stored[key] = stored
            self._stored.move_to_end(key, last=False)
            self._count += len(stored)
        self.used = self.used or bool(self._count)
        self.changes += 1

    def to_dict(self) -> dict[str, Any]:
        return whole(self.in_turns())

    def in_turns(self) -> Generator[None, None, dict[str, Any]]:
        """``to_dict``; what comes meanwhile may be missing, for it is behind ``at``."""
        at = self._end() if self._end is not None else self.at
        rows: list[tuple[str, int, str, dict[str, int]]] = []
        seen = 0
        for key in list(self._stored):
            stored = self._stored.get(key, {})
            rows.append((*key, {unique[len(key[2]) :]: offset for unique, offset in stored.items()}))
            seen += 1 + len(stored)
            if seen >= A_TURN:
                seen = 0
                yield
        return {"at": at, "sent": rows, "used": self.used}

    def load(self, data: Mapping[str, Any]) -> None:
        for topic, queue_id, producer, stored in data["sent"]:
            for number, offset in stored.items():
                self.keep(topic, int(queue_id), producer + number, int(offset))
        self.used = self.used or bool(data.get("used"))
        self.at = None if data["at"] is None else int(data["at"])  # None: saved by a start that was closed


class SentOnce(Generic[R]):
    """``stored(topic, queue id, UNIQ_KEY)`` is the result of a message that is stored, and its content, else None.
    ``most`` repetitions may wait for their first attempts, of all producers."""

    def __init__(
        self, stored: Callable[[str, int, str], tuple[R, int | None] | None], most: int = Limits().repetitions
    ) -> None:
        self._stored = stored
        self._most = most
        self._under_way: dict[tuple[str, int, str], tuple[int | None, list[Done[R]]]] = {}
        self._repeats = 0

    def begin(
        self,
        topic: str,
        queue_id: int,
        unique: str,
        content: int | None,
        done: Done[R],
        elsewhere: tuple[str, int] | None = None,
    ) -> Done[R] | Refusal | None:
        """None when the message is stored (``done`` was called with its result) or being stored (it will be), there or
        ``elsewhere``; else what to give to the store in place of ``done``. A refusal where that one's ``content``
        differs (``content_of``): it is another message, and to say that it is stored would lose this one. Errors as of
        ``stored``."""
        for queue in ((topic, queue_id), elsewhere) if elsewhere else ((topic, queue_id),):
            waiting = self._under_way.get((*queue, unique))
            if waiting is not None:
                if (refusal := _another(unique, content, waiting[0])) is not None:
                    return refusal
                if self._repeats >= self._most:  # what it repeats may be stored, so "busy" would say too much
                    text = f"a repetition cannot wait: the broker's limit repetitions={self._most} is reached"
                    return Refusal(ResponseCode.SYSTEM_ERROR, text)
                self._repeats += 1
                waiting[1].append(done)
                return None
            result = self._stored(*queue, unique)
            if result is not None:
                if (refusal := _another(unique, content, result[1])) is not None:
                    return refusal
                done(result[0])
                return None
        place = (topic, queue_id, unique)
        self._under_way[place] = content, [done]
        return lambda result: self._ended(place, result)

    def failed(self, topic: str, queue_id: int, unique: str) -> None:
        """The store refused it before it began."""
        self._under_way.pop((topic, queue_id, unique), None)

    def _ended(self, place: tuple[str, int, str], result: R) -> None:
        _, told = self._under_way.pop(place)
        self._repeats -= len(told) - 1
        for done in told:
            done(result)
