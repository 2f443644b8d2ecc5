"""Times as users write them, and what is refused because Python would take it for another one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from aiorocket.config.times import iso_time, plain_millis


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-31", datetime(2026, 1, 31)),
        ("20260131", datetime(2026, 1, 31)),
        ("2026-01-31T10:00", datetime(2026, 1, 31, 10)),
        ("2026-01-31 10:00:00,5Z", datetime(2026, 1, 31, 10, 0, 0, 500_000, UTC)),
        ("20260131T100000+0200", datetime(2026, 1, 31, 10, tzinfo=timezone(timedelta(hours=2)))),
        ("2026-W05-6", datetime(2026, 1, 31)),
    ],
)
def test_a_time_in_iso_8601(text: str, time: datetime) -> None:
    assert iso_time(text) == time


@pytest.mark.parametrize(
    "text", ["2026-01-31+02:00", "2026-01-31-05:00", "2026-01-31x10:00", "2026-01-31Z", "2026-01", "10:00", ""]
)
def test_a_zone_behind_a_date_is_no_time_of_day(text: str) -> None:
    with pytest.raises(ValueError, match="ISO"):
        iso_time(text)


def test_a_number_is_milliseconds_unless_it_is_a_date() -> None:
    assert [plain_millis(text) for text in ("0", "1700000000000", "20261301", "9223372036854775807")] == [
        0, 1_700_000_000_000, 20_261_301, (1 << 63) - 1,
    ]  # fmt: skip
    assert [plain_millis(text) for text in ("", "-5", "1.5", "٣", "9223372036854775808", "9" * 5000)] == [None] * 6
    with pytest.raises(ValueError, match="20260131 may be a date or milliseconds: a date is 2026-01-31"):
        plain_millis("20260131")
