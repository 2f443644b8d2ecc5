"""The C++ client through its Python binding (PyPI ``rocketmq``) as a program: every fact it learns is one JSON line.

    smoke.py send    NAMESERVER TOPIC PREFIX COUNT
    smoke.py consume NAMESERVER TOPIC GROUP  TAG COUNT LIMIT_SECONDS
    smoke.py steady  NAMESERVER TOPIC LIMIT_SECONDS
    smoke.py features NAMESERVER BROKER PREFIX

``send`` makes bodies PREFIX-0, PREFIX-1 ..., the even ones with the tag "even" and the odd ones with "odd", then one
batch of two. ``consume`` reads TAG until COUNT different bodies were consumed; the first of them fails once.
``steady`` sends until standard input ends, whatever fails, while a consumer listens, and then waits until all that was
acknowledged came. ``features`` is in features.py.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from features import features, routed

# Installed only where .ci/run builds this client, and without types.
from rocketmq.client import Message, Producer, PushConsumer, RecvMessage  # type: ignore[import-untyped, import-not-found, unused-ignore]
from rocketmq.exceptions import RocketMQException  # type: ignore[import-untyped, import-not-found, unused-ignore]
from rocketmq.ffi import dll  # type: ignore[import-untyped, import-not-found, unused-ignore]

#: What a listener returns to the library.
CONSUME_SUCCESS, RECONSUME_LATER = 0, 1

_lock = threading.Lock()


def show(**fact: Any) -> None:
    with _lock:
        print(json.dumps(fact), flush=True)


def message(topic: str, body: str, index: int) -> Any:
    made = Message(topic)
    made.set_keys(f"key-{body} all")
    made.set_tags(("even", "odd")[index % 2])
    made.set_property("from", "c++ grün")
    made.set_body(body)
    return made


def signing(client: Any) -> Any:
    """Nobody, unless the environment says who."""
    if key := os.environ.get("SMOKE_ACCESS_KEY"):
        client.set_session_credentials(key, os.environ["SMOKE_SECRET_KEY"], "")
    return client


def send(nameserver: str, topic: str, prefix: str, count: int) -> None:
    sender = signing(Producer("cpp-sender", timeout=10_000))
    sender.set_namesrv_addr(nameserver)
    sender.start()
    for index in range(count):
        body = f"{prefix}-{index}"
        result = routed(sender.send_sync, message(topic, body, index))
        show(event="sent", body=body, status=int(result.status), msgId=result.msg_id, queueOffset=result.offset)
    result = sender.send_batch([message(topic, f"{prefix}-batch-{index}", index) for index in range(2)])
    show(
        event="sent", body=f"{prefix}-batch", status=int(result.status), msgId=result.msg_id, queueOffset=result.offset
    )
    sender.shutdown()


def consume(nameserver: str, topic: str, group: str, tag: str, count: int, limit: float) -> None:
    consumed: set[str] = set()
    complete = threading.Event()
    failed = False

    def on_message(_: int, handle: int) -> int:
        nonlocal failed
        received = RecvMessage(handle)
        body = received.body.decode()
        with _lock:
            fail, failed = not failed, True
        names = ("KEYS", "TAGS", "UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON", "from", "RETRY_TOPIC", "DELAY")
        values = {name: received.get_property(name) for name in names}
        show(
            event="message", body=body, failed=fail, tags=received.tags.decode(), keys=received.keys.decode(),
            msgId=received.id, reconsumeTimes=received.reconsume_times,
            properties={name: value.decode() for name, value in values.items() if value},
        )  # fmt: skip
        if fail:
            return RECONSUME_LATER
        consumed.add(body)
        if len(consumed) == count:
            complete.set()
        return CONSUME_SUCCESS

    receiver = signing(PushConsumer(group))
    receiver.set_namesrv_addr(nameserver)
    receiver.set_thread_count(2)
    # Not by its subscribe(): where a listener raises, that returns nothing certain to the library.
    dll.Subscribe(receiver._handle, topic.encode(), tag.encode())
    receiver._register_callback(on_message)
    receiver.start()
    if not complete.wait(limit):
        print(f"only {len(consumed)} of {count} after {limit:g} s", file=sys.stderr, flush=True)
        os._exit(1)
    receiver.shutdown()


def steady(nameserver: str, topic: str, limit: float) -> None:
    consumed: set[str] = set()
    acknowledged: set[str] = set()
    receiver = PushConsumer("cpp-steady")
    receiver.set_namesrv_addr(nameserver)
    receiver.set_thread_count(2)
    receiver.subscribe(topic, lambda received: consumed.add(received.body.decode()))
    receiver.start()
    sender = Producer("cpp-steady-sender", timeout=2_000)
    sender.set_namesrv_addr(nameserver)
    sender.start()
    show(event="started")
    ended = threading.Event()

    def send_on(name: str) -> None:
        number = 0
        while not ended.wait(0.005):
            number += 1
            made = Message(topic)
            made.set_body(f"{name}-{number}")
            try:
                if int(sender.send_sync(made).status) == 0:
                    acknowledged.add(f"{name}-{number}")
            except RocketMQException:
                pass

    threads = [threading.Thread(target=send_on, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    late = time.monotonic() + limit
    while acknowledged - consumed and time.monotonic() < late:
        time.sleep(0.05)
    show(event="steady", acknowledged=len(acknowledged), missing=len(acknowledged - consumed))


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(*sys.argv[2:5], int(sys.argv[5]))
    elif sys.argv[1] == "steady":
        steady(*sys.argv[2:4], float(sys.argv[4]))
    elif sys.argv[1] == "features":
        features(sys.argv[2], sys.argv[4], show)
    else:
        consume(*sys.argv[2:6], int(sys.argv[6]), float(sys.argv[7]))
    show(event="done")
    os._exit(0)  # the library's own threads and its exit handlers are not waited for
