"""A broker and a name server as processes, and peers that try to fill their memory by lawful looking bytes.

python -m tests.harness.hostile_memory [--times 10] [ATTACK ...]    # each at servers of its own; 1 when one is too much
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import tempfile
import threading
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from aiorocket.config import Limits, RemotingConfig, StoreConfig
from tests.interop.peers import Server, ask, our_server

__all__ = ("ATTACKS", "listener", "run")

Dial = Callable[[], socket.socket]
MIB = 1 << 20


def rss(pid: int, what: str = "VmRSS") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {what}")


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


def half_frames(dial: Dial, times: int) -> None:
    for _ in range(200):
        dial().sendall(struct.pack(">II", 8_000_000, 100) + bytes(1_000_000))


def tag_expressions(dial: Dial, times: int) -> None:
    link = dial()
    for number in range(1_000 * times):
        link.sendall(pull(f"{number}||" + "||".join(f"tag{n}" for n in range(20_000))))


def lawful_filters(dial: Dial, times: int) -> None:
    tags = "||".join(f"tag{n}" for n in range(900))
    for _ in range(40):
        link = dial()
        for number in range(200):
            link.sendall(pull(f"{id(link)}-{number}||{tags}"))


def large_fields(dial: Dial, times: int) -> None:
    """Pulls that wait, each with 100 KB that nobody asked for."""
    for _ in range(40):
        link = dial()
        for _ in range(200):
            link.sendall(pull("*", another="x" * 100_000))


def groups(dial: Dial, times: int) -> None:
    link = _reading(dial())
    for number in range(30_000 * times):
        link.sendall(pull("*", consumerGroup=f"{'g' * 200}-{number}", sysFlag="4"))


def commits(dial: Dial, times: int) -> None:
    link = _reading(dial())
    for number in range(50_000 * times):
        fields = {"consumerGroup": "g", "topic": "TBW102", "queueId": str(number), "commitOffset": "1"}
        link.sendall(frame(15, fields))


def replies(dial: Dial, times: int) -> None:
    """Replies of 1 MB to somebody who takes them and never says so."""
    asker = dial()
    asker.sendall(frame(34, {}, json.dumps({"clientID": "asker", "producerDataSet": [{"groupName": "p"}]}).encode()))
    asker.recv(1000)
    _reading(asker)
    properties = "REPLY_TO_CLIENT\x01asker\x02"
    fields = {"a": "p", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
              "h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}  # fmt: skip
    for _ in range(8):
        link = _reading(dial())
        for _ in range(100):
            link.sendall(frame(325, fields, bytes(1_000_000)))


def _reading(link: socket.socket) -> socket.socket:
    """It reads whatever comes: what waits for those who do not is no matter of this attack."""
    threading.Thread(target=_read_all, args=(link,), daemon=True).start()
    return link


def _read_all(link: socket.socket) -> None:
    with suppress(OSError):
        while link.recv(1 << 20):
            pass


def slow_readers(dial: Dial, times: int) -> None:
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


def locks(dial: Dial, times: int) -> None:
    """Of queues that do not exist."""
    link = dial()
    for number in range(20 * times):
        queues = [{"topic": "TBW102", "brokerName": "broker-a", "queueId": 10_000 * number + n} for n in range(10_000)]
        link.sendall(frame(41, {}, json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": queues}).encode()))
        link.recv(1 << 20)


def sql(dial: Dial, times: int) -> None:
    link = dial()
    for number in range(20 * times):
        link.sendall(pull(f"a = {number}" + " OR b = 1" * 18_000, expressionType="SQL92"))
    for _ in range(10):
        link = dial()
        for number in range(20 * times):
            link.sendall(pull(f"a{id(link)} = {number}" + " OR b>1" * 990, expressionType="SQL92"))


def heartbeats(dial: Dial, times: int) -> None:
    for number in range(10 * times):
        tags = "||".join(f"tag-{number}-{n}" for n in range(800))
        wanted = [{"topic": f"t{n}", "subString": tags, "subVersion": 1} for n in range(80)]
        dial().sendall(heartbeat(number, wanted))


def sql_heartbeats(dial: Dial, times: int) -> None:
    for number in range(10 * times):
        wanted = [{"topic": f"t{n}", "subString": f"a = {number}" + " OR b>1" * 990, "expressionType": "SQL92",
                   "subVersion": 1} for n in range(100)]  # fmt: skip
        link = dial()
        link.sendall(heartbeat(number, wanted))
        link.recv(1000)


def heartbeat(number: int, wanted: list[dict[str, Any]]) -> bytes:
    data = {"clientID": f"c{number}", "consumerDataSet": [{
        "groupName": f"g{number}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": wanted}]}  # fmt: skip
    return frame(34, {}, json.dumps(data).encode())


def pops(dial: Dial, times: int) -> None:
    """Of groups and by filters of their own, and of all queues."""
    for _ in range(20 * times):
        link = dial()
        for number in range(50):
            fields = {
                "consumerGroup": f"g{id(link)}-{number}", "topic": "TBW102", "queueId": "-1", "maxMsgNums": "32",
                "invisibleTime": "60000", "pollTime": "15000", "bornTime": "0", "initMode": "0", "expType": "SQL92",
                "exp": f"a = {number}" + " OR b>1" * 990,
            }  # fmt: skip
            link.sendall(frame(200050, fields))


def connections(dial: Dial, times: int) -> None:
    for _ in range(500 * times):
        dial().sendall(b"\0")


def large_frames(dial: Dial, times: int) -> None:
    for _ in range(4):
        link = dial()
        for _ in range(2 * times):
            link.sendall(frame(34, {}, bytes((16 << 20) - 1_000)))


def sends(dial: Dial, times: int) -> None:
    """Of 1 MB each, by which somebody who does not read the answers fills the disk's queue."""
    fields = {"a": "p", "b": "TBW102", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "",
              "j": "0", "k": "false", "m": "false"}  # fmt: skip
    for _ in range(8):
        link = dial()
        for _ in range(20 * times):
            link.sendall(frame(310, fields, bytes(1_000_000)))


