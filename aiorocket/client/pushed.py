"""Messages that a broker pushes: half messages to check, replies, and what is to be consumed at an administrator's
wish. Nobody settles them."""

from __future__ import annotations

from aiorocket.client.message import Message, Origin
from aiorocket.client.route_table import RouteTable
from aiorocket.model import Queue
from aiorocket.remoting.connection import Connection
from aiorocket_protocol import (
    PROPERTY_ARRIVE_TIME,
    ProtocolError,
    RecordView,
    ReplyMessageRequestHeader,
    encode_record,
    pack_host,
    split_records,
)

__all__ = ("broker_of", "from_record", "from_reply")

_NO_HOST = bytes(8)


def from_record(
    namespace: str, record: bytes, broker_name: str, origin: type[Origin] = Origin, group: str = ""
) -> Message:
    """The message of a stored record that a broker sent (39, 309), to be consumed by ``group``. ProtocolError for
    damage."""
    messages = split_records(record, Message)
    if len(messages) != 1:
        raise ProtocolError(f"one record is needed, {len(messages)} came", where="pushed message")
    return _ready(namespace, messages[0], broker_name, origin, group)


def from_reply(
    namespace: str, header: ReplyMessageRequestHeader, body: bytes, broker_name: str, now_ms: int
) -> Message:
    """The reply in a 326. It arrived at ``now_ms``, which becomes its property ARRIVE_TIME as in Java."""
    text = (header.properties or "").removesuffix("\x02")
    text = f"{text}\x02" if text else ""
    record = encode_record(
        topic=header.topic.encode(), body=body, properties=f"{text}{PROPERTY_ARRIVE_TIME}\x01{now_ms}\x02".encode(),
        queue_id=header.queue_id, queue_offset=0, physical_offset=0, flag=header.flag, sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp, born_host=_host(header.born_host),
        store_timestamp=header.store_timestamp, store_host=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
    )  # fmt: skip
    return _ready(namespace, Message(record, 0, len(record)), broker_name, Origin)


def broker_of(routes: RouteTable, connection: Connection) -> str:
    """The name of the broker that a connection leads to; its address while no route names it."""
    address = str(connection.data.get("address", connection.peer))
    return routes.broker_name(address) or address


def _ready(namespace: str, message: Message, broker_name: str, origin: type[Origin], group: str = "") -> Message:
    message._process_queue = None
    # Of a retry this is the retry topic, as of any message that was pulled from there.
    topic = RecordView(message.buffer, message.start, message.end).topic
    message._source = origin(namespace, Queue(topic, broker_name, message.queue_id), group)
    return message


def _host(text: str) -> bytes:
    """``ip:port``, also as Java prints its addresses (``/ip:port``, ``name/ip:port``); zeros for what is neither."""
    try:
        return pack_host(text.rpartition("/")[2])
    except ProtocolError:
        return _NO_HOST
