"""The plainest sends in Python: what compiled code does if there is any.

Of a request's bytes only what each send has of its own is made for each: opaque, time and id. The rest stands ready by
the queue it goes to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any

from aiorocket.client.sending.publish import Template
from aiorocket.remoting.answers import Sent, take_answers
from aiorocket.remoting.connection import BURST, BURST_BYTES, LARGE, MAX_OPAQUE, Connection
from aiorocket_protocol import LANGUAGE_PYTHON, MSGPACK, PROPERTY_UNIQ_KEY, RequestCode
from aiorocket_protocol.compiled import pack
from aiorocket_protocol.limits import MAX_FRAME

if TYPE_CHECKING:
    from aiorocket.client.sending.publish import Publish, Target

__all__ = ("ProducerSends",)

_SEND = int(RequestCode.SEND_MESSAGE_V2)
_ID_BEGIN = PROPERTY_UNIQ_KEY + "\x01"
_pack_words = Struct(">II").pack
_sent: Callable[[tuple[object, ...]], Sent] = partial(tuple.__new__, Sent)


_NO_TEMPLATE = Template(0, 0, b"", b"", b"", b"")


class ProducerSends:
    """Called with a topic, a body, a timeout and its end it begins a send, if that is plain; or answers None, and
    nothing was done. It is given, works in and changes what ``ProducerSends`` of the speedups does."""

    def __init__(
        self,
        *,
        opened: dict[str, Publish],
        live: dict[str, Connection],
        next_id: Callable[[int], str],
        wall_ms: Callable[[], int],
        compress_over: int,
        version: int,
        group: str,
        default_topic: str,
        queues: int,
    ) -> None:
        self._opened = opened
        self._live = live
        self._wall_ms = wall_ms
        self._next_id = next_id
        self._compress_over = compress_over
        self._version = version
        self._group = group
        self._default_topic = default_topic
        self._queues = queues
        self._born = -1
        self._packed_born = b""

    def __call__(self, topic: str, body: bytes, timeout: float, deadline: float) -> Sent | None:
        size = len(body)
        publish = self._opened.get(topic)
        if publish is None or publish.slow or not 0 < size < self._compress_over:
            return None
        # As QueueChoice.next does.
        choice = publish.choice
        cursor = choice._cursor
        target = choice.queues[cursor]
        connection = self._live.get(target.address)
        if (
            connection is None
            or connection._send_type != MSGPACK
            or connection.closed
            or (connection._out_bytes and connection._out_bytes > connection.config.write_limit)
            or type(connection) is not Connection
        ):
            return None
        born = self._wall_ms()
        if born != self._born:
            self._born, self._packed_born = born, pack(born)
        msg_id = self._next_id(born)
        opaque = (connection._opaque + 1) & MAX_OPAQUE
        number = pack(opaque)
        time = self._packed_born
        width = len(number) + len(time)
        of_size, of_width, begin, before_time, before_id, end = target.template or _NO_TEMPLATE
        if of_size != size or of_width != width:
            template = self._template(publish, target, size, width, len(msg_id))
            if template is None:
                return None
            target.template = template
            _, _, begin, before_time, before_id, end = template
        head = b"".join((begin, number, before_time, time, before_id, msg_id.encode(), end))
        choice._cursor = cursor + 1 if cursor < choice._last else 0
        if connection.plain is None:
            connection.plain = take_answers
        # As Connection.request and TimeoutQueue.add do.
        loop = connection._loop
        future = loop.create_future()
        connection._opaque = opaque
        requests: dict[int, Any] = connection._requests
        sent = requests[opaque] = _sent((future, publish, target, msg_id, born))
        timeouts = connection._timeouts
        fifo = timeouts._fifos.get(timeout)
        if fifo is None or deadline < timeouts._armed or len(fifo) >= timeouts._prune_at:
            timeouts.add(timeout, opaque, _SEND)
        else:
            fifo.append((deadline, opaque, _SEND))
        out = connection._out
        if not out:
            loop.call_soon(connection._flush)
        out += (head, body)
        if size >= LARGE:
            connection._out_large = True
            connection._out_bytes += size
        if len(out) >= BURST or connection._out_bytes >= BURST_BYTES:
            connection._flush()
        return sent

    def _template(self, publish: Publish, target: Target, size: int, width: int, id_length: int) -> Template | None:
        """None for what does not pack, or is too long for a frame."""
        try:
            before = pack((self._group, publish.name, self._default_topic, self._queues, target.queue_id, 0))
            text = pack(_ID_BEGIN + "0" * id_length + "\x02")
            behind = pack((0, False, None, False, target.broker_name))
        except (TypeError, ValueError, OverflowError):
            return None
        begin = b"\x97" + pack(_SEND) + pack(0)
        before_time = pack(self._version) + pack(LANGUAGE_PYTHON) + b"\xc0\x9e" + before[1:]
        before_id = b"\0" + text[: -id_length - 1]
        end = b"\x02" + behind[1:]
        header = len(begin) + width + len(before_time) + len(before_id) + id_length + len(end)
        if 4 + header + size > MAX_FRAME - 4:
            return None
        words = _pack_words(4 + header + size, MSGPACK << 24 | header)
        return Template(size, width, words + begin, before_time, before_id, end)
