"""A broker in a process of its own, and peers that try to fill its memory by lawful looking bytes.

python -m tests.harness.hostile_memory
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from tests.interop.peers import ask, our_server

__all__ = ("listener", "run")


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
            with contextlib.suppress(FileNotFoundError):  # it was open for a moment
                name = entry.readlink().name
                if name.startswith("socket:") and name[8:-1] in inodes:
                    return int(pid)
    raise AssertionError(f"nobody listens on {address}")


def frame(code: int, fields: dict[str, Any], body: bytes = b"", opaque: int = 1) -> bytes:
    header = json.dumps(
        {"code": code, "language": "JAVA", "version": 479, "opaque": opaque, "flag": 0, "extFields": fields}
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def pull(expression: str, **more: Any) -> bytes:
    fields = {
        "consumerGroup": "g", "topic": "TBW102", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0", "subscription": expression,
    }  # fmt: skip
    return frame(11, {**fields, **more})


def half_frames(dial: Callable[[], socket.socket]) -> None:
    for _ in range(200):
        dial().sendall(struct.pack(">II", 8_000_000, 100) + bytes(1_000_000))


def tag_expressions(dial: Callable[[], socket.socket]) -> None:
    link = dial()
    for number in range(1_000):
        link.sendall(pull(f"{number}||" + "||".join(f"tag{n}" for n in range(20_000))))


def lawful_filters(dial: Callable[[], socket.socket]) -> None:
    tags = "||".join(f"tag{n}" for n in range(900))
    for _ in range(40):
        link = dial()
        for number in range(200):
            link.sendall(pull(f"{id(link)}-{number}||{tags}"))


def large_fields(dial: Callable[[], socket.socket]) -> None:
    """Pulls that wait, each with 100 KB that nobody asked for."""
    for _ in range(40):
        link = dial()
        for _ in range(200):
            link.sendall(pull("*", another="x" * 100_000))


def groups(dial: Callable[[], socket.socket]) -> None:
    link = dial()
    for number in range(30_000):
        link.sendall(pull("*", consumerGroup=f"{'g' * 200}-{number}", sysFlag="4"))


def commits(dial: Callable[[], socket.socket]) -> None:
    link = dial()
    for number in range(50_000):
        fields = {"consumerGroup": "g", "topic": "TBW102", "queueId": str(number), "commitOffset": "1"}
        link.sendall(frame(15, fields))


def replies(dial: Callable[[], socket.socket]) -> None:
    """Replies of 1 MB to somebody who takes them and never says so."""
    asker = dial()
    asker.sendall(frame(34, {}, json.dumps({"clientID": "asker", "producerDataSet": [{"groupName": "p"}]}).encode()))
    asker.recv(1000)
    Thread(target=_read_all, args=(asker,), daemon=True).start()
    properties = "REPLY_TO_CLIENT\x01asker\x02"
    fields = {"a": "p", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
              "h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}  # fmt: skip
    for _ in range(8):
        link = dial()
        Thread(target=_read_all, args=(link,), daemon=True).start()
        for _ in range(100):
            link.sendall(frame(325, fields, bytes(1_000_000)))


def _read_all(link: socket.socket) -> None:
    with suppress(OSError):
        while link.recv(1 << 20):
            pass


def slow_readers(dial: Callable[[], socket.socket]) -> None:
    """Each wants ten times what it lets pile up, and reads nothing of it."""
    fields = {"a": "p", "b": "TBW102", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "",
              "j": "0", "k": "false", "m": "false"}  # fmt: skip
    sender = dial()
    for _ in range(4):
        sender.sendall(frame(310, fields, bytes(1_000_000)))
        sender.recv(10_000)
    for _ in range(4):
        link = dial()
        for _ in range(160):
            link.sendall(pull("*"))


ATTACKS = (tag_expressions, lawful_filters, large_fields, groups, commits, replies, slow_readers, half_frames)


def run(place: Path) -> dict[str, tuple[float, float]]:
    """MiB of the broker after each attack, at its end and when its connections are gone."""
    found: dict[str, tuple[float, float]] = {}
    with our_server(place) as server:
        host, port = server.broker.rsplit(":", 1)
        pid = listener(server.broker)
        found["before"] = rss(pid), rss(pid)
        for attack in ATTACKS:
            links: list[socket.socket] = []

            def dial(links: list[socket.socket] = links) -> socket.socket:
                links.append(socket.create_connection((host, int(port)), timeout=20))
                return links[-1]

            try:
                attack(dial)
            except OSError:
                pass  # it hung up on us
            ask(server.broker, 30, {"topic": "TBW102", "queueId": "0"}, timeout=200)  # it has read what came before
            during = rss(pid)
            for link in links:
                link.close()
            assert ask(server.broker, 30, {"topic": "TBW102", "queueId": "0"}, timeout=200)[0] == 0
            found[attack.__name__] = during, rss(pid)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        json.dump(run(Path(place)), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
