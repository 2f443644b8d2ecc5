"""What a measurement says of itself: scenarios, checks, verdicts, comparisons, the page."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import struct
import sysconfig
import time
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiorocket import Admin, ClientConfig
from aiorocket.broker import Broker
from aiorocket.config import BrokerConfig
from aiorocket.errors import ConfigError, RocketError
from aiorocket.load import Scenario, compare, html, run, verdict
from aiorocket.load.machine import interpreter
from aiorocket.load.run import _brokers, _checked, _plain
from aiorocket.load.worker import _Worker, mark, packed
from aiorocket.runtime.env import real_env
from aiorocket_protocol import MessageQueue

# ---- the machine


@pytest.mark.parametrize(
    ("record", "built"),
    [
        ({"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'", "PGO_PROF_USE_FLAG": "-fprofile-use"}, (True, True)),
        ({"CONFIG_ARGS": "'--enable-shared'", "PGO_PROF_USE_FLAG": "-fprofile-use"}, (False, False)),  # pyenv's
        ({"CONFIG_ARGS": "", "PGO_PROF_USE_FLAG": "-fprofile-use", "PY_CFLAGS_NODIST": "-O3 -fprofile-use"},
         (True, False)),  # make profile-opt
        ({"CONFIG_ARGS": "'--enable-shared'", "PGO_PROF_USE_FLAG": "", "PY_CFLAGS_NODIST": "-O2"}, (None, None)),
        ({"CONFIG_ARGS": "'--with-lto'", "PGO_PROF_USE_FLAG": ""}, (None, True)),  # conda's
        ({}, (None, None)),  # Windows
    ],
    ids=["python.org", "pyenv", "make", "debian", "conda", "windows"],
)  # fmt: skip
def test_how_an_interpreter_was_built_is_never_guessed(
    record: dict[str, str], built: tuple[bool | None, bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", record.get)
    found = interpreter()
    assert (found["pgo"], found["lto"]) == built


# ---- scenarios


def test_a_scenario_is_read_and_options_win() -> None:
    scenario = Scenario.from_toml("rate = 1000\nqueues = 16\norderly = true\n", queues=4)
    assert (scenario.rate, scenario.queues, scenario.orderly, scenario.batch) == (1000, 4, True, 1)
    assert scenario.topic_names() == ["bench-0"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rats = 1", "rats is no setting of a scenario; there are topic"),
        ("rate = 'x'", "rate='x': float is needed"),
        ("queues = true", "queues=True: int is needed"),
        ("size = 5", "size=5: at least 24 is needed"),
        ("seconds = 0", "seconds=0: at least 0.1"),
        ("producers = 0\nconsumers = 0", "nothing to do"),
        ("size = 4000000\nbatch = 2", "more than a broker takes"),
        ("rate = nan", "a finite number"),
        ("flush = 'os'", "flush='os': sync or async"),
        ("=", "not TOML"),
    ],
)
def test_what_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        Scenario.from_toml(text)


# ---- verdicts


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"wanted": 1000, "reached": 999, "cpu": 0.3, "lag_ms": 1, "machine": 0.5}, "none"),
        ({"wanted": 1000, "reached": 700, "cpu": 0.95, "lag_ms": 5, "machine": 0.6}, "load generator"),
        ({"wanted": 1000, "reached": 700, "cpu": 0.6, "lag_ms": 50, "machine": 0.6}, "load generator"),
        ({"wanted": 0, "reached": 700, "cpu": 0.99, "lag_ms": 5, "machine": None}, "load generator"),
        ({"wanted": 1000, "reached": 700, "cpu": 0.3, "lag_ms": 2, "machine": 0.99}, "machine"),
        ({"wanted": 1000, "reached": 700, "cpu": 0.1, "lag_ms": 50, "machine": None}, "machine"),
        ({"wanted": 1000, "reached": 700, "cpu": 0.3, "lag_ms": 2, "machine": 0.5}, "broker"),
        ({"wanted": 0, "reached": 700, "cpu": 0.3, "lag_ms": 2, "machine": 0.5}, "broker"),
    ],
)
def test_who_set_the_limit(given: Any, limit: str) -> None:
    found = verdict(processes=1, **given)
    assert found.limit == limit and found.why


# ---- latencies


class Stalls:
    """A producer whose first send takes half a second."""

    stalled = False

    async def send(self, *_args: Any, **_options: Any) -> None:
        if not self.stalled:
            self.stalled = True
            await asyncio.sleep(0.5)


async def test_what_waits_behind_a_stall_is_late_from_when_it_was_due() -> None:
    """An open loop omits nothing: the hundred sends that the stall held up count with their waiting, although each by
    itself took no time."""
    scenario = dataclasses.asdict(Scenario(rate=200, seconds=0.6, warmup=0, producers=1, in_flight=1))
    config = {"tls": False, "nameservers": ("127.0.0.1:1",)}
    worker = _Worker({"scenario": scenario, "config": config, "number": 0, "brokers": [], "run": "0"})
    worker.start = worker.measured_from = time.perf_counter_ns()
    worker.measured_to = worker.start + 600_000_000
    producer: Any = Stalls()
    await worker.produce(producer, 0)
    assert worker.acknowledged == worker.sends.get_total_count() == 120
    from_due, from_call = (each.get_value_at_percentile(60) for each in (worker.sends, worker.services))
    assert from_due > 150_000 > from_call
    assert worker.behind > 400_000_000


async def test_what_goes_out_before_it_is_due_counts_from_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer may end early; what the broker took is no less for that."""
    scenario = dataclasses.asdict(Scenario(rate=1, seconds=10, warmup=0, producers=1, in_flight=1))
    config = {"tls": False, "nameservers": ("127.0.0.1:1",)}
    worker = _Worker({"scenario": scenario, "config": config, "number": 0, "brokers": [], "run": "0"})
    worker.start = worker.measured_from = time.perf_counter_ns()
    worker.measured_to = worker.start + 10_000_000_000
    sleep = asyncio.sleep

    class Takes:
        async def send(self, *_args: Any, **_options: Any) -> None:
            await sleep(0.02)

    monkeypatch.setattr(asyncio, "sleep", lambda _seconds: sleep(0))
    producer: Any = Takes()
    await worker.produce(producer, 0)
    assert worker.acknowledged == 10 and worker.sends.get_min_value() > 10_000


