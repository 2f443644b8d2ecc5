"""Each call of the disk under a store fails once, in each of the ways of which ``tests/storage`` has one a call."""

from __future__ import annotations

import errno

import pytest

from tests.storage.test_faults import storage_calls_fail_once

pytestmark = pytest.mark.harness


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_every_storage_call_fails_once(flush: str, code: int) -> None:
    storage_calls_fail_once(flush, code, range(1, 2000))
