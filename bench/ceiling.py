"""The ceiling probe: what pure Python can do on this machine with all that a broker must do and nothing that it may do.

Three processes on the way of a message (producer -> broker -> consumer) with the product's mechanics and none of its
features: uvloop, BufferedProtocol with one reused buffer, positional msgpack headers, RocketMQ's record layout with a
CRC, one write per loop turn, writev group commit (optionally fdatasync in a thread before the acknowledgement), long
polls, lazy decoding, sixteen listener workers. Every send is acknowledged by itself; the consumer checks that every
queue arrives complete and in order.

    python -m bench.ceiling                         256 single sends in flight, 1 KiB, 4 queues
    python -m bench.ceiling --sync                  the same, fdatasync before the acknowledgement
    python -m bench.ceiling --batch 32 --in-flight 16
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgpack
import uvloop

from bench.processes import BenchError, Child

SEND, SEND_BATCH, PULL, ANSWER = 310, 320, 11, 0
FRAME = struct.Struct(">II")  # length of what follows, serialize type << 24 | header length
RECORD = struct.Struct(">IIIIIQQIQ8sQ8sIQI")  # RocketMQ's fixed part of a stored message, up to the body
ITEM = struct.Struct(">I")  # one message inside a batch: length, body
TOPIC, HOST = b"bench", b"\x7f\0\0\1\0\0\x2a\x9f"
PROPERTIES = b"TAGS\x01a\x02UNIQ_KEY\x017F00000100002A9F0000000000000001\x02"
MAGIC = 0xDAA320A7
TAIL = bytes([len(TOPIC)]) + TOPIC + struct.pack(">H", len(PROPERTIES)) + PROPERTIES
PULL_BYTES, BUFFER, IOV = 256 * 1024, 256 * 1024, 1024
pack = msgpack.Packer().pack
unpack = msgpack.unpackb


class Connection(asyncio.BufferedProtocol):
    """One reused receive buffer; what is sent during a loop turn leaves in one write at its end."""

    def __init__(self, on_frame: Callable[[Connection, list[Any], bytes], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.on_frame = on_frame
        self.buffer = bytearray(BUFFER)
        self.view = memoryview(self.buffer)
        self.end = 0
        self.outgoing: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.view[self.end :]

    def buffer_updated(self, count: int) -> None:
        start, end, view, on_frame, needed = 0, self.end + count, self.view, self.on_frame, 0
        while end - start >= 8:
            length, word = FRAME.unpack_from(view, start)
            stop = start + 4 + length
            if stop > end:
                needed = 4 + length
                break
            body = start + 8 + (word & 0xFFFFFF)
            on_frame(self, unpack(view[start + 8 : body]), bytes(view[body:stop]))
            start = stop
        rest = bytes(view[start:end])
        if needed > len(view):
            self.buffer = bytearray(needed)
            view = self.view = memoryview(self.buffer)
        view[: len(rest)] = rest
        self.end = len(rest)

    def send(self, header: list[Any], body: bytes) -> None:
        packed = pack(header)
        outgoing = self.outgoing
        if not outgoing:
            self.loop.call_soon(self.flush)
        outgoing += (FRAME.pack(4 + len(packed) + len(body), 0x4D000000 | len(packed)), packed, body)

    def flush(self) -> None:
        self.transport.write(b"".join(self.outgoing))
        self.outgoing.clear()


class Broker:
    """One commit log file, queues as lists of recent records, pulls parked until their queue grows."""

    def __init__(self, path: str, queues: int, sync: bool, size: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self.file, 0, size)
        self.thread = ThreadPoolExecutor(1) if sync else None
        self.flushing = False
        self.position = 0
        self.next_offset = [0] * queues  # assigned
        self.base = [0] * queues  # queue offset of records[queue][0]
        self.records: list[list[bytes]] = [[] for _ in range(queues)]  # visible: as durable as promised
        self.parked: list[tuple[Connection, int, int] | None] = [None] * queues
        self.records_pending: list[bytes] = []
        self.pending: list[tuple[Connection, int, int, int, list[bytes]]] = []

    def on_frame(self, connection: Connection, header: list[Any], body: bytes) -> None:
        code, opaque, queue = header[0], header[1], header[4]
        if code == PULL:
            self.pull(connection, opaque, queue, header[5])
            return
        bodies = [body] if code == SEND else split_batch(body)
        offset, now, made = self.next_offset[queue], int(time.time() * 1000), []
        for body in bodies:
            size = RECORD.size + len(body) + len(TAIL)
            crc = zlib.crc32(body) & 0x7FFFFFFF
            at, born = self.position, header[6]
            head = RECORD.pack(size, MAGIC, crc, queue, 0, offset, at, 0, born, HOST, now, HOST, 0, 0, len(body))
            made.append(b"".join((head, body, TAIL)))
            self.position += size
            offset += 1
        if not self.pending and not self.flushing:
            self.loop.call_soon(self.commit)
        self.pending.append((connection, opaque, queue, self.next_offset[queue], made))
        self.records_pending += made
        self.next_offset[queue] = offset

    def commit(self) -> None:
        group, records = self.pending, self.records_pending
        self.pending, self.records_pending = [], []
        if self.thread is None:
            self.write(records, False)
            self.publish(group)
            return
        self.flushing = True  # what arrives meanwhile gathers and is the next group
        flush = self.loop.run_in_executor(self.thread, self.write, records, True)
        flush.add_done_callback(lambda done: self.flushed(done, group))

    def write(self, records: list[bytes], sync: bool) -> None:
        for start in range(0, len(records), IOV):
            run = records[start : start + IOV]
            if os.writev(self.file, run) != sum(map(len, run)):
                raise BenchError("short write")
        if sync:
            os.fdatasync(self.file)

    def flushed(self, done: asyncio.Future[None], group: list[tuple[Connection, int, int, int, list[bytes]]]) -> None:
        done.result()
        self.flushing = False
        if self.pending:
            self.commit()
        self.publish(group)

    def publish(self, group: list[tuple[Connection, int, int, int, list[bytes]]]) -> None:
        touched = set()
        for connection, opaque, queue, offset, made in group:
            self.records[queue] += made
            touched.add(queue)
            connection.send([ANSWER, opaque, 1, None, queue, offset, "7F00000100002A9F0000000000000001"], b"")
        for queue in touched:
            if (parked := self.parked[queue]) is not None:
                self.parked[queue] = None
                self.pull(parked[0], parked[1], queue, parked[2])

    def pull(self, connection: Connection, opaque: int, queue: int, offset: int) -> None:
        records, start = self.records[queue], offset - self.base[queue]
        if start >= len(records):
            self.parked[queue] = (connection, opaque, offset)
            return
        run = records[start : start + PULL_BYTES // len(records[start])]
        connection.send([ANSWER, opaque, 1, None, queue, offset, offset + len(run)], b"".join(run))
        if start > 10_000:  # one consumer: what it has passed is not asked for again
            del records[:start]
            self.base[queue] = offset


def split_batch(body: bytes) -> list[bytes]:
    bodies, at = [], 0
    while at < len(body):
        (size,) = ITEM.unpack_from(body, at)
        bodies.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    return bodies


class Message:
    """A lazy view of one record: what nobody asks for is never decoded."""

    __slots__ = ("buffer", "offset", "queue", "start")

    def __init__(self, buffer: bytes, queue: int, offset: int, start: int) -> None:
        self.buffer, self.queue, self.offset, self.start = buffer, queue, offset, start


def crash(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception in a callback ends the process: a probe that goes on with holes in its counts measures nothing."""
    loop.default_exception_handler(context)
    os._exit(1)


