"""What the C++ client is used for beside what smoke.py does, each once and all at the same time.

    smoke.py features NAMESERVER BROKER PREFIX

One JSON line per feature: {"event": "feature", "name": ..., "works": ..., "why": ...}. The topics, PREFIX and the name
of the feature, are there. The package offers no transactions, traces, SQL filters, namespaces and requests.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

# Installed only where .ci/run builds this client, and without types.
from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage  # type: ignore[import-untyped, import-not-found, unused-ignore]
from rocketmq.exceptions import ProducerException  # type: ignore[import-untyped, import-not-found, unused-ignore]
from rocketmq.ffi import MessageModel, dll  # type: ignore[import-untyped, import-not-found, unused-ignore]

#: Of each wait of a feature, in seconds.
PATIENCE = 120.0

#: What a listener returns to the library.
CONSUME_SUCCESS, RECONSUME_LATER = 0, 1

#: Nothing is shut down before the end of the process: the library's threads are not all joined when it is.
_alive: list[Any] = []


class Seen:
    """What listeners got, in the order of their calls: (member, queue, body)."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int, str]] = []

    def bodies(self, member: str = "") -> list[str]:
        return sorted(body for who, _, body in list(self.all) if member in ("", who))

    def wait(self, wanted: list[str], member: str = "") -> None:
        """For these bodies, and then a little for too many."""
        until(lambda: len(self.bodies(member)) >= len(wanted), lambda: f"{len(wanted)} wanted, got {self.all}")
        time.sleep(0.3)
        assert self.bodies(member) == sorted(wanted), f"{sorted(wanted)} wanted, got {self.all}"


def until(done: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


def pulled(consumer: Any, topic: str, count: int) -> list[str]:
    """So many bodies at least: one pull may end with nothing where the machine has other things to do."""
    bodies: list[str] = []

    def enough() -> bool:
        bodies.extend(str(received) for received in consumer.pull(topic))
        return len(bodies) >= count

    until(enough, lambda: f"{count} wanted, got {bodies}")
    return bodies


def routed(send: Callable[..., Any], *arguments: Any) -> Any:
    """Again where there was no route: the library says so, and has sent nothing, also while a thread of its own is
    connecting to the broker."""
    end = time.monotonic() + 10
    while True:
        try:
            return send(*arguments)
        except ProducerException as error:
            if "No route info" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.02)


def numbered(first: int, end: int) -> list[str]:
    return [f"m{number}" for number in range(first, end)]


def message(topic: str, body: str) -> Any:
    made = Message(topic)
    made.set_tags("t")
    made.set_body(body)
    return made


