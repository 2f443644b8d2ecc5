"""A PostgreSQL server of a test: Debian's package or any other, in a directory of its own, on a socket in it."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ("Postgres", "postgres")

#: Where Debian keeps what it does not put on PATH; the newest version is the last.
_DEBIAN = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([*_DEBIAN[::-1], os.environ.get("PATH", "")]))
    if found is None:
        raise FileNotFoundError(f"{name} is not here: apt-get install postgresql")
    return found


def _user() -> dict[str, Any]:
    """Who runs it: PostgreSQL refuses to be root's."""
    if os.geteuid() != 0:
        return {}
    known = {each.pw_name: each for each in pwd.getpwall()}
    chosen = known.get("postgres") or known["nobody"]
    return {"user": chosen.pw_uid, "group": chosen.pw_gid, "extra_groups": []}


class Postgres:
    """``url`` is for SQLAlchemy, by asyncpg."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql+asyncpg://shop@/postgres?host={directory}"

    def make(self) -> None:
        options = ["-D", str(self._directory / "data"), "-U", "shop", "-A", "trust", "-E", "UTF8", "--no-sync"]
        made = subprocess.run([_program("initdb"), *options], cwd="/", capture_output=True, timeout=300, **_user())
        assert made.returncode == 0, made.stderr.decode()

    def start(self) -> None:
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    _program("postgres"), "-D", str(self._directory / "data"), "-k", str(self._directory),
                    "-c", "listen_addresses=", "-c", "max_connections=20", "-c", "shared_buffers=16MB",
                ],
                cwd="/", stdout=log, stderr=log, **_user(),
            )  # fmt: skip

    def kill(self) -> None:
        """As a power cut of it: SIGQUIT ends it and its children without a checkpoint, so the next start recovers."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(how)
            process.wait(120)

    async def ready(self) -> None:
        import asyncpg

        async with asyncio.timeout(120):
            while True:
                try:
                    connection = await asyncpg.connect(user="shop", database="postgres", host=str(self._directory))
                    return await connection.close()
                except (OSError, asyncpg.PostgresError):
                    assert self._process is not None and self._process.poll() is None, (
                        self._directory / "log"
                    ).read_text()
                    await asyncio.sleep(0.05)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server that was started; ``await ready()`` before the first use."""
    directory = Path(tempfile.mkdtemp(prefix="aiorocket-postgres."))  # a socket's path must be short
    try:
        user = _user()
        if user:
            os.chown(directory, user["user"], user["group"])
        server = Postgres(directory)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory)
