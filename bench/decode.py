"""Decoding stored records into the columns of Spark's source, beside the loop that one would write first.

    python -m bench.decode               fast and naive in turn, medians of 15 rounds (half a minute)
    python -m bench.decode --check       exit with 1 below 1.5 million records per second and core, all columns
    python -m bench.decode --smoke       one round of few records, nothing recorded: does it run, are the rows equal

Records of about 350 bytes: bodies of 100 to 200, five properties, IPv4 hosts; 10,000 a call. Rates are records per
second of this process's CPU time, which neighbours disturb less than the clock's; the clock's stand beside them. Before
anything is timed, the naive rows are compared with the batch, value by value.
"""

from __future__ import annotations

import argparse
import gc
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from aiorocket.spark.columns import PROPERTY_COLUMNS, ROW_COLUMNS
from aiorocket.spark.decode import decode
from aiorocket_protocol import encode_properties, encode_record, pack_host
from bench.machine import facts, version
from bench.processes import ROOT
from bench.report import append

BROKER = "broker-a"
PER_CALL = 10_000
FLOOR = 1_500_000
CORE = ("queueId", "queueOffset", "topic", "body", "bornTimestamp", "storeTimestamp")
WITHOUT_PROPERTIES = tuple(name for name in ROW_COLUMNS if name not in PROPERTY_COLUMNS)
HEAD = struct.Struct(">iiiiiqqiq4siq4siiqi")


#: Decodes a chunk and says how many records it held.
Way = Callable[[bytes], int]


class Rate(NamedTuple):
    """Records per second."""

    cpu: float
    clock: float


def records(count: int) -> list[bytes]:
    """What one queue of a busy topic holds; the same bytes in every run."""
    draw, place, made = random.Random(5), 7 << 30, []
    for number in range(count):
        properties = {
            "KEYS": f"order-{number:08d}",
            "UNIQ_KEY": f"{draw.getrandbits(128):032X}",
            "CLUSTER": "DefaultCluster",
            "WAIT": "true",
            "TAGS": f"tag{number % 7}",
        }
        record = encode_record(
            topic=b"orders-eu", body=draw.randbytes(draw.randint(100, 200)), properties=encode_properties(properties),
            queue_id=1, queue_offset=number, physical_offset=place, flag=0, sys_flag=0,
            born_timestamp=1_760_000_000_000 + number, born_host=pack_host(f"10.0.0.{number % 4}:50001"),
            store_timestamp=1_760_000_000_001 + number, store_host=pack_host("10.0.1.1:10911"),
        )  # fmt: skip
        made.append(record)
        place += len(record)
    return made


def naive_rows(data: bytes) -> Iterator[tuple[Any, ...]]:
    """A tuple of all columns per record: one ``unpack``, a dict of properties, two datetimes. IPv4 hosts, magic V1."""
    at = 0
    while at < len(data):
        (
            size, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born, born_ip, born_port, stored,
            store_ip, store_port, reconsume_times, prepared, body_length,
        ) = HEAD.unpack_from(data, at)  # fmt: skip
        topic_at = at + 88 + body_length
        topic_end = topic_at + 1 + data[topic_at]
        properties = {}
        for pair in data[topic_end + 2 : at + size].decode().split("\x02"):
            if pair:
                name, value = pair.split("\x01", 1)
                properties[name] = value
        offset_msg_id = data[at + 64 : at + 72].hex().upper() + f"{physical_offset:016X}"
        yield (
            data[topic_at + 1 : topic_end].decode(), BROKER, queue_id, queue_offset,
            properties.get("UNIQ_KEY", offset_msg_id), offset_msg_id, properties.get("KEYS"), properties.get("TAGS"),
            data[at + 88 : topic_at], properties, datetime.fromtimestamp(born / 1000, UTC),
            datetime.fromtimestamp(stored / 1000, UTC), "{}.{}.{}.{}:{}".format(*born_ip, born_port),
            "{}.{}.{}.{}:{}".format(*store_ip, store_port), reconsume_times, sys_flag, flag, crc, physical_offset,
            prepared,
        )  # fmt: skip
        at += size


def check_equal(data: bytes) -> None:
    """Both ways see the same rows."""
    fast = decode(data, BROKER, ROW_COLUMNS, verify_crc=True).to_pylist()
    for row, expected in zip(naive_rows(data), fast, strict=True):
        found = dict(zip(ROW_COLUMNS, row, strict=True))
        found["properties"] = list(found["properties"].items())
        if found != expected:
            sys.exit(f"bench: fast and naive differ:\n{expected}\n{found}")


