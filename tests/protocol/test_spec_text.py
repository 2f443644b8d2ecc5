"""Figures in the prose of protocol/spec are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import aiorocket_protocol
from aiorocket.client.push import orderly
from aiorocket.config import (
    DELAY_LEVELS,
    BrokerConfig,
    ClientConfig,
    ConsumerConfig,
    NameServerConfig,
    RemotingConfig,
)
from aiorocket_protocol import FIRST_RETRY_LEVEL, LANGUAGE_NAMES, MAX_FRAME, MAX_PROPERTIES, MAX_TOPIC
from aiorocket_protocol.record_layout import HEADS

SPEC = Path(__file__).resolve().parents[2] / "protocol" / "spec"


def text_of(name: str) -> str:
    return (SPEC / name).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells of every table of a document, without its heads."""
    lines = [
        line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("|") and "---" not in line
    ]
    return [[cell.strip() for cell in cells] for cells in lines]


def test_timers() -> None:
    client, consumer, broker, nameserver = ClientConfig(), ConsumerConfig(), BrokerConfig(), NameServerConfig()
    expected = {
        "heartbeat of a client": [client.heartbeat_interval],
        "a client that was not heard of is forgotten": [broker.channel_expiry],
        "route refresh": [client.route_interval],
        "registration of a broker": [broker.register_interval],
        "a broker that was not heard of is forgotten": [nameserver.broker_expiry],
        "rebalance": [consumer.rebalance_interval],
        "long poll": [consumer.hold, consumer.pull_timeout],
        "renewal of queue locks": [consumer.lock_renew_interval],
        "a consumer trusts a lock it did not renew": [consumer.lock_validity],
        "a lock nobody renewed is free": [broker.lock_lease],
        "continuous orderly consumption of a queue": [orderly._CONTINUOUS],
        "flush of offsets": [consumer.offset_flush_interval],
        "pause after a failed pull / after an illegal offset": [
            consumer.pull_error_delay,
            consumer.offset_illegal_delay,
        ],
        "pause of a suspended queue / before a local retry": [consumer.suspend, consumer.local_retry_delay],
        "idle connection closed": [RemotingConfig().idle_timeout],
    }
    found = {
        what: [float(figure) for figure in re.findall(r"\d+", value)]
        for what, value, _ in rows(text_of("timers.md"))[1:]
    }
    assert found == expected


def test_delay_levels() -> None:
    text = " ".join(text_of("timers.md").split())
    assert "1 s, 5 s, 10 s, 30 s, 1 to 10 min by the minute, 20 min, 30 min, 1 h, 2 h are levels 1 to 18." in text
    assert (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200) == DELAY_LEVELS
    assert f"waits level {FIRST_RETRY_LEVEL}," in text


def test_records() -> None:
    text = text_of("records.md")
    at, places, v4_body = 0, {}, 0
    for size, field, *note in rows(text.partition("## sysFlag")[0])[1:]:
        places[field.upper().replace(" ", "_").replace("SYSFLAG", "SYS_FLAG").replace("BODY_CRC", "CRC")] = at
        said = re.search(r"at byte (\d+)", note[0] if note else "")
        if "+ n" in size:
            v4_body = at + 4
            assert said is not None and int(said[1]) == v4_body
            break
        assert said is None or int(said[1]) == at, field
        at += int(size.split(" / ")[0])
    names = [name for name in vars(aiorocket_protocol) if name.endswith("_AT")]
    assert {name: getattr(aiorocket_protocol, name) for name in names} == {
        name: places[name.removesuffix("_AT")] for name in names
    }
    assert len(names) == 9 and v4_body == aiorocket_protocol.V4_HEAD == HEADS[8, 8].size
    assert f"at most {MAX_PROPERTIES:,} bytes" in text and f"topics over {MAX_TOPIC} bytes" in text


def test_bits_of_sys_flag() -> None:
    table = text_of("records.md").partition("## sysFlag")[2].partition("##")[0]
    found = {int(bit, 16) for bit in re.findall(r"0x[0-9A-F]+", table.partition("0x700")[0])} | {4, 8, 12}
    names = [name for name in vars(aiorocket_protocol) if name.startswith("SYS_FLAG_") and name != "SYS_FLAG_AT"]
    assert found == {getattr(aiorocket_protocol, name) for name in names}
    for name, word in {"COMPRESSION_LZ4": "LZ4", "COMPRESSION_ZSTD": "zstd", "COMPRESSION_ZLIB": "zlib"}.items():
        assert f"0x{getattr(aiorocket_protocol, name):X} {word}" in table


def test_frames_and_headers() -> None:
    assert f"length + 4 ≤ {MAX_FRAME:,}" in text_of("frame.md")
    header = text_of("headers.md")
    for code, language in re.findall(r"(\d) ([A-Z]{3,})", header.partition("| 1 | language (")[2].partition("…")[0]):
        assert LANGUAGE_NAMES[int(code)] == language
