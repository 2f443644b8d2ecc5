"""``aiorocket fuzz``: whom it may be let loose on, what it says, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aiorocket.cli.main import cli
from aiorocket.fuzz import Finding, Sample
from aiorocket.testing.server import RocketMQServer
from tests.cli.conftest import stop


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fuzz", *arguments])


def test_a_name_server_is_fuzzed_and_nothing_is_found(server: RocketMQServer, tmp_path: Path) -> None:
    nameserver = server.embedded.nameserver_address
    found = call(nameserver, "--frames", "300", "--json", "--out", str(tmp_path), "--patience", "60")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert (document["schema"], document["kind"], document["rows"]) == (1, "fuzz", [])
    assert document["frames"] >= 300 and document["neighbour"]["rounds"] > 0
    assert list(tmp_path.iterdir()) == []


def test_two_that_do_not_differ(server: RocketMQServer) -> None:
    address = server.embedded.nameserver_address
    found = call(address, "--against", address, "--frames", "50", "--codes", "105,101,9999")
    assert found.exit_code == 0, found.output
    assert "0 differences that no rule knows" in found.output


def test_a_comparison_that_is_kept(server: RocketMQServer, tmp_path: Path) -> None:
    address, state = server.embedded.nameserver_address, tmp_path / "state"
    arguments = (address, "--against", address, "--codes", "105", "--state", str(state), "--connections", "1", "--json")
    counts = [json.loads(call(*arguments, "--frames", str(frames)).stdout)["frames"] for frames in (50, 10, 300)]
    assert 50 <= counts[0] == counts[1] < 300 <= counts[2]
    for other, told in (
        (("--seed", "1"), "seed 1"),
        (("--codes", "101"), "codes [101]"),
        (("--role", "broker"), "broker"),
    ):
        found = call(*arguments, *other)
        assert found.exit_code == 2 and "it is of another comparison: seed 0, role nameserver" in found.output
        assert told in found.output.partition("this one has ")[2], found.output
    for kept, why in ((b"{}", "not what aiorocket fuzz --against keeps"), (b"\xff\xfe", "'utf-8' codec can't decode")):
        state.write_bytes(kept)
        found = call(*arguments)
        assert found.exit_code == 2 and f"{state}: {why}" in found.output, found.output


@pytest.mark.parametrize("address", ["10.0.0.1:9876", "mq.example:10911"])
def test_only_this_machine_without_a_word(address: str) -> None:
    for found in (call(address), call("127.0.0.1:1", "--against", address)):
        assert found.exit_code == 2
        assert f"{address} is not this machine" in found.output and "--i-own-this-host" in found.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--state", "kept"], "--state means nothing without --against"),
        (["--against", "127.0.0.1:2", "--pid", "1"], "--pid means nothing with --against"),
        (["--against", "127.0.0.1:2", "--json-only"], "--json-only means nothing with --against"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(arguments: list[str], why: str) -> None:
    found = call("127.0.0.1:1", *arguments)
    assert found.exit_code == 2 and why in found.output, found.output


@pytest.mark.parametrize("arguments", [["here"], ["127.0.0.1:x"], ["127.0.0.1:1", "--codes", "a"]])
def test_bad_options(arguments: list[str]) -> None:
    assert call(*arguments).exit_code == 2


def test_a_finding_that_is_no_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "finding.json"
    path.write_text("[]")
    found = call("replay", str(path))
    assert found.exit_code == 2 and "not a finding of aiorocket fuzz" in found.output


def test_nobody_listens() -> None:
    found = call("127.0.0.1:1", "--frames", "10")
    assert (
        found.exit_code == 1 and "127.0.0.1:1: " in found.output and "`aiorocket standalone` starts one" in found.output
    )
    both = call("127.0.0.1:1", "--against", "127.0.0.1:2", "--frames", "10")
    assert both.exit_code == 1 and "127.0.0.1:1 or 127.0.0.1:2: " in both.output


def test_it_is_interrupted_before_it_has_begun(aiorocket: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = aiorocket.start("fuzz", f"127.0.0.1:{silent.getsockname()[1]}")
        with silent.accept()[0]:
            ended = stop(process, signal.SIGINT)
    assert ended.code == 130 and "Traceback" not in ended.err, ended.err


def test_a_finding_is_not_gone_because_nobody_listens(tmp_path: Path) -> None:
    sample = Sample("127.0.0.1:1", Finding("internal", "NullPointerException", 32), [])
    (tmp_path / "finding.json").write_text(sample.to_text())
    found = call("replay", str(tmp_path / "finding.json"))
    assert found.exit_code == 1 and "127.0.0.1:1: " in found.output and "any more" not in found.output, found.output
