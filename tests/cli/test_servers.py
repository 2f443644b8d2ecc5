"""nameserver, broker and standalone as processes: ready line, stop signals, and the errors of a wrong start."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from logging.handlers import TimedRotatingFileHandler
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from aiorocket.cli.broker import broker
from aiorocket.cli.server_options import SETTINGS
from aiorocket.cli.serving import LOG_JSON, LOG_LEVEL, _log_handler, spare_the_collector
from aiorocket.cli.several import _given
from aiorocket.cli.standalone import standalone
from aiorocket.cli.stopping import stop_signals

SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_name_server_says_where_it_is_and_stops_cleanly(
    aiorocket: Any, stop: Callable[..., Any], number: signal.Signals
) -> None:
    process, line = aiorocket.server("nameserver", "--port", "0")
    assert re.fullmatch(r"name server ready on 127\.0\.0\.1:[1-9]\d* \(in memory\)\n", line)
    assert stop(process, number) == (0, "", "")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_broker_registers_and_stops_cleanly(
    aiorocket: Any, stop: Callable[..., Any], ports: Callable[[str], list[int]], number: signal.Signals
) -> None:
    names, line = aiorocket.server("nameserver", "--port", "0")
    address = f"127.0.0.1:{ports(line)[0]}"
    broker, line = aiorocket.server(
        "broker", "--port", "0", "--nameserver", address, "--data", "b", "--flush", "async", "--name", "red"
    )
    assert re.fullmatch(r"broker red ready on 127\.0\.0\.1:[1-9]\d* \(data b, flush async\)\n", line)
    sent = aiorocket.run("produce", "t", "--nameserver", address, stdin=b"one\ntwo\n")
    assert sent.code == 0, sent
    assert stop(broker, number) == (0, "", "")
    assert stop(names, number) == (0, "", "")


@pytest.mark.parametrize("number", SIGNALS)
async def test_signals_at_once_are_one_wish(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """`timeout` signals the process and then its group: the second one broke off the end that the first had begun."""
    before, wishes = signal.getsignal(number), asyncio.Queue[None]()
    hard = (signal.SIG_DFL, signal.default_int_handler)
    with stop_signals(lambda: wishes.put_nowait(None)):
        signal.raise_signal(number)
        await wishes.get()
        assert signal.getsignal(number) not in hard
        signal.raise_signal(number)
        await asyncio.sleep(0)
        assert wishes.empty()
    monkeypatch.setattr("aiorocket.cli.stopping.ONE_WISH", 0)
    with stop_signals(lambda: wishes.put_nowait(None)):
        signal.raise_signal(number)
        await wishes.get()
        while signal.getsignal(number) not in hard:
            await asyncio.sleep(0)
    signal.signal(number, before)


def test_standalone_keeps_what_it_acknowledged(
    aiorocket: Any, stop: Callable[..., Any], ports: Callable[[str], list[int]]
) -> None:
    start = ("standalone", "--port", "0", "--broker-port", "0", "--data", "s")
    process, line = aiorocket.server(*start)
    assert re.fullmatch(
        r"standalone ready: name server 127\.0\.0\.1:\d+, broker broker-a 127\.0\.0\.1:\d+ \(data s, flush sync\)\n",
        line,
    )
    assert aiorocket.run("produce", "t", "--nameserver", f"127.0.0.1:{ports(line)[0]}", stdin=b"kept\n").code == 0
    assert stop(process) == (0, "", "")

    process, line = aiorocket.server(*start, "--metrics-port", "0", "--dashboard", "0")
    read = aiorocket.run("consume", "t", "--group", "g", "--nameserver", f"127.0.0.1:{ports(line)[0]}")
    assert (read.code, read.out) == (0, "kept\n"), read
    watched = re.search(
        r", metrics on (http://127\.0\.0\.1:\d+)/metrics, dashboard (http://127\.0\.0\.1:\d+/) \(read-only\)\n$", line
    )
    assert watched is not None, line
    with urlopen(f"{watched[2]}topics", timeout=140) as topics:
        assert b"/topic?topic=t" in topics.read()
    with urlopen(f"{watched[1]}/readyz", timeout=140) as ready:
        assert ready.read() == b"ready\n"
    until, said = time.monotonic() + 60, b""
    while b'aiorocket_broker_delivered_messages_total{group="g",topic="t"} 1.0' not in said:
        assert time.monotonic() < until, said
        with urlopen(f"{watched[1]}/metrics", timeout=140) as metrics:  # the totals are those of a second ago at most
            said = metrics.read()
    assert stop(process) == (0, "", "")


def test_standalone_takes_a_file_and_one_listener_administers_both(
    aiorocket: Any, stop: Callable[..., Any], ports: Callable[[str], list[int]]
) -> None:
    (aiorocket.directory / "s.toml").write_text(
        '[broker]\nname = "red"\nport = 0\nhost = "0.0.0.0"\nadvertise = "127.0.0.1"\ndata = "kept"\n'
        'admin_bind = "unix:admin.sock"\nauto_create_topics = false\n'
        'access_key = "me"\nsecret_key = "12345678"\nsecurity_token = "t"\n'  # of a broker by itself: left out here
        '[broker.store]\nflush = "async"\n'
    )
    process, line = aiorocket.server("standalone", "--port", "0", "--config", "s.toml")
    assert re.fullmatch(
        r"standalone ready: name server 127\.0\.0\.1:\d+, broker red 127\.0\.0\.1:\d+ \(data kept, flush async\)\n",
        line,
    )
    outside = f"127.0.0.1:{ports(line)[0]}"
    refused = aiorocket.run("topic", "create", "t", "--nameserver", outside)
    assert refused.code == 1 and "--admin-bind" in refused.err
    both = ("--nameserver", "unix:admin.sock", "--broker", "unix:admin.sock")
    made = aiorocket.run("topic", "create", "t", *both)
    assert made.code == 0, made
    sent = aiorocket.run("produce", "none", "--nameserver", outside, stdin=b"x\n")
    assert sent.code == 1 and "none" in sent.err, "what has no option is taken from the file too"
    assert stop(process)[:2] == (0, "")


@pytest.mark.parametrize(
    "options", [("--admin-token-file", "token"), ("--acl", "users.toml"), ("--admin-bind", "unix:admin.sock")]
)
def test_a_page_that_asks_as_an_administrator_needs_a_token(aiorocket: Any, options: tuple[str, ...]) -> None:
    for name, text in (
        ("token", "0123456789abcdef" * 4),
        ("users.toml", '[users.root]\nsecret = "0123456789abcdef"\nadmin = true\n'),
    ):
        (aiorocket.directory / name).write_text(text)
        (aiorocket.directory / name).chmod(0o600)
    result = aiorocket.run("standalone", "--port", "0", "--broker-port", "0", "--dashboard", "0", *options)
    assert result.code == 1 and "everybody on this machine could look: give --dashboard-token-file" in result.err


def test_a_page_that_asks_with_keys_needs_a_token(aiorocket: Any) -> None:
    (aiorocket.directory / "keys.json").write_text('{"accessKey": "root", "secretKey": "0123456789abcdef"}')
    result = aiorocket.run("dashboard", "--port", "0", "--credentials", "keys.json")
    assert result.code == 2 and "everybody on this machine could look: give --token-file" in result.err
    result = aiorocket.run("dashboard", "--port", "0", "--broker", "unix:admin.sock")
    assert result.code == 2 and "give --token-file" in result.err


@pytest.mark.parametrize(
    "command",
    [
        ("nameserver", "--port"),
        ("broker", "--port"),
        ("standalone", "--port"),
        ("standalone", "--port", "0", "--broker-port"),
    ],
)
def test_a_port_in_use_is_one_line_with_the_port(aiorocket: Any, command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = aiorocket.run(*command, str(port))
    assert result.code == 1
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert str(port) in result.err and "in use" in result.err


def test_a_data_directory_has_one_broker(aiorocket: Any, standalone: str) -> None:
    result = aiorocket.run("broker", "--port", "0", "--data", "store", "--name", "second", "--nameserver", standalone)
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    assert "store" in result.err and re.search("another|in use|lock", result.err)


@pytest.mark.parametrize("command", [("broker", "--port", "0"), ("standalone", "--port", "0", "--broker-port", "0")])
def test_a_store_cannot_lie_below_a_regular_file(aiorocket: Any, command: tuple[str, ...]) -> None:
    (aiorocket.directory / "file").write_text("not a directory")
    result = aiorocket.run(*command, "--data", "file/store")
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    assert "file" in result.err and "director" in result.err


def test_two_brokers_of_one_name_cannot_live_at_once(aiorocket: Any, standalone: str) -> None:
    result = aiorocket.run("broker", "--port", "0", "--data", "other", "--nameserver", standalone)
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    assert "broker-a" in result.err


def test_several_brokers_live_and_die_each_by_itself(
    aiorocket: Any, stop: Callable[..., Any], ports: Callable[[str], list[int]]
) -> None:
    start = ("standalone", "--port", "0", "--broker-port", "0", "--data", "s", "--flush", "async", "--brokers", "2")
    process, line = aiorocket.server(*start)
    assert re.fullmatch(
        r"standalone ready: name server 127\.0\.0\.1:\d+, brokers broker-1 127\.0\.0\.1:\d+, "
        r"broker-2 127\.0\.0\.1:\d+ \(data s, flush async\)\n",
        line,
    )
    address = f"127.0.0.1:{ports(line)[0]}"
    lines = b"".join(b"%d\n" % number for number in range(40))
    assert aiorocket.run("produce", "t", "--nameserver", address, stdin=lines).code == 0
    assert {each.name for each in (aiorocket.directory / "s").iterdir()} >= {"broker-1", "broker-2"}

    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if children.exists():  # Linux, built so
        first, second = children.read_text().split()
        os.kill(int(first), signal.SIGKILL)
        assert process.stderr is not None
        assert b"broker broker-1 ended with -9 and is started again in 1 s" in process.stderr.readline()
        assert b"broker broker-1 is ready again on " in process.stderr.readline()
        assert second in children.read_text().split()
    read = aiorocket.run("consume", "t", "--group", "g", "--nameserver", address)
    assert sorted(map(int, read.out.split())) == list(range(40))
    assert stop(process)[:2] == (0, "")

    wrong = aiorocket.run(*start[:-1], "1")
    assert wrong.code == 2 and "s holds the messages of 2 brokers" in wrong.err


def test_a_broker_has_workers_of_which_each_is_a_broker(
    aiorocket: Any, standalone: str, stop: Callable[..., Any]
) -> None:
    start = ("broker", "--port", "0", "--data", "w", "--flush", "async", "--nameserver", standalone, "--workers", "2")
    process, line = aiorocket.server(*start)
    assert re.fullmatch(
        r"broker ready: brokers broker-1 127\.0\.0\.1:\d+, broker-2 127\.0\.0\.1:\d+ \(data w, flush async\)\n", line
    )
    told = aiorocket.run("cluster", "list", "--json", "--nameserver", standalone).out
    assert '"broker-1"' in told and '"broker-2"' in told
    assert stop(process)[:2] == (0, "")
    wrong = aiorocket.run(*start[:-2])
    assert wrong.code == 2 and "start with --workers 2 or more" in wrong.err
    wrong = aiorocket.run(*start, "--acl", "access.toml")
    assert wrong.code == 2 and "--workers with --acl or TLS" in wrong.err


def test_the_log_is_json_and_as_loud_as_wanted(aiorocket: Any, stop: Callable[..., Any]) -> None:
    start = ("nameserver", "--port", "0", "--bind", "0.0.0.0", "--log-json")
    process, _ = aiorocket.server(*start)
    code, _, err = stop(process, signal.SIGTERM)
    (line,) = [json.loads(text) for text in err.splitlines()]
    assert code == 0 and list(line) == ["time", "level", "logger", "message"]
    assert (line["level"], line["logger"]) == ("warning", "aiorocket.access") and "0.0.0.0" in line["message"]
    process, _ = aiorocket.server(*start, "--log-level", "error")
    assert stop(process, signal.SIGTERM) == (0, "", "")


def test_brokers_of_their_own_processes_log_as_they_are_told() -> None:
    with standalone.make_context("standalone", ["--brokers", "2", "--log-json", "--log-level", "error"]) as told:
        given = _given(told)
    heard = broker.make_context("broker", given)
    assert [(each.meta[LOG_LEVEL], each.meta[LOG_JSON]) for each in (told, heard)] == [("error", True)] * 2


def test_brokers_of_their_own_processes_take_the_file(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text('[broker]\nretry_max_times = 3\nport = 10955\n[broker.store]\nflush = "async"\n')
    with standalone.make_context("standalone", ["--brokers", "2", "--config", str(file)]) as told:
        given = _given(told)
        assert (told.params["port"], told.params["broker_port"]) == (9876, 10955)
    heard = broker.make_context("broker", given)
    assert heard.params["flush"] == "async" and heard.meta[SETTINGS].retry_max_times == 3


def test_the_log_goes_to_a_file_that_begins_anew(aiorocket: Any, stop: Callable[..., Any]) -> None:
    start = ("nameserver", "--port", "0", "--bind", "0.0.0.0", "--log-json", "--log-file", "n.log")
    process, _ = aiorocket.server(*start)
    assert stop(process)[::2] == (0, ""), "nothing is left for standard error"
    assert [json.loads(line)["level"] for line in (aiorocket.directory / "n.log").read_text().splitlines()] == [
        "warning"
    ]
    for rotate in ("1k", "1D"):
        process, _ = aiorocket.server(*start, "--log-rotate", rotate, "--log-keep", "1")
        assert stop(process)[::2] == (0, "")
    assert len((aiorocket.directory / "n.log").read_text().splitlines()) == 3
    nowhere = aiorocket.run("nameserver", "--port", "0", "--log-file", "none/n.log")
    assert nowhere.code == 1 and "none/n.log" in nowhere.err and len(nowhere.err.splitlines()) == 1
    wrong = aiorocket.run("nameserver", "--log-file", "n.log", "--log-rotate", "100")
    assert wrong.code == 2 and "100M" in wrong.err


@pytest.mark.parametrize(("rotate", "files"), [("1k", 3), ("1D", 1), (None, 1)])
def test_a_log_file_is_rotated_by_size_or_age(tmp_path: Path, rotate: str | None, files: int) -> None:
    path = tmp_path / "b.log"
    arguments = ["--log-file", str(path), "--log-keep", "2", *(() if rotate is None else ("--log-rotate", rotate))]
    with broker.make_context("broker", arguments):
        handler = _log_handler()
    try:
        for _ in range(30):
            handler.emit(logging.makeLogRecord({"msg": "x" * 99}))
    finally:
        handler.close()
    assert len(list(tmp_path.iterdir())) == files
    if isinstance(handler, TimedRotatingFileHandler):
        assert handler.computeRollover(0) == 86_400 and handler.backupCount == 2


def test_brokers_of_their_own_processes_have_files_of_their_own() -> None:
    told = standalone.make_context("standalone", ["--brokers", "2", "--log-file", "m.log", "--log-rotate", "1G"])
    with told:
        given = _given(told)
    assert "--log-file" not in given and given[2:6] == ["--log-rotate", "1G", "--log-keep", "10"]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="its collector looks at what is old piece by piece")
def test_the_collector_looks_at_little_of_what_is_new_at_once() -> None:
    """A look at a million containers, which 200,000 pulls that waited had brought, held the loop for 280 ms."""
    threshold, looks = gc.get_threshold(), list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] < 2:
            looks.append(sum(len(gc.get_objects(generation=one)) for one in range(info["generation"] + 1)))

    try:
        spare_the_collector()
        gc.callbacks.append(note)
        kept: list[list[int]] = [[] for _ in range(200_000)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*threshold)
    assert len(kept) == 200_000 and len(looks) >= 15 and max(looks) <= 20_000 + 100