async def broker(options: argparse.Namespace) -> None:
    asyncio.get_running_loop().set_exception_handler(crash)
    served = Broker(options.path, options.queues, options.sync, (options.count + 64) * (options.size + 256))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(served.on_frame), "127.0.0.1", 0)
    say(port=server.sockets[0].getsockname()[1])
    gone = asyncio.Event()
    loop.add_reader(0, lambda: gone.set() if not os.read(0, 4096) else None)
    await gone.wait()


async def producer(options: argparse.Namespace) -> None:
    loop, waiting = asyncio.get_running_loop(), dict[int, asyncio.Future[int]]()
    loop.set_exception_handler(crash)

    def on_frame(_: Connection, header: list[Any], body: bytes) -> None:
        waiting.pop(header[1]).set_result(header[5])

    _, connection = await loop.create_connection(lambda: Connection(on_frame), "127.0.0.1", options.port)
    body, code = os.urandom(options.size), SEND
    if options.batch > 1:
        body, code = (ITEM.pack(len(body)) + body) * options.batch, SEND_BATCH
    requests, sent, acknowledged = options.count // options.batch, 0, 0

    async def send(queue: int) -> int:
        nonlocal sent
        sent += 1
        future: asyncio.Future[int]
        future = waiting[sent] = loop.create_future()
        born = int(time.time() * 1000)
        connection.send([code, sent, 0, "bench", queue, 0, born, "group", PROPERTIES, 0, 0, False], body)
        return await future

    async def sender() -> None:
        nonlocal acknowledged
        while sent < requests:
            await send(sent % options.queues)
            acknowledged += options.batch

    cpu = await ready(loop)
    started = time.monotonic()
    await asyncio.gather(*(sender() for _ in range(options.in_flight)))
    used = time.process_time() - cpu
    say(started=started, ended=time.monotonic(), acknowledged=acknowledged, sent=sent * options.batch, cpu=used)


