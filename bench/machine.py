"""The facts without which a figure means nothing: the machine, its load, its disk, the versions in use."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from aiorocket.load import machine
from aiorocket.load.machine import interpreter, version
from bench.processes import ROOT

__all__ = ("commit", "facts", "fdatasync", "file_system", "interpreter", "version")


def facts(data: str) -> dict[str, Any]:
    """Those of ``aiorocket bench``, and the commit and the disk."""
    return {
        **machine.facts(),
        "commit": commit(),
        "file_system": file_system(data),
        "fdatasync_ms": fdatasync(data),
    }


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