# ---- processes


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_processes_have_equal_shares_of_all_that_there_is(processes: int) -> None:
    """One producer and one consumer in two processes have one each."""
    scenario = dataclasses.asdict(Scenario(producers=1, consumers=3, groups=2, idle=4, processes=processes))
    config = {"tls": False, "nameservers": ("127.0.0.1:1",)}
    shares: list[list[int]] = []
    for number in range(processes):
        worker = _Worker({"scenario": scenario, "config": config, "number": number, "brokers": [], "run": "0"})
        shares.append([*worker.mine(1, 0), *worker.mine(6, 1), *worker.mine(4, 1 + 6)])
    assert sorted(chain(*shares)) == sorted([*range(1), *range(6), *range(4)])
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


async def test_the_grain_of_timers_is_in_no_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops count milliseconds and round up; an open loop does not count that as the broker's."""
    now, sleep = 0, asyncio.sleep

    async def late(seconds: float) -> None:
        nonlocal now
        now += round(seconds * 1e9)
        now += -now % 1_000_000
        await sleep(0)

    class Takes:
        async def send(self, *_args: Any, **_options: Any) -> None:
            nonlocal now
            now += 1_000

    scenario = dataclasses.asdict(Scenario(rate=300, seconds=1, warmup=0, producers=1, in_flight=1))
    config = {"tls": False, "nameservers": ("127.0.0.1:1",)}
    worker = _Worker({"scenario": scenario, "config": config, "number": 0, "brokers": [], "run": "0"})
    worker.measured_to = 1_000_000_000
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", late)
    producer: Any = Takes()
    await worker.produce(producer, 0)
    assert worker.acknowledged == 300 and worker.sends.get_max_value() < 10


# ---- counts


def one(sent: int, came: list[int], **changes: Any) -> dict[str, Any]:
    """What a process says that acknowledged messages 0 to ``sent`` of producer 7, and got ``came``."""
    sent_bits, came_bits = bytearray(), bytearray()
    for number in range(sent):
        mark(sent_bits, number)
    repeated = sum(mark(came_bits, number) for number in came)
    return {"sent_bits": {"7": packed(sent_bits)} if sent else {}, "came_bits": {"0/7": packed(came_bits)},
            "duplicates": repeated, "out_of_order": 0, "received": len(came), **changes}  # fmt: skip


