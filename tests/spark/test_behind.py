"""How far archives, tables and checkpoints are behind: offsets of files against those of a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aiorocket.cli.main import cli
from aiorocket.errors import TopicNotFoundError, UsageError
from aiorocket.model import Queue
from aiorocket.spark.offsets import format_offsets
from aiorocket.spark.steps.archives.archive_run import Run
from aiorocket.spark.steps.behind import Behind, behind, reached
from aiorocket.spark.steps.tables.table import Table
from tests.spark import lakes
from tests.spark.producing import create_topic, send


def checkpoint(path: Path, *batches: str, done: int) -> Path:
    """As Spark leaves one: ``batches`` are the offset lines of each, ``done`` of them have their commit."""
    for folder in ("offsets", "commits"):
        (path / folder).mkdir(parents=True)
    for number, lines in enumerate(batches):
        (path / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{lines}')
        (path / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < done:
            (path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return path


def test_where_a_checkpoint_an_archive_and_a_table_are(tmp_path: Path) -> None:
    q0, q1 = Queue("orders", "broker-a", 0), Queue("orders", "broker-a", 1)
    lines = [format_offsets({q0: n, q1: 2 * n}) for n in (3, 5, 9)]
    # A query of two sources of ours and one of another kind: the least of a queue counts.
    joined = "\n".join([lines[1], '{"logOffset":7}', format_offsets({q0: 4}), "-"])
    path = checkpoint(tmp_path / "c", lines[0], joined, lines[2], done=2)
    assert reached(str(path)) == {q0: 4, q1: 10}
    assert reached(str(checkpoint(tmp_path / "begun", lines[0], done=0))) == {}
    lakes.add(lakes.make(tmp_path / "lake"), {q0: range(2, 7)})
    assert reached(str(tmp_path / "lake")) == {q0: 7}
    Table.open(str(tmp_path / "table"), "x", {}).write({}, {q1: (0, 8)}, 8)
    assert reached(str(tmp_path / "table")) == {q1: 8}
    with pytest.raises(UsageError, match="reads no RocketMQ"):
        reached(str(checkpoint(tmp_path / "kafka", '{"orders":{"0":5}}', done=1)))
    with pytest.raises(UsageError, match="neither an archive nor a table of a step nor a checkpoint"):
        reached(str(tmp_path / "nothing"))
    lakes.make(tmp_path / "pipeline" / "archive")
    with pytest.raises(UsageError, match=r"there is one at .*/pipeline/archive"):
        reached(str(tmp_path / "pipeline"))


def lag(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["lake", "lag", *map(str, arguments)])


def test_the_command_says_what_is_waiting_and_what_is_lost(nameserver: str, topic: str, tmp_path: Path) -> None:
    send(nameserver, topic, [str(n) for n in range(9)], queues=2)  # five in the first
    q0, q1 = Queue(topic, "broker-a", 0), Queue(topic, "broker-a", 1)
    path = checkpoint(tmp_path / "c", format_offsets({q0: 2}), done=1)
    assert behind(nameserver, str(path)) == [Behind(q0, 2, 0, 5), Behind(q1, None, 0, 4)]
    server = ("--nameserver", nameserver)
    shown = lag(path, *server, "--json")
    found = json.loads(shown.stdout)
    assert (shown.exit_code, found["lag"], found["lost"], [each["lag"] for each in found["queues"]]) == (
        0,
        7,
        0,
        [3, 4],
    )
    many = lag(path, *server, "--most", 6, "--html", tmp_path / "lag.html")
    page = (tmp_path / "lag.html").read_text()
    assert '<p class="proof bad">TOO MANY: 7 messages' in page and "never read" in page
    assert (many.exit_code, "TOO MANY: 7 messages behind, and --most says 6\n" in many.stdout) == (1, True)
    many = lag(path, *server, "--most", 6, "--json")
    assert (many.exit_code, json.loads(many.stdout)["lag"], many.stderr[:9]) == (1, 7, "TOO MANY:")
    assert lag(path, *server, "--most", 7).exit_code == 0
    told = lag(path, *server)
    assert "7 messages behind in 2 queues" in told.stdout and "never read" in told.stdout
    group = lag("--group", "readers", "--topic", topic, *server)
    assert (group.exit_code, "9 messages behind" in group.stdout) == (0, True), group.output
    # Nor is a group that nobody knows one that read nothing up to offset 0.
    assert "NEVER READ: group readers has stored no offset" in group.stdout and "never read" in group.stdout
    fresh = checkpoint(tmp_path / "fresh", done=0)
    assert "say the topic" in lag(fresh, *server).stderr
    assert json.loads(lag(fresh, *server, "--topic", topic, "--json").stdout)["lag"] == 9
    assert lag().exit_code == 2
    assert "are two: give one of them" in lag(path, "--group", "readers").stderr


def test_queues_that_the_route_no_longer_lists_count_too(nameserver: str, topic: str, tmp_path: Path) -> None:
    """What was not read of them is behind all the same, and a broker that is away is not a lag of nothing."""
    send(nameserver, topic, [str(n) for n in range(9)], queues=2)
    create_topic(nameserver, topic, queues=1)
    q0, q1, away = (Queue(topic, *rest) for rest in (("broker-a", 0), ("broker-a", 1), ("broker-z", 0)))
    path = checkpoint(tmp_path / "c", format_offsets({q0: 2, q1: 1, away: 7}), done=1)
    found = behind(nameserver, str(path))
    assert found == [Behind(q0, 2, 0, 5), Behind(q1, 1, 0, 4), Behind(away, 7, None, None)]
    assert [(each.lag, each.lost) for each in found] == [(3, 0), (3, 0), (0, 0)]
    assert behind(nameserver, str(path), topic) == found
    told = lag(path, "--nameserver", nameserver)
    assert (told.exit_code, "6 messages behind in 3 queues" in told.stdout) == (0, True), told.output
    assert "NOT THERE: 1 queue that was read; " in told.stdout and "not there" in told.stdout
    shown = json.loads(lag(path, "--nameserver", nameserver, "--json").stdout)
    assert shown["queues"][2] | {"topic": ""} == {
        "topic": "", "broker_name": "broker-z", "queue_id": 0, "reached": 7, "begin": None, "end": None, "lag": 0,
        "lost": 0, "ahead": 0,
    }  # fmt: skip


def test_a_topic_that_is_gone_is_told_with_what_was_read(nameserver: str, topic: str, tmp_path: Path) -> None:
    """Not that brokers make topics: it was there, and its rows are."""
    read = {Queue(topic, "broker-a", number): number + 2 for number in range(6)}
    path = str(checkpoint(tmp_path / "c", format_offsets(read), done=1))
    ends = ", ".join(f"broker-a/{number}: {number + 2}" for number in range(4))
    said = rf"'{topic}' was read up to these offsets \({ends} and 2 queues more\), and no broker has it now"
    with pytest.raises(TopicNotFoundError, match=said):
        behind(nameserver, path)
    lakes.add(lakes.make(tmp_path / "lake"), {Queue(topic, "broker-a", 0): range(7)})
    text = {"nameServer": nameserver, "topic": topic}
    run = Run(None, str(tmp_path / "lake"), text, "parquet", 10, None, None)  # type: ignore[arg-type]  # no session
    with pytest.raises(TopicNotFoundError, match=r"read up to these offsets \(broker-a/0: 7\)"), run.alone(None):
        run.find_goal(note=True)


def test_an_archive_of_a_later_release_is_told(tmp_path: Path) -> None:
    about = lakes.make(tmp_path).folder.json("_archive.json")
    (tmp_path / "_archive.json").write_text(json.dumps({**about, "version": 2}))
    with pytest.raises(UsageError, match="an archive of format 2, this release knows 1"):
        reached(str(tmp_path))


def test_a_queue_that_ends_before_what_was_read_is_told(nameserver: str, topic: str, tmp_path: Path) -> None:
    send(nameserver, topic, ["a", "b"], queues=1)
    path = checkpoint(tmp_path / "c", format_offsets({Queue(topic, "broker-a", 0): 9}), done=1)
    told = lag(path, "--nameserver", nameserver)
    assert (told.exit_code, "queue 0 was read to 9 and ends at 2: it was made anew" in told.stdout) == (1, True)
    assert json.loads(lag(path, "--nameserver", nameserver, "--json").stdout)["queues"][0]["ahead"] == 7


def test_what_retention_took_is_lost() -> None:
    queue = Queue("t", "b", 0)
    found = [Behind(queue, reached, 5, 9) for reached in (3, 7, 9)]
    assert [(each.lag, each.lost) for each in found] == [(4, 2), (2, 0), (0, 0)]
