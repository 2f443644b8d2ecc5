"""Apache's gRPC client through its proxy as a program: every fact it learns is one JSON line on standard output.

    smoke.py settle   ENDPOINTS TOPIC GROUP COUNT
    smoke.py steady   ENDPOINTS TOPIC GROUP LIMIT_SECONDS
    smoke.py features ENDPOINTS PREFIX

``settle`` sends COUNT messages, does not acknowledge "1" the first time, and keeps "2" longer before it does.
``steady`` sends until standard input ends, whatever fails, while a consumer receives, and then waits until all that was
acknowledged came.
``features`` is in features.py.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

# Installed only where .ci/run builds this client, and without types.
from rocketmq import (  # type: ignore[import-not-found, unused-ignore]
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

LIMIT, INVISIBLE, LONGER = 120, 10, 12

_lock = threading.Lock()


def say(event: str, **facts: object) -> None:
    with _lock:
        print(json.dumps({"event": event, **facts}), flush=True)


def settle(endpoints: str, topic: str, group: str, count: int) -> None:
    config = ClientConfiguration(endpoints, Credentials(), request_timeout=15)
    producer = Producer(config, (topic,))
    producer.startup()
    for number in range(count):
        message = Message()
        message.topic, message.body, message.tag = topic, str(number).encode(), "wanted" if number else "other"
        message.keys = f"key-{number}"
        say("sent", id=producer.send(message).message_id)
    consumer = SimpleConsumer(config, group, {topic: FilterExpression("wanted")}, 5)
    consumer.startup()
    acknowledged = set()
    end = time.monotonic() + LIMIT
    while len(acknowledged) < count - 1 and time.monotonic() < end:
        try:
            messages = consumer.receive(8, INVISIBLE) or ()
        except Exception as error:  # noqa: BLE001 - a proxy that has just started knows the client's settings a moment later
            say("refused", why=str(error)[:200])
            time.sleep(1)
            continue
        for message in messages:
            body = message.body.decode()
            say("message", body=body, attempt=message.delivery_attempt, tag=message.tag, keys=list(message.keys))
            if (body, message.delivery_attempt) == ("1", 1):
                continue
            if body == "2":
                consumer.change_invisible_duration(message, LONGER)
            consumer.ack(message)
            acknowledged.add(body)
    consumer.shutdown()
    producer.shutdown()


def steady(endpoints: str, topic: str, group: str, limit: float) -> None:
    config = ClientConfiguration(endpoints, Credentials(), request_timeout=10)
    consumer = SimpleConsumer(config, group, {topic: FilterExpression()}, 5)
    consumer.startup()
    sender = Producer(config, (topic,))
    sender.startup()
    say("started")
    consumed: set[str] = set()
    acknowledged: set[str] = set()
    ended = threading.Event()
    # The client's own ``ack_async`` sends the acknowledgement and raises RuntimeError then, but in the main thread: it
    # makes an asyncio future where there is no event loop. One acknowledgement a receive would be all.
    acks = ThreadPoolExecutor(8)

    def receive() -> None:
        while True:
            try:
                for received in consumer.receive(32, INVISIBLE) or ():
                    consumed.add(received.body.decode())
                    acks.submit(consumer.ack, received)
            except Exception:  # noqa: BLE001 - whatever fails
                time.sleep(0.5)

    def send_on(name: str) -> None:
        number = 0
        while not ended.wait(0.005):
            number += 1
            message = Message()
            message.topic, message.body = topic, f"{name}-{number}".encode()
            try:
                sender.send(message)
                acknowledged.add(f"{name}-{number}")
            except Exception:  # noqa: BLE001 - whatever fails
                pass

    threading.Thread(target=receive, daemon=True).start()
    senders = [threading.Thread(target=send_on, args=(f"t{number}",)) for number in range(4)]
    for thread in senders:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in senders:
        thread.join()
    late = time.monotonic() + limit
    while (missing := len(acknowledged - consumed)) and time.monotonic() < late:
        time.sleep(0.05)
    say("steady", acknowledged=len(acknowledged), missing=missing)


if __name__ == "__main__":
    if sys.argv[1] == "settle":
        settle(*sys.argv[2:5], int(sys.argv[5]))
    elif sys.argv[1] == "steady":
        steady(*sys.argv[2:5], float(sys.argv[5]))
    else:
        from features import features

        features(*sys.argv[2:4], say)
    say("done")
    os._exit(0)  # the client's own threads are not waited for