def mutated(dial: Dial, times: int) -> None:
    draw, whole = (
        Random(12),
        [pull("*"), frame(34, {}, b"{}"), frame(200050, {"topic": "TBW102"}), frame(15, {"a": "b"})],
    )
    link = dial()
    for _ in range(3_000 * times):
        bad = bytearray(draw.choice(whole))
        for _ in range(draw.randrange(1, 6)):
            bad[draw.randrange(4, len(bad))] = draw.randrange(256)
        try:
            link.sendall(bad)
        except OSError:
            link = dial()


def key_values(dial: Dial, times: int) -> None:
    """At the name server."""
    link = dial()
    for number in range(500 * times):
        link.sendall(frame(100, {"namespace": "n", "key": str(number), "value": "v" * 60_000}))


FILTERS = Limits().filter_memory / MIB
NETWORK = RemotingConfig()
#: What may be kept, in MiB, and by which limits; 64 besides are anybody's. The frames of those who have sent are kept
#: too until they send again or end: ``FRAMES``.
ATTACKS: dict[Callable[[Dial, int], None], tuple[float, str]] = {
    tag_expressions: (0, "filter_length"),
    lawful_filters: (FILTERS, "filter_memory"),
    sql: (FILTERS, "filter_length, filter_memory"),
    heartbeats: (FILTERS, "filter_memory, max_held"),
    sql_heartbeats: (FILTERS, "filter_memory, max_held"),
    pops: (FILTERS * 9 / 8, "filter_memory, pops_under_way"),
    large_fields: (FILTERS, "filter_memory"),
    groups: (0, "groups"),
    commits: (0, "offsets"),
    locks: (0, "locks"),
    mutated: (0, "max_header"),
    connections: (0, "max_connections, max_held"),
    key_values: (Limits().key_values / MIB, "key_values"),
    sends: (StoreConfig().max_pending / MIB, "max_pending"),
    replies: (NETWORK.max_in_flight_bytes / MIB, "max_in_flight_bytes"),
    slow_readers: (4 * NETWORK.write_limit / MIB, "write_limit of each"),
    large_frames: (4 * 16, "a frame of each"),
    half_frames: (200, "max_held; these are 200 MB"),
}
#: Of as many connections as there are times so much, in MiB.
FRAMES: dict[Callable[[Dial, int], None], float] = {
    heartbeats: 10 * 0.75,
    sql_heartbeats: 10 * 0.75,
    connections: 500 / 64,
}


class Found(NamedTuple):
    """MiB: before, at the most, when its connections are gone, and what may be more at the most."""

    before: float
    most: float
    after: float
    allowed: float

    @property
    def is_well(self) -> bool:
        return self.most - self.before <= self.allowed + 64


def run(server: Server, attack: Callable[[Dial, int], None], times: int = 1) -> Found:
    """What one attack makes of the server that it is for."""
    address = server.nameserver if attack is key_values else server.broker
    question: dict[str, str] = {"topic": "TBW102", "queueId": "0"}
    host, port = address.rsplit(":", 1)
    pid = listener(address)
    before = rss(pid)
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # VmHWM begins anew
    links, threads = list[socket.socket](), set(threading.enumerate())

    def dial() -> socket.socket:
        links.append(socket.create_connection((host, int(port)), timeout=60))
        return links[-1]

    try:
        attack(dial, times)
    except OSError:
        pass  # it hung up on us
    code = 105 if attack is key_values else 30
    ask(address, code, question, timeout=120)  # it has read what came before
    for link in links:
        with suppress(OSError):  # it has ended it already
            link.shutdown(socket.SHUT_RDWR)  # a thread that reads it keeps a closed one open
    for reader in set(threading.enumerate()) - threads:
        reader.join(30)  # before its number is another link's: it would wait for that one
    for link in links:
        link.close()
    assert ask(address, code, question, timeout=120)[0] == 0
    return Found(before, rss(pid, "VmHWM"), rss(pid), ATTACKS[attack][0] + times * FRAMES.get(attack, 0))


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--times", type=int, default=1)
    names = {attack.__name__: attack for attack in ATTACKS}
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(names))
    asked = parser.parse_args()
    print("| attack | before | most | after | may be (limits + 64) |\n|---|---|---|---|---|")
    failed = False
    for name in asked.attacks or names:
        with tempfile.TemporaryDirectory() as place, our_server(Path(place)) as server:
            found = run(server, names[name], asked.times)
            failed |= not found.is_well
            limits = f"{found.before + found.allowed + 64:.0f} ({ATTACKS[names[name]][1]})"
            print(f"| {name} | {found.before:.0f} | {found.most:.0f} | {found.after:.0f} | {limits} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
