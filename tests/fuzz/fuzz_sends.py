"""Coverage-guided fuzzing of what the fast lane does in whole ways, beside the pure code that does the same.

    python tests/fuzz/fuzz_sends.py --runs 2000    bounded, from seeds it makes; exits non-zero on a difference

The first byte of an input chooses: a request's header and what a broker makes of it, the fields of a client's send, the
answers to it, the index entries and records of a cold read. ``fuzz_protocol.py`` compares the single functions. Needs
atheris and ``aiorocketmq-speedups``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "protocol")]


def targets() -> tuple[Callable[[bytes], None], ...]:
    from aiorocket.storage import agreement
    from aiorocket.storage.consume_queue import UNIT
    from aiorocket_protocol import MIN_RECORD, MSGPACK
    from aiorocket_protocol.fast import compiled
    from tests.broker.test_plain_send import same as broker_same
    from tests.remoting import test_post as posting

    cut_units, are_records = compiled("cut_units"), compiled("are_records")

    def broker(data: bytes) -> None:
        body = b"x" * (data[0] if data else 0)
        header = data[1:]
        words = (4 + len(header) + len(body)).to_bytes(4, "big") + (MSGPACK << 24 | len(header)).to_bytes(4, "big")
        broker_same([words + header + body])

    def client(data: bytes) -> None:
        try:
            fields = msgpack.unpackb(data, strict_map_key=False)
        except (ValueError, TypeError):  # TypeError: a list as a map's key
            return
        if type(fields) is list and len(fields) == 14:
            requests = [(tuple(fields), b"body", 3.0)] * 2
            fast = posting.outcome(requests, fast=True, taken=[])
            assert fast == posting.outcome(requests, fast=False, taken=[])

    def reads(data: bytes) -> None:
        count = 1 + data[0] % 8 if data else 1
        units, records = data[1 : 1 + 20 * count], data[1 + 20 * count :]
        if len(units) < 20 * count:
            return
        places, sizes, _ = (list(column) for column in zip(*UNIT.iter_unpack(units), strict=True))
        cut = cut_units(units, 1 << 62, 0, 1 << 62)
        plain = min(sizes) >= MIN_RECORD and agreement.plausible(places, sizes, 0, 1 << 62)
        assert (cut is not None) == plain
        if not plain or sum(sizes) != len(records):
            return
        queue: Any = SimpleNamespace(queue_id=1, topic="T", topic_bytes=b"T")
        offsets = range(2, 2 + count)
        belong = agreement.belong_each([records] * count, agreement.starts_of(sizes), places, sizes, queue, offsets)
        # What it does not take the pure way looks at; the other way round a wrong record would be served.
        assert belong or not are_records([records], units, count, 2, 1, b"T")

    def answers(data: bytes) -> None:
        frames = [(int(MSGPACK), header, b"body") for header in data.split(b"|end|")]
        assert posting.answered(frames, fast=True, kind=MSGPACK) == posting.answered(frames, fast=False, kind=MSGPACK)

    return broker, client, reads, answers


def seeds() -> list[bytes]:
    from aiorocket.storage.consume_queue import UNIT
    from aiorocket_protocol import MSGPACK, RemotingCommand, SendMessageResponseHeader, encode_head, pack_host
    from aiorocket_protocol.record_writer import encode_record
    from tests.broker.peer import send_header
    from tests.broker.test_plain_send import ID, frame

    headers = [send_header("T", queue, properties=text, batch=False, broker_name="b", unit_mode=False)
               for queue in (0, 1) for text in (ID, ID + "TAGS\x01A\x02")]  # fmt: skip
    found = []
    for header in headers:
        whole = frame(header, b"")
        found += [b"\0\5" + whole[8:], b"\1" + msgpack.packb(list(header))]
    host = pack_host("127.0.0.1:1")
    records = [encode_record(b"T", b"body", b"", 1, 2 + n, n * 200, 0, 0, 3, host, 4, host) for n in range(3)]
    units = b"".join(UNIT.pack(n * 200, len(record), 0) for n, record in enumerate(records))
    stored = SendMessageResponseHeader("0A" * 16, 1, 2, "0B" * 16, None, None, "DefaultRegion", "true")
    success = encode_head(RemotingCommand(0, 1, 1, header=stored), MSGPACK)[8:]
    found += [b"\3" + success, b"\3" + success + b"|end|" + success]
    return [*found, b"\2\2" + units + b"".join(records)]


def main(arguments: list[str]) -> None:
    import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

    if len(arguments) != 2 or arguments[0] != "--runs" or not arguments[1].isdigit():
        sys.exit("usage: fuzz_sends.py --runs N")
    with atheris.instrument_imports(include=["aiorocket.broker.handlers.send", "aiorocket.remoting.connection",
                                             "aiorocket.storage.agreement", "aiorocket_protocol"]):  # fmt: skip
        chosen = targets()
    directory = Path(tempfile.mkdtemp(prefix="fuzz-sends-"))
    for number, data in enumerate(seeds()):
        (directory / f"seed{number}").write_bytes(data)

    def one_input(data: bytes) -> None:
        if data:
            chosen[data[0] % len(chosen)](data[1:])

    atheris.Setup([sys.argv[0], f"-runs={arguments[1]}", "-timeout=60", "-rss_limit_mb=2048", "-max_len=2000",
                   f"-artifact_prefix={directory}/", str(directory)], one_input)  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