class Features:
    def __init__(self, nameserver: str, prefix: str) -> None:
        self._nameserver = nameserver
        self._prefix = prefix

    def _producer(self, name: str) -> Any:
        made = Producer(f"cpp-producer-{name}", timeout=10_000)
        dll.SetProducerInstanceName(ctypes.c_void_p(made._handle), f"p-{name}".encode())
        made.set_namesrv_addr(self._nameserver)
        made.start()
        made.send_sync, made.send_orderly = partial(routed, made.send_sync), partial(routed, made.send_orderly)
        _alive.append(made)
        return made

    def _member(
        self, seen: Seen, name: str, topic: str, *, group: str = "", model: Any = MessageModel.CLUSTERING,
        orderly: bool = False, fails: Callable[[str], bool] = lambda body: False,
    ) -> Any:  # fmt: skip
        made = PushConsumer(f"cpp-group-{group or name}", orderly=orderly, message_model=model)
        made.set_namesrv_addr(self._nameserver)
        made.set_instance_name(name)
        made.set_thread_count(2)

        def listen(_: int, handle: int) -> int:
            received = RecvMessage(handle)
            body = received.body.decode()
            if fails(body):
                return RECONSUME_LATER
            seen.all.append((name, received.queue_id, body))
            return CONSUME_SUCCESS

        # Not by its subscribe(): where a listener raises, that returns nothing certain to the library.
        dll.Subscribe(made._handle, topic.encode(), b"*")
        made._register_callback(listen)
        made.start()
        _alive.append(made)
        return made

    def orderly(self) -> str:
        topic, seen, failed = f"{self._prefix}-orderly", Seen(), threading.Event()
        sender = self._producer("orderly")
        for number in range(60):
            sender.send_orderly(message(topic, f"{number % 5}:{number}"), number % 5)

        def fails(body: str) -> bool:
            first = body.endswith(":7") and not failed.is_set()
            if first:
                failed.set()
            return first

        self._member(seen, "orderly", topic, orderly=True, fails=fails)
        seen.wait([f"{number % 5}:{number}" for number in range(60)])
        assert failed.is_set()
        for key in range(5):
            of = [(queue, int(body[2:])) for _, queue, body in seen.all if body.startswith(f"{key}:")]
            assert of == sorted(of) and len({queue for queue, _ in of}) == 1, of
        return "60 of 5 keys in order through a failure"

    def broadcasting(self) -> str:
        topic, seen = f"{self._prefix}-broadcasting", Seen()
        for name in ("b0", "b1"):
            self._member(seen, name, topic, group="broadcasting", model=MessageModel.BROADCASTING)
        sender = self._producer("broadcasting")
        warm = {name: [] for name in ("b0", "b1")}  # type: dict[str, list[str]]

        def both() -> bool:
            sender.send_sync(message(topic, "warm"))
            return all(len({queue for who, queue, _ in list(seen.all) if who == name}) == 4 for name in warm)

        until(both, lambda: f"not both of all queues: {seen.all}")  # they begin at a queue's end, whenever that is
        for body in numbered(0, 5):
            sender.send_sync(message(topic, body))

        def got(name: str) -> list[str]:
            return [body for body in seen.bodies(name) if body != "warm"]

        until(lambda: all(len(got(name)) >= 5 for name in warm), lambda: str(seen.all))
        assert all(got(name) == numbered(0, 5) for name in warm), seen.all
        return "both of two members got all 5"

    def delay(self) -> str:
        topic, seen = f"{self._prefix}-delay", Seen()
        self._member(seen, "delay", topic)
        late = message(topic, "m")
        late.set_delay_time_level(2)
        begin = time.monotonic()
        self._producer("delay").send_sync(late)
        seen.wait(["m"])
        assert time.monotonic() - begin >= 5
        return "level 2 came after its 5 s"

    def pull(self) -> str:
        topic = f"{self._prefix}-pull"
        sender = self._producer("pull")
        made = PullConsumer("cpp-group-pull")
        made.set_namesrv_addr(self._nameserver)
        made.start()
        _alive.append(made)
        for first in (0, 20):
            for body in numbered(first, first + 20):
                sender.send_sync(message(topic, body))
            bodies = pulled(made, topic, 20)
            assert sorted(bodies) == sorted(numbered(first, first + 20)), bodies
        return "20 pulled, and 20 more from there"

    def one_way(self) -> str:
        topic, seen = f"{self._prefix}-one-way", Seen()
        self._member(seen, "one-way", topic)
        sender = self._producer("one-way")
        # With an answer: what is one-way the library drops, with a line in its log, while another thread is connecting.
        sender.send_sync(message(topic, "m0"))
        for body in numbered(1, 21):
            sender.send_oneway(message(topic, body))
        seen.wait(numbered(0, 21))
        return "20 without an answer"

    def asynchronous(self) -> str:
        topic, seen, good, bad = f"{self._prefix}-async", Seen(), [], []
        self._member(seen, "async", topic)
        sender = self._producer("async")
        sender.send_sync(message(topic, "m0"))  # so that the connection stands, as above
        messages = [message(topic, body) for body in numbered(1, 101)]
        for each in messages:
            sender.send_async(each, good.append, bad.append)
        until(lambda: len(good) + len(bad) == 100, lambda: f"{len(good)} and {bad}")
        assert not bad, bad
        seen.wait(numbered(0, 101))
        return "100 at a time"

    def restart(self) -> str:
        topic = f"{self._prefix}-restart"
        sender = self._producer("restart")
        for number in range(3):
            seen, bodies = Seen(), numbered(10 * number, 10 * number + 10)
            for body in bodies:
                sender.send_sync(message(topic, body))
            member = self._member(seen, f"restart-{number}", topic, group="restart")
            seen.wait(bodies)
            member.shutdown()
        return "each of three after the other got what the one before had not"

    def members(self) -> str:
        topic, seen, number = f"{self._prefix}-members", Seen(), 0
        sender = self._producer("members")

        def divided(**wanted: int) -> None:
            """A round of messages, one for every queue of four, until those of one went to the members as wanted."""

            def so() -> bool:
                nonlocal number
                number += 1
                for queue in range(4):
                    sender.send_orderly(message(topic, f"r{number}:{queue}"), queue)

                def of() -> list[str]:
                    return [who for who, _, body in list(seen.all) if body.startswith(f"r{number}:")]

                until(lambda: len(of()) >= 4, lambda: f"{wanted}: {seen.all[-10:]}")
                return {name: of().count(name) for name in set(of())} == wanted

            until(so, lambda: f"{wanted}: {seen.all[-10:]}")

        self._member(seen, "m0", topic, group="members")
        divided(m0=4)
        second = self._member(seen, "m1", topic, group="members")
        divided(m0=2, m1=2)
        second.shutdown()
        divided(m0=4)
        return "2 and 2 of 4 queues, and all of them when the other has left"


def features(nameserver: str, prefix: str, show: Callable[..., None]) -> None:
    at = Features(nameserver, prefix)
    begin = time.monotonic()

    def one(name: str, feature: Callable[[], str]) -> None:
        try:
            why, works = feature(), True
        except Exception as error:  # noqa: BLE001 - a feature that does not work is a line, and no end of the others
            why, works = f"{type(error).__name__}: {error}", False
        show(event="feature", name=name, works=works, why=why)
        print(f"{name}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)

    all_of = {
        "orderly": at.orderly, "broadcasting": at.broadcasting, "delay": at.delay, "pull": at.pull,
        "one-way": at.one_way, "async": at.asynchronous, "restart": at.restart, "members": at.members,
    }  # fmt: skip
    threads = [threading.Thread(target=partial(one, *each)) for each in all_of.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
