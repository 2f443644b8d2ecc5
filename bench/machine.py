"""The facts without which a figure means nothing: the machine, its load, its disk, the versions in use."""

from __future__ import annotations

import os
import platform
import statistics
import sysconfig
import tempfile
import time
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from aiorocket_protocol.fast import SPEEDUPS
from bench.processes import ROOT


def facts(data: str) -> dict[str, Any]:
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": commit(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "interpreter": interpreter(),
        "packages": {name: version(name) for name in ("uvloop", "msgpack", "msgspec")},
        "speedups": SPEEDUPS,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_at_start": [round(each, 2) for each in os.getloadavg()],
        "file_system": file_system(data),
        "fdatasync_ms": fdatasync(data),
    }


def interpreter() -> dict[str, bool]:
    """How CPython was built. Without profile-guided optimisation (``--enable-optimizations``) it takes a third more
    cycles."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return {
        "pgo": "--enable-optimizations" in arguments,
        "lto": "--with-lto" in arguments,
        "shared": bool(sysconfig.get_config_var("Py_ENABLE_SHARED")),
        "debug": bool(sysconfig.get_config_var("Py_DEBUG")),
    }


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The checked out commit, read from the repository's files; None outside one."""
    head = ROOT / ".git" / "HEAD"
    try:
        text = head.read_text().strip()
        if not text.startswith("ref: "):
            return text[:12]
        reference = ROOT / ".git" / text[5:]
        if reference.exists():
            return reference.read_text().strip()[:12]
        for line in (ROOT / ".git" / "packed-refs").read_text().splitlines():
            if line.endswith(" " + text[5:]):
                return line[:12]
    except OSError:
        pass  # not a checkout: a wheel or an archive
    return None


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor()


def file_system(directory: str) -> str | None:
    """Type of the mount that holds ``directory`` (tmpfs makes every fdatasync figure worthless)."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    path = os.path.realpath(directory)
    holding = [mount for mount in mounts if path == mount[1] or path.startswith(mount[1].rstrip("/") + "/")]
    return max(holding, key=lambda mount: len(mount[1]))[2] if holding else None


def fdatasync(directory: str, repeat: int = 50) -> float:
    """Median milliseconds of fdatasync after 4 KiB written into a preallocated file."""
    times = []
    with tempfile.TemporaryFile(dir=directory) as file:
        file.truncate(repeat * 4096)
        for number in range(repeat):
            os.pwrite(file.fileno(), b"x" * 4096, number * 4096)
            started = time.perf_counter()
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            times.append(time.perf_counter() - started)
    return round(statistics.median(times) * 1e3, 3)