def timed(work: Way, data: bytes, calls: int) -> Rate:
    gc.collect()
    cpu, clock = time.process_time(), time.perf_counter()
    count = sum(work(data) for _ in range(calls))
    return Rate(count / (time.process_time() - cpu), count / (time.perf_counter() - clock))


def fast(names: tuple[str, ...], **options: Any) -> Way:
    return lambda data: int(decode(data, BROKER, names, **options).num_rows)


def measure(rounds: int, per_call: int, calls: int) -> dict[str, dict[str, float]]:
    """Median rates of each way, one after the other in every round."""
    made = records(per_call)
    check_equal(b"".join(made))
    ways: dict[str, tuple[Way, int, int]] = {
        "all columns": (fast(ROW_COLUMNS), per_call, calls),
        "naive: tuples": (lambda data: sum(1 for _ in naive_rows(data)), per_call, 1),
        "all columns, CRC verified": (fast(ROW_COLUMNS, verify_crc=True), per_call, calls),
        "all columns, 1,000 a call": (fast(ROW_COLUMNS), 1000, calls * 10),
        "without properties, keys, tags, msgId": (fast(WITHOUT_PROPERTIES), per_call, calls),
        "six columns: queue, offset, topic, body, times": (fast(CORE), per_call, calls),
        "body": (fast(("body",)), per_call, calls),
    }
    rates: dict[str, list[Rate]] = {name: [] for name in ways}
    for each in range(rounds + 1):
        for name, (work, count, times) in ways.items():
            # Joined anew, as a reader joins what it pulled; the allocator sees buffers of this size come and go.
            rate = timed(work, b"".join(made[:count]), times)
            if each:  # the first round warms up
                rates[name].append(rate)
    results: dict[str, dict[str, float]] = {
        name: {
            "per_cpu_second": round(median(rate.cpu for rate in found)),
            "best_per_cpu_second": round(max(rate.cpu for rate in found)),
            "per_second": round(median(rate.clock for rate in found)),
        }
        for name, found in rates.items()
    }
    results["record"] = {"bytes": round(sum(map(len, made)) / per_call, 1)}
    return results


def show(results: dict[str, dict[str, float]], console: Console) -> None:
    size = results["record"]["bytes"]
    table = Table(title=f"decoding records of {size} bytes, millions per second and core", title_justify="left")
    for column in ("columns", "median (CPU)", "best (CPU)", "median (clock)", "MB/s (CPU)", "times naive"):
        table.add_column(column, justify="left" if column == "columns" else "right")
    naive = results["naive: tuples"]["per_cpu_second"]
    for name, rates in results.items():
        if name != "record":
            rate, best, clock = rates["per_cpu_second"], rates["best_per_cpu_second"], rates["per_second"]
            table.add_row(
                name, f"{rate / 1e6:.2f}", f"{best / 1e6:.2f}", f"{clock / 1e6:.2f}", f"{rate * size / 1e6:,.0f}",
                f"{rate / naive:.1f}",
            )  # fmt: skip
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--smoke", action="store_true", help="one round of few records, nothing recorded")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the floor is missed")
    parser.add_argument("--note", default="", help="recorded with the run, e.g. what else used the machine")
    options = parser.parse_args()
    console = Console()
    if options.smoke:
        measure(1, 200, 1)
        console.print("smoke: every way of decoding ran, fast and naive rows are equal")
        return
    machine = facts(tempfile.gettempdir())
    machine["packages"] = {name: version(name) for name in ("numpy", "pyarrow")}
    results = measure(options.rounds, PER_CALL, 20)
    show(results, console)
    reached = results["all columns"]["per_cpu_second"]
    met = reached >= FLOOR
    console.print(f"all columns: {reached:,.0f}/s, floor {FLOOR:,}/s: {'met' if met else 'missed'}", highlight=False)
    run = {
        "machine": machine,
        "note": options.note,
        "results": {"decode": results},
        "floors": [{"name": "decode", "value": reached, "limit": FLOOR, "above": True, "unit": "1/s", "met": met}],
    }
    console.print(f"recorded in {append(run).relative_to(ROOT)}", highlight=False)
    if options.check and not met:
        sys.exit(1)


if __name__ == "__main__":
    main()
