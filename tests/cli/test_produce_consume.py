"""produce and consume as processes, against a standalone server of ours."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from aiorocket.cli.lines import LineSource
from aiorocket.cli.producing import _Report, _summary
from aiorocket.testing.server import broker_thread
from tests.broker.peer import Peer
from tests.cli.conftest import stop


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


def test_what_goes_in_comes_out_once_per_group(aiorocket: Any, standalone: str) -> None:
    text = "".join(f"line {n}\n" for n in range(500))
    sent = aiorocket.run("produce", "t", stdin=text.encode() + b"\n\n", AIOROCKET_NAMESERVER=standalone)
    assert sent.code == 0, sent
    assert sent.err.startswith("500 lines acknowledged by topic t in ") and "2 empty skipped" in sent.err

    read = aiorocket.run("consume", "t", "--group", "g", "--nameserver", standalone)
    assert (read.code, lines(read.out)) == (0, lines(text)), read.err
    again = aiorocket.run("consume", "t", "--group", "g", "--nameserver", f"{standalone};{standalone}")
    assert (again.code, again.out) == (0, "")
    other = aiorocket.run("consume", "t", "--group", "h", "--nameserver", standalone)
    assert (other.code, lines(other.out)) == (0, lines(text))


def test_a_file_with_keys_and_a_tag_comes_out_as_json(aiorocket: Any, standalone: str) -> None:
    (aiorocket.directory / "orders").write_text('{"id": "o-1", "n": 1}\n{"id": 2}\n')
    sent = aiorocket.run(
        "produce", "orders", "orders", "--key-field", "id", "--tag", "created", "--nameserver", standalone
    )
    assert sent.code == 0, sent
    read = aiorocket.run("consume", "orders", "--group", "g", "--json", "--nameserver", standalone)
    found = sorted((json.loads(line) for line in read.out.splitlines()), key=lambda message: message["keys"])
    assert [(m["keys"], m["tag"], m["topic"], json.loads(m["body"])) for m in found] == [
        (["2"], "created", "orders", {"id": 2}),
        (["o-1"], "created", "orders", {"id": "o-1", "n": 1}),
    ]
    assert all(m["msg_id"] and m["stored_ms"] >= m["born_ms"] > 0 and m["offset"] >= 0 for m in found)
    other = aiorocket.run("consume", "orders", "--group", "h", "--tag", "deleted", "--nameserver", standalone)
    assert (other.code, other.out) == (0, "")


def test_bytes_that_are_no_text_are_kept(aiorocket: Any, standalone: str) -> None:
    assert aiorocket.run("produce", "raw", "--nameserver", standalone, stdin=b"\xff\x00\xfe\n").code == 0
    read = aiorocket.run("consume", "raw", "--group", "g", "--json", "--nameserver", standalone)
    assert json.loads(read.out)["body_base64"] == "/wD+"


def test_a_load_that_is_stopped_says_how_far_it_came(aiorocket: Any) -> None:
    with broker_thread() as server:
        server.create_topic("t", queues=1)
        process = aiorocket.start("message", "load", "--nameserver", server.nameserver_address)
        line = {"topic": "t", "tag": "", "keys": [], "properties": {}, "body": "x"}
        process.stdin.write(2 * (json.dumps(line).encode() + b"\n"))
        process.stdin.flush()
        end = time.monotonic() + 60
        while len(server.messages("t")) < 2:
            assert time.monotonic() < end
            time.sleep(0.02)
        ended = stop(process)
    assert ended.code == 130 and ended.err in ("1 message sent\n", "2 messages sent\n"), ended


def test_what_a_broker_says_of_a_line_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report = _Report()
    report.refused(1, "code 1: \x1b]0;title\x07")
    _summary(report, LineSource("-"), "t", 1.0, finished=True)
    assert "  line 1: code 1: \\x1b]0;title\\x07\n" in capsys.readouterr().err


def test_a_message_that_cannot_be_read_is_shown_as_far_as_it_can(aiorocket: Any) -> None:
    async def send(port: int) -> None:
        peer = await Peer.connect(port)
        await peer.send_illegible("foreign")
        await peer.send_illegible("%DLQ%g")
        await peer.close()

    with broker_thread() as server:
        for topic in ("foreign", "%DLQ%g"):
            server.create_topic(topic, queues=1)
        asyncio.run(send(server.embedded.broker.port))
        where = ("--nameserver", server.nameserver_address)
        read = aiorocket.run("consume", "foreign", "--group", "g", *where)
        assert (read.code, read.out) == (0, "one\nnot zlib\n"), read.err
        assert read.err.startswith("message broker-a:0:1 is printed as far as it can be read: compressed body")
        read = aiorocket.run("consume", "foreign", "--group", "h", "--json", *where)
        first, second = (json.loads(line) for line in read.out.splitlines())
        assert (first["keys"], first["tag"], first["properties"]["KEYS"]) == (["k\ufffd"], "t", "k\ufffd"), read.err
        assert second["body_base64"] == "bm90IHpsaWI=" and "not zlib" in second["body_problem"]
        # Nothing went back to be shown some time later, to nobody.
        assert not server.messages("%RETRY%g") and not server.messages("%RETRY%h")
        assert "k\ufffd" in aiorocket.run("message", "list", "foreign", *where).out
        listed = aiorocket.run("dlq", "list", "g", "--where", "body~zlib", *where)
        assert listed.code == 0 and "1 dead letter of" in listed.out, listed


def test_lines_that_cannot_be_sent_are_named_and_the_others_are_sent(aiorocket: Any, standalone: str) -> None:
    text = b'{"id": 1}\nnot json\n{"other": 1}\n{"id": "two words"}\n{"id": [1]}\n{"id": 6}\n'
    sent = aiorocket.run("produce", "t", "--key-field", "id", "--nameserver", standalone, stdin=text)
    assert sent.code == 1
    assert sent.err.startswith("2 lines acknowledged")
    assert "4 not acknowledged: lines 2-5" in sent.err
    assert "line 3: no field 'id' in it" in sent.err


def test_a_group_without_offsets_begins_where_it_is_told(aiorocket: Any, standalone: str) -> None:
    def consume(group: str, *more: str) -> Any:
        return aiorocket.run("consume", "t", "--group", group, "--nameserver", standalone, *more)

    assert aiorocket.run("produce", "t", "--nameserver", standalone, stdin=b"old\n").code == 0
    at_end = consume("late", "--from", "last")
    assert (at_end.code, at_end.out) == (0, "")
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    assert aiorocket.run("produce", "t", "--nameserver", standalone, stdin=b"new\n").code == 0
    assert consume("late").out == "new\n"  # its place at the end was committed, though it had read nothing
    assert consume("middle", "--from", str(between)).out == "new\n"
    assert lines(consume("early", "--from", "first").out) == ["new", "old"]
    told = consume("early", "--from", "first")
    assert (told.code, told.out) == (0, "")
    assert "already has offsets" in told.err and "--from is not used" in told.err


def test_count_takes_as_many_and_leaves_the_rest_to_the_group(aiorocket: Any, standalone: str) -> None:
    text = "".join(f"{n}\n" for n in range(20))
    assert aiorocket.run("produce", "t", "--nameserver", standalone, stdin=text.encode()).code == 0
    first = aiorocket.run("consume", "t", "--group", "g", "--count", "7", "--nameserver", standalone)
    assert (first.code, len(first.out.splitlines())) == (0, 7)
    rest = aiorocket.run("consume", "t", "--group", "g", "--nameserver", standalone)
    assert lines(first.out + rest.out) == lines(text)


def test_follow_goes_on_until_it_is_told_to_stop(
    aiorocket: Any, standalone: str, read_line: Callable[..., str], stop: Callable[..., Any]
) -> None:
    assert aiorocket.run("produce", "t", "--nameserver", standalone, stdin=b"before\n").code == 0
    reader = aiorocket.start("consume", "t", "--group", "g", "--follow", "--nameserver", standalone)
    assert read_line(reader) == "before\n"
    assert aiorocket.run("produce", "t", "--nameserver", standalone, stdin=b"after\n").code == 0
    assert read_line(reader) == "after\n"
    assert stop(reader).code == 0
    assert aiorocket.run("consume", "t", "--group", "g", "--nameserver", standalone).out == ""


def test_a_reader_that_is_stopped_before_its_count_is_interrupted(
    aiorocket: Any, standalone: str, read_line: Callable[..., str], stop: Callable[..., Any]
) -> None:
    assert aiorocket.run("produce", "t", "--nameserver", standalone, stdin=b"one\n").code == 0
    words = ("--group", "g", "--follow", "--count", "2", "--nameserver", standalone)
    reader = aiorocket.start("consume", "t", *words)
    assert read_line(reader) == "one\n"
    assert stop(reader).code == 130


def test_a_credentials_file_that_is_not_there_is_bad_input(aiorocket: Any, standalone: str) -> None:
    for command in (["topic", "list"], ["produce", "t"], ["consume", "t", "--group", "g"]):
        told = aiorocket.run(*command, "--credentials", "missing", "--nameserver", standalone)
        assert (told.code, told.err.splitlines()) == (
            2, ["Error: credentials_file='missing' cannot be read: No such file or directory"]
        )  # fmt: skip


def test_rate_is_kept(aiorocket: Any, standalone: str) -> None:
    started = time.monotonic()
    assert aiorocket.run("produce", "t", "--rate", "50", "--nameserver", standalone, stdin=b"x\n" * 26).code == 0
    assert time.monotonic() - started >= 0.5


def test_a_reader_that_leaves_ends_consume_without_a_traceback(aiorocket: Any, standalone: str) -> None:
    assert aiorocket.run("produce", "t", "--nameserver", standalone, stdin=b"x\n" * 100).code == 0
    reader = aiorocket.start("consume", "t", "--group", "g", "--nameserver", standalone)
    reader.stdout.close()
    _, err = reader.wait(60), reader.stderr.read()
    assert b"Traceback" not in err and b"Error" not in err


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [(">/dev/full", 1, "Error: No space left on device"), (">&-", 1, "Error: standard output is closed: ")],
)
def test_what_could_not_be_printed_is_not_consumed(
    aiorocket: Any, standalone: str, output: str, code: int, said: str
) -> None:
    assert aiorocket.run("produce", "t", "--nameserver", standalone, stdin=b"x\n" * 10).code == 0
    words = f"exec {shlex.quote(sys.executable)} -m aiorocket consume t --group g --nameserver {standalone}"
    read = subprocess.run(["sh", "-c", f"{words} {output}"], timeout=140, capture_output=True, text=True, check=False)
    assert (read.returncode, len(read.stderr.splitlines())) == (code, 1) and read.stderr.startswith(said), read
    again = aiorocket.run("consume", "t", "--group", "g", "--nameserver", standalone)
    assert again.out == "x\n" * 10, again


def test_nobody_there_is_one_clear_error(aiorocket: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    sent = aiorocket.run("produce", "t", "--nameserver", address, stdin=b"x\n")
    assert sent.code == 1
    assert "1 not acknowledged: line 1" in sent.err and address in sent.err and "Traceback" not in sent.err
    read = aiorocket.run("consume", "t", "--group", "g", "--nameserver", address)
    assert read.code == 1
    assert address in read.err and len(read.err.splitlines()) == 1


def test_an_unknown_topic_and_a_bad_name_are_named(aiorocket: Any, standalone: str) -> None:
    for topic, code in (("nowhere", 1), ("no/where", 2)):
        read = aiorocket.run("consume", topic, "--group", "g", "--nameserver", standalone)
        assert (read.code, read.out, len(read.err.splitlines())) == (code, "", 1)
        assert topic in read.err
    assert "bad group" in aiorocket.run("consume", "t", "--group", "bad group", "--nameserver", standalone).err


def test_bad_input_is_refused_before_anything_is_sent(aiorocket: Any, standalone: str) -> None:
    missing = aiorocket.run("produce", "t", "missing", "--nameserver", standalone)
    assert (missing.code, missing.err) == (2, "Error: missing: No such file or directory\n")
    (aiorocket.directory / "long").write_bytes(b"ok\n" + b"x" * ((4 << 20) + 1))
    long = aiorocket.run("produce", "t", "long", "--nameserver", standalone)
    assert long.code == 2
    assert "line 2 is longer than 4194304 bytes" in long.err
    assert (
        aiorocket.run("consume", "t", "--group", "g", "--nameserver", standalone).code == 1
    )  # not even the topic is there


def test_a_stopped_produce_says_how_far_it_came(aiorocket: Any, standalone: str, stop: Callable[..., Any]) -> None:
    sender = aiorocket.start("produce", "t", "--nameserver", standalone)
    sender.stdin.write(b"one\ntwo\n")
    sender.stdin.flush()
    read = aiorocket.run("consume", "t", "--group", "g", "--nameserver", standalone)
    deadline = time.monotonic() + 60
    while read.code and time.monotonic() < deadline:  # the topic is created by the first line
        read = aiorocket.run("consume", "t", "--group", "g", "--nameserver", standalone)
    result = stop(sender)
    assert result.code == 130
    assert "2 lines acknowledged" in result.err and "lines after 2 of standard input were not sent" in result.err
