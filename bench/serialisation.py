"""What a request costs the broker in JSON, as every official client speaks, and in msgpack, as ours do.

    python -m bench.serialisation          CPU µs of the broker per request, both in turn, medians; and the ratio

The requests are frames made beforehand, 256 in flight on one connection: nothing but the broker's own work differs. A
"send" is an acknowledged message of 1 KiB, a "pull" one message that is there. Exit 1 when a ratio is above ``MOST``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from aiorocket_protocol import (
    MSGPACK,
    FrameSplitter,
    PullMessageRequestHeader,
    RemotingCommand,
    RequestCode,
    SendMessageRequestHeaderV2,
    decode,
    encode,
    encode_properties,
)
from bench import scenarios
from bench.processes import BenchError
from bench.scenarios import TOPIC

MOST = 1.6
BODY = bytes(range(256)) * 4
IN_FLIGHT = 256
PROPERTIES = encode_properties({"UNIQ_KEY": "7F00000100002A9F0000000000000000", "WAIT": "true", "TAGS": "a"}).decode()


#: Of both requests: the code, the fields in the order in which Java's client 5.5.0 writes them, and the body.
KINDS = {
    "send": (
        RequestCode.SEND_MESSAGE_V2,
        {
            "a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
            "i": PROPERTIES, "j": "0", "k": "false", "m": "false", "n": "broker-a",
        },
        BODY,
    ),
    "pull": (
        RequestCode.PULL_MESSAGE,
        {
            "queueId": "0", "maxMsgBytes": "262144", "maxMsgNums": "1", "sysFlag": "4", "suspendTimeoutMillis": "0",
            "commitOffset": "0", "bname": "broker-a", "topic": TOPIC, "queueOffset": "0", "subscription": "*",
            "expressionType": "TAG", "subVersion": "1700000000000", "consumerGroup": "bench",
        },
        b"",
    ),
}  # fmt: skip
HEADERS: dict[str, Any] = {
    "send": SendMessageRequestHeaderV2(
        "bench", TOPIC, "TBW102", 4, 0, 0, 1_700_000_000_000, 0, PROPERTIES, 0, False, batch=False
    ),
    "pull": PullMessageRequestHeader(
        "bench", TOPIC, 0, 0, 1, 4, 0, 0, 1_700_000_000_000, "*", expression_type="TAG", max_msg_bytes=262_144
    ),
}


def as_java(kind: str, opaque: int) -> bytes:
    code, fields, body = KINDS[kind]
    header = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque,
              "serializeTypeCurrentRPC": "JSON", "version": 513}  # fmt: skip
    data = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body


def as_ours(kind: str, opaque: int) -> bytes:
    code, _, body = KINDS[kind]
    command = RemotingCommand.request(code, HEADERS[kind], body=body)
    command.opaque = opaque
    return encode(command, MSGPACK)


def cpu(process: int) -> float:
    """Seconds that the process ran, all of its threads."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def asked(link: socket.socket, frames: bytes, count: int) -> None:
    """Send them and wait for as many answers. BenchError when the last is a refusal."""
    splitter, answers = FrameSplitter(), []
    link.sendall(frames)
    while count > 0:
        data = link.recv(1 << 18)
        if not data:
            raise BenchError("the broker hung up")
        found = list(splitter.feed(data))
        answers += found
        count -= len(found)
    if (answer := decode(*answers[-1])).code != 0:
        raise BenchError(f"refused with {answer.code}: {answer.remark}")


def measure(link: socket.socket, process: int, frame: Callable[[int], bytes], count: int) -> float:
    """Microseconds of one request."""
    frames = b"".join(map(frame, range(1, IN_FLIGHT + 1)))
    asked(link, frames, IN_FLIGHT)
    before = cpu(process)
    for _ in range(count // IN_FLIGHT):
        asked(link, frames, IN_FLIGHT)
    return (cpu(process) - before) / (count // IN_FLIGHT * IN_FLIGHT) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_480, help="requests of each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--data", help="where the store is; default: the directory for temporary files")
    options = parser.parse_args()
    table = Table("request", "JSON µs", "msgpack µs", "ratio")
    ratios = []
    with scenarios.standalone("async", options.data) as server:
        process = server.child.process.pid
        with socket.create_connection(("127.0.0.1", server.broker)) as link:
            for kind in KINDS:
                turns = [
                    [measure(link, process, partial(form, kind), options.count) for form in (as_java, as_ours)]
                    for _ in range(options.turns)
                ]
                text, packed = (statistics.median(each) for each in zip(*turns, strict=True))
                ratios.append(text / packed)
                table.add_row(kind, f"{text:.1f}", f"{packed:.1f}", f"{ratios[-1]:.2f}")
    Console(width=int(os.environ.get("COLUMNS", "100"))).print(table)
    sys.exit(max(ratios) > MOST)


if __name__ == "__main__":
    main()