async def consumer(options: argparse.Namespace) -> None:
    loop, expected, complete = asyncio.get_running_loop(), [0] * options.queues, asyncio.Event()
    arrived, idle = deque[Message](), deque[asyncio.Future[None]]()
    consumed = 0
    loop.set_exception_handler(crash)

    def on_frame(connection: Connection, header: list[Any], buffer: bytes) -> None:
        queue, offset, next_offset = header[4], header[5], header[6]
        connection.send([PULL, queue, 0, "bench", queue, next_offset, 0, "group", None], b"")
        start = 0
        while start < len(buffer):
            arrived.append(Message(buffer, queue, offset, start))
            start += int.from_bytes(buffer[start : start + 4])
            offset += 1
        if offset != next_offset:
            raise BenchError(f"queue {queue}: the answer ends at {offset}, not at {next_offset}")
        while idle:
            idle.popleft().set_result(None)

    async def listener(message: Message) -> None:
        nonlocal consumed
        if message.offset != expected[message.queue]:
            raise BenchError(f"queue {message.queue}: {message.offset} where {expected[message.queue]} was due")
        expected[message.queue] += 1
        consumed += 1
        if consumed == options.count:
            complete.set()

    async def worker() -> None:
        while True:
            while arrived:
                await listener(arrived.popleft())
            idle.append(loop.create_future())
            await idle[-1]

    _, connection = await loop.create_connection(lambda: Connection(on_frame), "127.0.0.1", options.port)
    workers = [asyncio.create_task(worker()) for _ in range(16)]
    for queue in range(options.queues):
        connection.send([PULL, queue, 0, "bench", queue, 0, 0, "group", None], b"")
    cpu = await ready(loop)
    await asyncio.wait([asyncio.create_task(complete.wait()), *workers], return_when=asyncio.FIRST_COMPLETED)
    say(ended=time.monotonic(), consumed=consumed, per_queue=expected, cpu=time.process_time() - cpu)


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def ready(loop: asyncio.AbstractEventLoop) -> float:
    """Say so, wait for the word to go, and return the CPU seconds used until then."""
    say(ready=True)
    go = asyncio.Event()
    loop.add_reader(0, go.set)
    await go.wait()
    loop.remove_reader(0)
    return time.process_time()


def measure(
    count: int = 300_000,
    *,
    in_flight: int = 256,
    batch: int = 1,
    sync: bool = False,
    queues: int = 4,
    size: int = 1024,
    data: str | None = None,
) -> dict[str, Any]:
    """One run: msg/s end to end, CPU microseconds per message by process. BenchError when a count is off."""
    count -= count % batch
    numbers = {"count": count, "in-flight": in_flight, "batch": batch, "queues": queues, "size": size}
    with tempfile.TemporaryDirectory(prefix="aiorocket-ceiling-", dir=data) as directory:
        common = [part for name, number in numbers.items() for part in (f"--{name}", str(number))]
        common += ["--path", os.path.join(directory, "log"), *(["--sync"] if sync else [])]
        with Child("probe broker", "-m", "bench.ceiling", "--role", "broker", *common) as served:
            common += ["--port", str(served.answer()["port"])]
            with (
                Child("probe producer", "-m", "bench.ceiling", "--role", "producer", *common) as sends,
                Child("probe consumer", "-m", "bench.ceiling", "--role", "consumer", *common) as takes,
            ):
                for child in (sends, takes):
                    child.answer()
                before = served.cpu()
                for child in (takes, sends):
                    child.tell(go=True)
                sent, taken = sends.answer(), takes.answer()
                cpu = {"producer": sent["cpu"], "broker": served.cpu() - before, "consumer": taken["cpu"]}
    counts = sent["sent"], sent["acknowledged"], taken["consumed"]
    if set(counts) != {count}:
        raise BenchError(f"of {count} the probe sent %d, had %d acknowledged and %d consumed" % counts)
    return {
        "rate": round(count / (taken["ended"] - sent["started"])),
        "acknowledged_rate": round(count / (sent["ended"] - sent["started"])),
        "count": count,
        "cpu_us": {name: round(used / count * 1e6, 2) for name, used in cpu.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=("broker", "producer", "consumer"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=300_000)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--sync", action="store_true", help="fdatasync before every acknowledgement")
    options = vars(parser.parse_args())
    role, port, path = options.pop("role"), options.pop("port"), options.pop("path")
    if role:
        settings = argparse.Namespace(**options, port=port, path=path)
        uvloop.run({"broker": broker, "producer": producer, "consumer": consumer}[role](settings))
    else:
        say(**measure(**options))


if __name__ == "__main__":
    main()
