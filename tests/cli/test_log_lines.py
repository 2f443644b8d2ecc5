"""A server's log: a name that a peer gave makes no line of its own, and nobody fills a disk with lines."""

from __future__ import annotations

import logging

from aiorocket.cli.log_lines import NotTooMany, OneLine


def record(message: str, *values: object, at: float = 1.0) -> logging.LogRecord:
    made = logging.LogRecord("aiorocket.nameserver", logging.WARNING, "", 0, message, values, None)
    made.created = at
    return made


def test_a_name_with_control_characters_stays_in_its_line() -> None:
    line = OneLine().format(record("registration of %s refused", "a\n2026 WARNING forged\x1b[2J\x85"))
    assert line.endswith("aiorocket.nameserver: registration of a\\x0a2026 WARNING forged\\x1b[2J\\x85 refused")


def test_a_traceback_keeps_its_lines() -> None:
    failed = record("failed")
    try:
        raise KeyError("x")
    except KeyError as error:
        failed.exc_info = (KeyError, error, error.__traceback__)
    assert OneLine().format(failed).count("\n") >= 3


def test_of_one_kind_there_are_twenty_lines_a_second_and_the_rest_is_counted() -> None:
    few = NotTooMany()
    passed = [few.filter(record("registration of %s refused", number)) for number in range(1000)]
    assert sum(passed) == 20 and all(passed[:20])
    assert few.filter(record("another kind"))
    later = record("registration of %s refused", "x", at=2.0)
    assert few.filter(later)
    assert later.getMessage() == "registration of x refused (980 more lines like this were left out)"
    assert few.filter(again := record("registration of %s refused", "y", at=2.1))
    assert again.getMessage() == "registration of y refused"


def test_texts_that_are_all_different_are_one_kind_and_take_no_memory() -> None:
    few = NotTooMany()
    assert sum(few.filter(record(f"text {number}")) for number in range(5000)) < 1050
