"""What the gRPC client is used for beside what smoke.py does, each once and all at the same time.

    smoke.py features ENDPOINTS PREFIX

One JSON line per feature: {"event": "feature", "name": ..., "works": ..., "why": ...}. The topics, PREFIX and the name
of the feature, are there and take the kind of message that the feature sends; so are the groups, of the same names.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

# Installed only where .ci/run builds this client, and without types.
from rocketmq import (  # type: ignore[import-not-found, unused-ignore]
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType  # type: ignore[import-not-found, unused-ignore]

#: Of each wait of a feature, in seconds.
PATIENCE = 120.0

#: Nothing is shut down before the end of the process.
_alive: list[Any] = []


def until(done: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


def numbered(first: int, end: int) -> list[str]:
    return [f"m{number}" for number in range(first, end)]


class Seen(MessageListener):  # type: ignore[misc, unused-ignore]
    """A listener: what it got is ``all``, in the order of its calls. What ``fails`` says is not consumed."""

    def __init__(self, fails: Callable[[Any], bool] = lambda message: False) -> None:
        self.all: list[str] = []
        self._fails = fails

    def consume(self, message: Any) -> Any:
        if self._fails(message):
            return ConsumeResult.FAILURE
        self.all.append(message.body.decode())
        return ConsumeResult.SUCCESS

    def wait(self, *wanted: str) -> None:
        """For these bodies, and then a little for too many."""
        until(lambda: len(self.all) >= len(wanted), lambda: f"{len(wanted)} wanted, got {self.all}")
        time.sleep(0.3)
        assert sorted(self.all) == sorted(wanted), f"{sorted(wanted)} wanted, got {self.all}"


class Checker(TransactionChecker):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        self.checked: set[str] = set()

    def check(self, message: Any) -> Any:
        body = message.body.decode()
        self.checked.add(body)
        return TransactionResolution.COMMIT if body == "checked" else TransactionResolution.ROLLBACK


class Features:
    def __init__(self, endpoints: str, prefix: str) -> None:
        self._config = ClientConfiguration(endpoints, Credentials(), request_timeout=15)
        self._prefix = prefix

    def _producer(self, topic: str, checker: Checker | None = None) -> Any:
        made = Producer(self._config, (topic,), checker)
        made.startup()
        _alive.append(made)
        return made

    def _push(self, topic: str, seen: Seen, expression: Any = None) -> None:
        made = PushConsumer(self._config, topic, seen, {topic: expression or FilterExpression()})
        made.startup()
        _alive.append(made)

    @staticmethod
    def _message(topic: str, body: str, tag: str = "t") -> Any:
        made = Message()
        made.topic, made.body, made.tag = topic, body.encode(), tag
        return made

    def push(self) -> str:
        topic, seen = f"{self._prefix}-push", Seen()
        sender = self._producer(topic)
        for number, body in enumerate(numbered(0, 20)):
            sender.send(self._message(topic, body, f"t{number % 4}"))
        self._push(topic, seen, FilterExpression("t1||t3"))
        seen.wait(*numbered(0, 20)[1::2])
        return "20 sent, the 10 with its tags consumed"

    def retry(self) -> str:
        topic, attempts = f"{self._prefix}-retry", []

        def fails(message: Any) -> bool:
            attempts.append(message.delivery_attempt)
            return len(attempts) < 2

        seen = Seen(fails)
        self._producer(topic).send(self._message(topic, "m"))
        self._push(topic, seen)
        seen.wait("m")
        assert attempts == [1, 2], attempts
        return "once"

    def orderly(self) -> str:
        topic, failed = f"{self._prefix}-orderly", threading.Event()
        sender = self._producer(topic)
        for number in range(60):
            message = self._message(topic, f"{number % 5}:{number}")
            message.message_group = f"key-{number % 5}"
            sender.send(message)

        def fails(message: Any) -> bool:
            first = message.body.endswith(b":7") and not failed.is_set()
            if first:
                failed.set()
            return first

        seen = Seen(fails)
        self._push(topic, seen)
        seen.wait(*(f"{number % 5}:{number}" for number in range(60)))
        for key in range(5):
            of = [int(body[2:]) for body in seen.all if body.startswith(f"{key}:")]
            assert of == sorted(of), of
        return "60 of 5 keys in order through a failure"

    def sql92(self) -> str:
        topic, seen = f"{self._prefix}-sql92", Seen()
        sender = self._producer(topic)
        for number, body in enumerate(numbered(0, 20)):
            message = self._message(topic, body)
            message.add_property("n", str(number))
            sender.send(message)
        self._push(topic, seen, FilterExpression("n BETWEEN 5 AND 9 AND TAGS = 't'", FilterType.SQL))
        seen.wait(*numbered(5, 10))
        return "5 of 20"

    def timed(self) -> str:
        topic, seen = f"{self._prefix}-timed", Seen()
        sender = self._producer(topic)
        begin = time.time()
        for body, seconds in (("m", 3), ("recalled", 6)):
            message = self._message(topic, body)
            message.delivery_timestamp = int(begin) + seconds
            receipt = sender.send(message)
        sender.recall_message(topic, receipt.recall_handle)
        self._push(topic, seen)
        seen.wait("m")
        assert time.time() - begin >= 2, "too soon"
        until(lambda: time.time() > begin + 8, str)
        assert seen.all == ["m"], seen.all
        return "one came when it was due, the other was recalled"

    def transaction(self) -> str:
        topic, seen, checker = f"{self._prefix}-transaction", Seen(), Checker()
        self._push(topic, seen)
        sender = self._producer(topic, checker)
        for body in ("commit", "rollback", "checked", "dropped"):
            transaction = sender.begin_transaction()
            sender.send(self._message(topic, body), transaction)
            if body in ("commit", "rollback"):
                getattr(transaction, body)()
        seen.wait("commit", "checked")
        until(lambda: checker.checked == {"checked", "dropped"}, lambda: str(checker.checked))
        return "commit, rollback, and both by check-back"

    def asynchronous(self) -> str:
        topic, seen = f"{self._prefix}-async", Seen()
        sender = self._producer(topic)
        futures = [sender.send_async(self._message(topic, body)) for body in numbered(0, 100)]
        assert len({future.result(PATIENCE).message_id for future in futures}) == 100
        self._push(topic, seen)
        seen.wait(*numbered(0, 100))
        return "100 at a time"

    def restart(self) -> str:
        topic = f"{self._prefix}-restart"
        sender = self._producer(topic)
        for first in (0, 10, 20):
            for body in numbered(first, first + 10):
                sender.send(self._message(topic, body))
            member = SimpleConsumer(self._config, topic, {topic: FilterExpression()}, 5)
            member.startup()
            got: list[str] = []

            def received(member: Any = member, got: list[str] = got) -> bool:
                try:
                    messages = member.receive(32, 20) or ()
                except Exception:  # noqa: BLE001 - the proxy knows a new client's settings a moment later
                    return False
                for each in messages:
                    got.append(each.body.decode())
                    member.ack(each)
                return len(got) >= 10

            until(received, lambda got=got: str(got))  # type: ignore[misc]
            member.shutdown()
            assert sorted(got) == numbered(first, first + 10), got
        return "each of three after the other got what the one before had not"


def features(endpoints: str, prefix: str, say: Callable[..., None]) -> None:
    at = Features(endpoints, prefix)
    begin = time.monotonic()

    def one(name: str, feature: Callable[[], str]) -> None:
        try:
            why, works = feature(), True
        except Exception as error:  # noqa: BLE001 - a feature that does not work is a line, and no end of the others
            why, works = f"{type(error).__name__}: {error}", False
        say("feature", name=name, works=works, why=why)
        print(f"{name}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)

    all_of = {
        "push": at.push, "retry": at.retry, "orderly": at.orderly, "sql92": at.sql92, "timed": at.timed,
        "transaction": at.transaction, "async": at.asynchronous, "restart": at.restart,
    }  # fmt: skip
    threads = [threading.Thread(target=partial(one, *each)) for each in all_of.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