@pytest.mark.parametrize(
    ("results", "lost", "duplicates"),
    [
        ([one(10, list(range(10)))], 0, 0),
        ([one(10, [0, 1, 2, 3]), one(0, [4, 5, 6, 7, 8, 9])], 0, 0),
        ([one(10, [0, 1, 2]), one(0, [4, 5, 6, 7, 8, 9])], 1, 0),
        ([one(10, [*range(10), 3, 3])], 0, 2),
        ([one(10, list(range(10))), one(0, [2, 5])], 0, 2),
    ],
    ids=["all", "in two processes", "one lost", "again", "again in another process"],
)
def test_what_is_lost_or_comes_twice_is_counted(results: list[dict[str, Any]], lost: int, duplicates: int) -> None:
    found = _checked(Scenario(), results)
    assert (found["acknowledged"], found["lost"], found["duplicates"]) == (10, lost, duplicates)


def test_what_comes_twice_or_out_of_order_is_seen_when_it_comes() -> None:
    """By the offsets of a queue, and of each group by itself; what another run sent is not counted."""
    scenario = dataclasses.asdict(Scenario(orderly=True, groups=2))
    config = {"tls": False, "nameservers": ("127.0.0.1:1",)}
    worker = _Worker({"scenario": scenario, "config": config, "number": 0, "brokers": [], "run": "0f"})

    def take(group: int, number: int, *, queue_id: int = 0, run: int = 0xF) -> None:
        body = struct.pack(">QQQ", run << 32 | 3, number, 0)
        message: Any = SimpleNamespace(
            body=body, queue=MessageQueue("bench-0", "b", queue_id), queue_offset=number >> queue_id
        )
        worker.take(group, message)

    for number in (0, 1, 4, 3, 5):
        take(0, number)
    assert (worker.received, worker.out_of_order, worker.duplicates) == (5, 1, 0)
    take(0, 4)
    take(0, 2, queue_id=1)
    take(1, 0)
    take(1, 1)
    take(1, 6, run=0xE)
    assert (worker.received, worker.out_of_order, worker.duplicates) == (9, 1, 1)


