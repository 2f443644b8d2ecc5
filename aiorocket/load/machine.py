"""The facts without which a figure means nothing: processor, cores, memory, load, versions."""

from __future__ import annotations

import os
import platform
import sysconfig
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from aiorocket.runtime.clock import WallClock
from aiorocket_protocol.fast import SPEEDUPS

__all__ = ("busy_ticks", "facts", "interpreter", "processor", "version")


def facts() -> dict[str, Any]:
    return {
        "date": datetime.fromtimestamp(WallClock().wall_ms() / 1000, UTC).astimezone().isoformat(timespec="seconds"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "interpreter": interpreter(),
        "packages": {name: version(name) for name in ("aiorocketmq", "uvloop", "msgpack", "msgspec")},
        "speedups": SPEEDUPS,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_at_start": [round(each, 2) for each in os.getloadavg()],
    }


def interpreter() -> dict[str, bool | None]:
    """How CPython was built, as its own record says; None where that does not tell. Without profile-guided optimisation
    (PGO) it takes a third more cycles."""
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    flags = f"{sysconfig.get_config_var('PY_CFLAGS_NODIST')} {sysconfig.get_config_var('PY_LDFLAGS_NODIST')}"
    # `make profile-opt` leaves its flags there without any option. Debian and conda build so, and cut them and those of
    # LTO out of the record, this variable's too; Windows has no record.
    whole = "prof" in str(sysconfig.get_config_var("PGO_PROF_USE_FLAG") or "")
    pgo = "--enable-optimizations" in options or "-fprofile-use" in flags or "-fprofile-instr-use" in flags
    lto = "--with-lto" in options or "-flto" in flags
    return {
        "pgo": pgo or (False if whole else None),
        "lto": lto or (False if whole else None),
        "shared": bool(sysconfig.get_config_var("Py_ENABLE_SHARED")),
        "debug": bool(sysconfig.get_config_var("Py_DEBUG")),
    }


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor()


def busy_ticks() -> tuple[int, int] | None:
    """Ticks in which a core did something, and all ticks, since the machine started; None where nobody counts them."""
    try:
        numbers = [int(each) for each in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    except OSError:
        return None
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)
