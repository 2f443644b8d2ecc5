"""What an editor completes on the objects of an application is what it may use: these names, and no others."""

from __future__ import annotations

import inspect
import re

import pytest

import aiorocket
from aiorocket import (
    Batch,
    Client,
    Consumer,
    Message,
    PoppedMessage,
    Producer,
    PullConsumer,
    Router,
    SimpleConsumer,
    Transaction,
    TransactionProducer,
)
from aiorocket_protocol import RecordView

ADDRESS = "127.0.0.1:9876"
ROUTER = "batch group listener listeners orderly"
CONSUMER = (
    f"{ROUTER} client commit config held include messages pause resume set_concurrency start state stats stop subscribe"
)
PRODUCER = (
    "client config flush group in_flight late_replies recall reply request send send_batch send_many send_oneway "
    "sender start stop"
)
#: Of a record as RocketMQ stores it, which a message is too; Java's MessageExt has most of them.
RECORD = """
body body_crc born_host born_host_bytes born_timestamp buffer delay_level end flag keys msg_id offset_msg_id
physical_offset prepared_transaction_offset properties queue_id queue_offset raw_body raw_properties raw_topic
reconsume_times size start store_host store_host_bytes store_timestamp sys_flag tag topic
"""
MESSAGE = """
ack attempt consume_started content_type dead_letter group offset process queue queue_max_offset queue_min_offset retry
settled sharding_key
"""


@pytest.mark.parametrize(
    ("whose", "names"),
    [
        (Router("g"), ROUTER),
        (Consumer("g", nameservers=ADDRESS), CONSUMER),
        (Producer("g", nameservers=ADDRESS), PRODUCER),
        (
            TransactionProducer("g", nameservers=ADDRESS),
            f"{PRODUCER} checker dropped_checks send_in_transaction transaction",
        ),
        (
            PullConsumer("g", nameservers=ADDRESS),
            "assign assignment client commit committed config fetch group offset_for_time pause position queues resume "
            "seek seek_to_begin seek_to_end seek_to_time start state stop subscribe",
        ),
        (
            SimpleConsumer("g", nameservers=ADDRESS),
            "client config group receive start state stop subscribe unsubscribe",
        ),
        (
            Client(nameservers=ADDRESS),
            "client_id config consumer consumer_states group health include producer pull_consumer recall running send "
            "send_oneway session simple_consumer start stop transaction_producer",
        ),
        (Transaction, "end id leave_unknown prepare receipt rollback state"),
        (RecordView, RECORD),
        (Message, f"{RECORD} {MESSAGE}"),
        (PoppedMessage, f"{RECORD} {MESSAGE} change_invisible handle invisible invisible_until prepare"),
        (Batch, "bodies close count done fail index mark"),
    ],
    ids=lambda value: None if isinstance(value, str) else getattr(value, "__name__", type(value).__name__),
)
async def test_public_names(whose: object, names: str) -> None:
    assert {each for each in dir(whose) if not each.startswith("_")} == set(names.split())


#: What is truly any: what middleware passes on, a coroutine's sends, values of a mapping whose keys say what they are.
ANY = """
Health.as_dict: return
Middleware.attached: client
Middleware.consume: return
Middleware.publish: return
Producer.send: arg
Producer.send_many: sharding_key
Producer.send_oneway: arg
OnewayOptions: arg
SendOptions: arg
embed: broker
run: main
"""


def test_any_is_what_may_be_anything() -> None:
    found = set()
    for name in aiorocket.__all__:
        public = getattr(aiorocket, name)
        if inspect.isclass(public):
            members = [
                inspect.getattr_static(public, each) for each in dir(public) if each == "__init__" or each[0] != "_"
            ]
            functions = [getattr(each, "fget", None) or getattr(each, "__func__", each) for each in members]
        else:
            functions = [public]
        for each in (public, *functions):
            for parameter, said in getattr(each, "__annotations__", {}).items():
                if parameter[0] != "_" and re.search(r"\bAny\b", str(said)):
                    found.add(f"{each.__qualname__}: {parameter}")
    assert found == set(ANY.split("\n")[1:-1])
