"""Consumers of a shared client that are cut off at every wait, of which ``tests/client`` has every third."""

from __future__ import annotations

import pytest

from tests.client.test_cancellation import KINDS, waits_of_a_consumer

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_of_a_shared_client(kind: str, for_good: bool) -> None:
    waits_of_a_consumer(kind, True, for_good, range(1, 1000))