async def test_what_came_twice_does_not_pass_for_what_did_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumers would be stopped, and messages that were on their way called lost."""
    monkeypatch.setattr(run, "_LOOK", 0.0)
    looks = [one(10, [0, 1, 2, 3, 4, 5, 6, 7, 7, 7]), one(10, [0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 9, 8])]
    asked: list[dict[str, Any]] = []

    class Child:
        acknowledged, received = 10, 0

        def tell(self, **what: object) -> None:
            asked.append(what)

        async def until(self, word: str) -> dict[str, Any]:
            if word == "bits":
                return {"bits": looks.pop(0)}
            self.received = looks[0]["received"]
            return {}

    child: Any = Child()
    await run._drained(Scenario(), [child], lambda: None)
    assert asked == [{"look": True}, {"bits": True}] * 2 and not looks


def test_processes_reach_what_the_command_reaches() -> None:
    config = ClientConfig(
        nameservers=("mq:9876",), access_key="a", secret_key="b", security_token="c", namespace="shop",
        address_map={"10.0.0.7": "127.0.0.1"},
    )  # fmt: skip
    assert ClientConfig(**json.loads(json.dumps(_plain(config))) | {"nameservers": config.nameservers}) == config

    async def mapped(address: str) -> str:
        return address

    with pytest.raises(ConfigError, match="address_map"):
        _plain(ClientConfig(address_map=mapped))


def test_every_group_must_get_every_message() -> None:
    assert _checked(Scenario(groups=2), [one(10, list(range(10)))])["lost"] == 10
    assert _checked(Scenario(consumers=0), [one(10, [])])["lost"] == 0


# ---- comparisons


def result(*rates: float) -> dict[str, Any]:
    return {"runs": [{"figures": {"acknowledged_per_s": rate}} for rate in rates]}


def test_a_difference_needs_runs_that_show_it() -> None:
    (found,) = compare(result(100, 101, 99, 100), result(120, 121, 119, 120))
    assert found.word == "better" and found.low < 20 < found.high and found.low > 18
    (found,) = compare(result(100, 140, 60), result(110, 150, 70))
    assert found.word == "alike" and found.low < 0 < found.high
    (found,) = compare(result(100), result(50))
    assert (found.word, found.low, found.high) == ("one run", -50, -50)


def test_the_interval_is_welchs() -> None:
    (found,) = compare(result(1, 2, 3, 4, 5), result(2, 4, 6, 8, 10))
    assert found.low == pytest.approx(3 - 2.5714 * 1.5811, abs=0.4) and found.high == pytest.approx(6 - found.low)


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a result of aiorocket bench"):
        compare({"runs": [{}]}, result(1))


# ---- the page


def test_the_page_shows_whole_seconds_and_names_each_once() -> None:
    run = {
        "figures": {}, "verdict": {"limit": "none", "why": ""}, "percentiles": {}, "brokers": [],
        "checks": dict.fromkeys(("lost", "duplicates", "out_of_order", "failed_sends"), 0),
        "seconds": [[1, 7, 7, 1], *([second, 500, 500, 1000] for second in range(2, 6)), [6, 7, 7, 1]],
    }  # fmt: skip
    page = html({"runs": [run], "scenario": {"warmup": 1.5, "seconds": 4.6, "flush": ""}, "machine": {}})
    assert "Brokers" not in page, "who may not ask them has no facts of them"
    assert "flush ," not in page and re.findall(r">(\d+) s<", page) == [*"2345"] * 2


def test_the_plot_of_several_groups_says_what_the_figure_says() -> None:
    run = {
        "figures": {"received_per_s": 500.0}, "verdict": {"limit": "none", "why": ""}, "percentiles": {}, "brokers": [],
        "checks": {"received": 4000, "lost": 0, "duplicates": 0, "out_of_order": 0, "failed_sends": 0},
        "seconds": [[second, 500, 1000, 1000] for second in range(4)],
    }  # fmt: skip
    page = html({"runs": [run, run], "scenario": {"groups": 2, "orderly": False, "rate": 500.0}, "machine": {}})
    acknowledged, received = re.findall(r'<polyline points="([^"]+)"', page)[:2]
    assert acknowledged == received and "received by a group" in page
    assert "orderly no, rate 500<" in page and "run 1: received 4000" in page


def test_the_page_is_static_and_escapes() -> None:
    run = {
        "figures": {"acknowledged_per_s": 1234.5, "send_p99_ms": None},
        "checks": {"acknowledged": 10, "lost": 0, "duplicates": 0, "out_of_order": 0, "failed_sends": 0, "errors": {}},
        "verdict": {"limit": "none", "why": "<script>"},
        "percentiles": {"send": [[0, 0.1], [50, 1], [99.99, 20], [100, 21]], "lag": []},
        "seconds": [[0, 10, 9, 1500], [1, 12, 12, 900]],
        "brokers": [{"broker": "<i>", "version": "V5", "flush": None}],
    }
    page = html({"runs": [run], "scenario": {"topic": "<b>"}, "machine": {"processor": "&"}})
    assert "<script" not in page and "&lt;b&gt;" in page and "&lt;i&gt;" in page and page.count("<svg") == 3
    assert "1,234" in page and "default-src 'none'" in page
    assert not re.search(r"https?://|src=|href=", page)


async def test_who_may_not_ask_brokers_measures_them_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "access.toml").write_text('[users.shop]\nsecret = "shop-s3cret"\ndefault_topic = "PUB|SUB"\n')
    config = ClientConfig(nameservers=("127.0.0.1:1",), access_key="shop", secret_key="shop-s3cret")
    env = real_env()
    broker = Broker(env, BrokerConfig(port=0, acl=str(tmp_path / "access.toml")))
    await broker.start()
    try:
        async with Admin(config=config, brokers=[broker.address]) as admin:
            assert await _brokers(admin, "") == []
            with pytest.raises(RocketError, match="nobody knows whether brokers flush sync"):
                await _brokers(admin, "sync")
    finally:
        await broker.close()
        await env.disk.close()
