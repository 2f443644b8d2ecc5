"""Consumers that are cut off at every wait, of which ``tests/client`` has every ninth."""

from __future__ import annotations

import pytest

from tests.client.test_cancellation import KINDS, waits_of_a_consumer

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("shared", [False, True], ids=["own client", "shared client"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer(kind: str, shared: bool, for_good: bool) -> None:
    waits_of_a_consumer(kind, shared, for_good, range(1, 1000))
