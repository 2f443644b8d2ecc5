"""A name server and a broker in processes of their own, and a peer that sends them frames which are nearly right.

    python -m tests.harness.mutated_frames --frames 1000000 --seed 3

Every request of the protocol, in every serialisation, with bytes flipped, cut out, put in and repeated, and a few bytes
that are no frame at all. Said at the end: whether both live and serve, tracebacks in their logs (none may be), lines
of log, and how much memory they have gained.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from aiorocket_protocol import (
    JSON,
    MSGPACK,
    REQUEST_HEADERS,
    ROCKETMQ,
    SPECS,
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    MessageQueue,
    RemotingCommand,
    SubscriptionData,
    encode,
    encode_batch,
    encode_body,
)
from tests.interop.peers import ask, our_server

__all__ = ("Outcome", "run")

TEXTS = (
    "T",
    "g",
    "TBW102",
    "",
    "%RETRY%g",
    "c@1",
    "a = 1",
    "x||y",
    "SQL92",
    "broker-a",
    "KEYS\x01k\x02",
    "127.0.0.1:1",
)
NUMBERS = (0, 0, 1, 2, 3, 4, 6, 7, -1, 100, 1 << 31, -(1 << 31), (1 << 63) - 1)
#: Requests of one connection that are on their way at once.
WINDOW = 25
#: Seconds in which any request is answered, held pulls aside.
PATIENCE = 10.0
#: No request that is served: its answer is that all before it were worked off.
LAST = encode(RemotingCommand(31_337, 2_147_483_647), JSON)


class Outcome(NamedTuple):
    frames: int
    connections: int
    answers: int
    tracebacks: list[str]
    log_lines: int
    #: MiB of broker and name server before and after.
    before: tuple[float, ...]
    after: tuple[float, ...]


def body_of(draw: random.Random, code: int, kind: int) -> bytes:
    if code in (10, 310, 320):
        return encode_batch([(b"body", 0, b"TAGS\x01a\x02")] * 3)
    if code in (41, 42):
        return encode_body(LockBatchBody("c", "g", [MessageQueue("T", "broker-a", n) for n in range(3)]), kind)
    if code == 34 or draw.random() < 0.3:
        wanted = [SubscriptionData.parse("T", draw.choice(("*", "a||b", "x")), draw.randrange(1 << 40))]
        return encode_body(HeartbeatData("c", ["p"], [ConsumerData("g", subscriptions=wanted)]), kind)
    return draw.choice((b"", b"{}", b"[]", b"\x80", b'{"topicConfigTable":{"T":{"topicName":"T"}}}', b"body"))


def text(draw: random.Random, kind: str) -> str:
    """A value for a field of this kind, or one in twenty times anything."""
    if draw.random() < 0.05:
        return draw.choice(("", "\0", "x" * 300, "1" * 50, "-", "\u0130", "1e9", "\x01\x02", str(1 << 70), "[]", "\n"))
    if kind == "str":
        return draw.choice(TEXTS)
    return draw.choice(("true", "false")) if kind == "bool" else str(draw.choice(NUMBERS))


def request(draw: random.Random, opaque: int) -> bytes:
    """A right one."""
    code = draw.choice(CODES)
    kind = draw.choice((JSON, ROCKETMQ, MSGPACK) if code < 1 << 15 else (JSON, MSGPACK))
    fields: dict[str, str] = {}
    for field in SPECS[REQUEST_HEADERS[code]]:
        if field.required or draw.random() < 0.5:
            fields[field.wire] = text(draw, field.kind)
    command = RemotingCommand(code, opaque, draw.choice((0, 0, 0, 2)), ext=fields, body=body_of(draw, code, kind))
    return encode(command, kind)


def mutated(draw: random.Random, frame: bytes) -> bytes:
    """A few bytes of it are others; its lengths are right again, most of the time."""
    header_length = int.from_bytes(frame[5:8], "big")
    header, body = bytearray(frame[8 : 8 + header_length]), bytearray(frame[8 + header_length :])
    in_header = draw.random() < 0.04  # ends the connection, nearly always
    for _ in range(draw.choice((0, 1, 1, 2, 8))):
        part = header if in_header else body
        at = draw.randrange(len(part) + 1)
        what = draw.randrange(5)
        if what == 0 and at < len(part):
            part[at] ^= 1 << draw.randrange(8)
        elif what == 1:
            part[at : at + draw.randrange(1, 9)] = b""
        elif what == 2:
            part[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif what == 3:
            part[at:at] = part[at : at + draw.randrange(1, 64)] * draw.choice((1, 3, 40))
        elif at < len(part):
            part[at] = draw.choice(b'\x00\xff\x7f\x80"{}[]:,0-9\x90\xc0\xdf')
    whole = 4 + len(header) + len(body)
    kind = draw.choice((JSON, ROCKETMQ, MSGPACK, 7)) if draw.random() < 0.001 else frame[4]
    data = struct.pack(">II", whole, kind << 24 | len(header)) + header + body
    return draw.randbytes(len(data)) if draw.random() < 0.001 else data


def rss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def listener(address: str) -> int:
    """The process that listens there, which this one has started."""
    port = f"{int(address.rpartition(':')[2]):04X}"
    inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
              if line.split()[1].endswith(f":{port}") and line.split()[3] == "0A"}  # fmt: skip
    children = Path("/proc/thread-self/children").read_text().split()
    for pid in children:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            name = entry.readlink().name
            if name.startswith("socket:") and name[8:-1] in inodes:
                return int(pid)
    raise AssertionError(f"nobody listens on {address}")


def exchange(link: socket.socket, frames: list[bytes]) -> tuple[int, bool]:
    """Send, and count the answers that come until that to a last frame, which is right; False when it hangs up."""
    answers, pending = 0, b""
    link.settimeout(PATIENCE)
    try:
        link.sendall(b"".join(frames) + LAST)
        while True:
            more = link.recv(1 << 18)
            if not more:
                return answers, False
            pending += more
            while len(pending) >= 4 and len(pending) >= (size := 4 + int.from_bytes(pending[:4], "big")):
                if b'"opaque":2147483647,' in pending[:size]:
                    return answers, True
                pending = pending[size:]
                answers += 1
    except TimeoutError:
        raise AssertionError(f"no answer in {PATIENCE:g} s to {frames!r:.2000}") from None
    except OSError:
        return answers, False


def run(frames: int, seed: int, place: Path) -> Outcome:
    """Send so many to both servers; a fifth of them to the name server."""
    draw = random.Random(seed)
    with our_server(place) as server:
        addresses = (server.broker, server.nameserver)
        pids = tuple(listener(address) for address in addresses)
        sent = connections = answers = 0
        before: tuple[float, ...] = ()
        while sent < frames:
            address = addresses[draw.random() < 0.2]
            host, port = address.rsplit(":", 1)
            with socket.create_connection((host, int(port)), timeout=10) as link:
                connections += 1
                alive = True
                while alive and sent < frames:
                    batch = [mutated(draw, request(draw, sent + n)) for n in range(WINDOW)]
                    sent += WINDOW
                    got, alive = exchange(link, batch)
                    answers += got
            if not before and sent >= frames / 10:  # what the first of each kind brings is no growth
                before = tuple(map(rss, pids))
        deadline = time.monotonic() + 20
        while ask(server.broker, 30, {"topic": "T", "queueId": "0"}, timeout=10)[0] not in (0, 1):
            assert time.monotonic() < deadline, "the broker does not serve"
        assert ask(server.nameserver, 106, {}, timeout=10)[0] in (0, 1), "the name server does not serve"
        after = tuple(map(rss, pids))
    logs = "\n".join((place / name).read_text(errors="replace") for name in ("broker.log", "nameserver.log"))
    tracebacks = logs.split("Traceback (most recent call last)")[1:]
    return Outcome(sent, connections, answers, tracebacks, logs.count("\n"), before, after)


CODES = sorted(REQUEST_HEADERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        outcome = run(options.frames, options.seed, Path(place))
    report: dict[str, Any] = outcome._asdict()
    report["tracebacks"] = len(outcome.tracebacks)
    print(json.dumps(report))
    for each in outcome.tracebacks[:10]:
        print(each[:3000], file=sys.stderr)
    sys.exit(bool(outcome.tracebacks))


if __name__ == "__main__":
    main()
