"""Which Spark this is for."""

from __future__ import annotations

import re

from aiorocket.errors import UsageError

__all__ = ("check_version",)

_OLDEST = (4, 2)


def check_version(version: str) -> None:
    """UsageError for a pyspark that is older than 4.2: 3.5 has no sources in Python, and in 4.0 and 4.1 a stream with
    ``availableNow`` ends before all is read, without a word."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) < _OLDEST:
        raise UsageError(
            f"pyspark {version} is too old, 4.2 is needed: pip install 'aiorocketmq[spark]'. A cluster of an older one "
            "reads what `aiorocket lake archive` or `aiorocket lake run` writes, in an environment of its own"
        )
