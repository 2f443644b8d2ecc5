"""Apache's gRPC client through its proxy: sends, receives, leaves one message unacknowledged, keeps one longer.

    smoke.py ENDPOINTS TOPIC GROUP COUNT

prints one JSON line for each thing that happens. Of COUNT messages "1" is not acknowledged the first time, and "2" is
kept longer before it is.
"""

import json
import sys
import time

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

endpoints, topic, group, count = sys.argv[1:]
LIMIT, INVISIBLE, LONGER = 90, 10, 12


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


config = ClientConfiguration(endpoints, Credentials())
producer = Producer(config, (topic,))
producer.startup()
for number in range(int(count)):
    message = Message()
    message.topic, message.body, message.tag = topic, str(number).encode(), "wanted" if number else "other"
    message.keys = f"key-{number}"
    say("sent", id=producer.send(message).message_id)
consumer = SimpleConsumer(config, group, {topic: FilterExpression("wanted")}, 5)
consumer.startup()
acknowledged = set()
end = time.monotonic() + LIMIT
while len(acknowledged) < int(count) - 1 and time.monotonic() < end:
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
say("done")
