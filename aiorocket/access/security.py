"""What guards a server, made of its settings, and made again when the files they name have changed."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Protocol

from aiorocket.access.admin_door import AdminDoor, HasAdminDoor
from aiorocket.access.core.accounts import Accounts
from aiorocket.access.core.judge import may_send
from aiorocket.access.core.requests import RecordAt
from aiorocket.access.file import read_access_file
from aiorocket.access.guard import USER, GuardedProcessors
from aiorocket.config import ServerTlsConfig, TlsConfig
from aiorocket.errors import ConfigError
from aiorocket.remoting.address import host_of, is_loopback
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.credentials import HasCredentials, signer_of
from aiorocket.remoting.door import ServerTls, tls_files
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.remoting.server import RemotingServer
from aiorocket.remoting.tls import client_context
from aiorocket.runtime.env import Env

if TYPE_CHECKING:
    from aiorocket_protocol.signing import Signer

__all__ = ("LOOK_EVERY", "Security")

_log = logging.getLogger("aiorocket.access")

#: Seconds between two looks at the files.
LOOK_EVERY = 10.0
_LOOKS_A_DAY = round(86_400 / LOOK_EVERY)


class HasSecurity(HasAdminDoor, Protocol):
    """What configs of servers have in common."""

    @property
    def acl(self) -> str | None: ...
    @property
    def tls(self) -> ServerTlsConfig | ssl.SSLContext | None: ...


class AsksNameServers(HasCredentials, Protocol):
    """What a broker's has besides."""

    @property
    def nameserver_tls(self) -> ssl.SSLContext | TlsConfig | bool: ...


class Security:
    """``accounts`` is who may do what, None without access control; ``door`` is who may administer then; ``tls`` is how
    the server speaks TLS, None when it does not; ``signer`` and ``client_tls`` are for what it asks itself.

    Reads the files that the settings name (blocking, once); ConfigError. ``accounts`` take the place of those of
    ``config``'s file: two servers of one process may share them.
    """

    def __init__(
        self,
        env: Env,
        config: HasSecurity,
        accounts: Accounts | None = None,
        asks: AsksNameServers | None = None,
    ) -> None:
        self._disk = disk = env.disk
        self._clock = env.clock
        self._acl = config.acl
        self._files = (*((config.acl,) if config.acl is not None else ()), *tls_files(config.tls))
        #: What stood in them; before they are read, so that nothing which changes from now on is missed.
        self._seen = self._contents()
        if accounts is None and config.acl is not None:
            accounts = Accounts(read_access_file(disk, config.acl))
        self.accounts = accounts
        self.door = AdminDoor(config, judged=accounts is not None)
        self.tls = ServerTls(config.tls) if config.tls is not None else None
        self.signer: Signer | None = signer_of(asks, disk) if asks is not None else None
        self.client_tls = client_context(asks.nameserver_tls) if asks is not None else None

    async def open(self, remoting: RemotingServer, host: str, server: str, *more: str) -> None:
        """Listen for administration, and warn at the start of a server that others than this machine reach of what it
        lets them do, and any of a certificate out of its time. UsageError when it cannot listen."""
        await self.door.listen(remoting)
        self._look_at_certificate()
        if is_loopback(host):
            return
        opened = list(more)
        if self.accounts is None:
            opened.append("without access control, everybody who reaches it sends and reads what they like")
        if self.tls is None or self.tls.plain:
            opened.append("plain text is spoken: messages and signatures can be read on their way")
        if opened:
            _log.warning("%s listens on %s: %s", server, host or "all addresses", "; ".join(opened))

    def tables(self) -> dict[str, Accounts]:
        """What is to be kept of it, by the name of its state file."""
        return {"access": self.accounts} if self.accounts is not None else {}

    def processors(self, *, cluster: str, server: str, record_at: RecordAt = lambda place: None) -> ProcessorTable:
        """A table for the server of this name, guarded when there are accounts. ``record_at`` is the message at a place
        in its log, if it has one."""
        if self.accounts is None:
            return ProcessorTable()
        return GuardedProcessors(self.accounts, cluster=cluster, server=server, record_at=record_at)

    def may_send(self, connection: Connection, topic: str) -> bool:
        """Whether who heartbeats on ``connection`` may send to ``topic``; without accounts everybody may."""
        if self.accounts is None:
            return True
        return may_send(self.accounts, connection.data.get(USER, ""), host_of(connection.peer), topic)

    @property
    def changes(self) -> bool:
        """Whether there are files that may change."""
        return self._acl is not None or self.tls is not None

    def reload(self) -> None:
        """Read the access file and the certificates again. What cannot be used is named in the log, and what was in
        force stays, of the one as of the other."""
        if (accounts := self.accounts) is not None and (acl := self._acl) is not None:
            _again(f"access file {acl!r} is", lambda: accounts.renew(read_access_file(self._disk, acl)))
        if self.tls is not None:
            _again(f"certificates {', '.join(self.tls.files)} are", self.tls.reload)
            self._look_at_certificate()

    def _look_at_certificate(self) -> None:
        if self.tls is not None and (warning := self.tls.warning(self._clock.wall_ms())) is not None:
            _log.warning("%s", warning)

    async def keep_fresh(self) -> None:
        """Reload when one of the files has changed, until cancelled."""
        for look in count(1):
            now = await self._disk.run(self._contents)
            if now != self._seen:
                self._seen = now
                self.reload()
            elif look % _LOOKS_A_DAY == 0:
                self._look_at_certificate()
            await asyncio.sleep(LOOK_EVERY)

    def _contents(self) -> list[bytes | None]:
        return [self._content(path) for path in self._files]

    def _content(self, path: str) -> bytes | None:
        try:
            return self._disk.read_bytes(path)
        except OSError:
            return None  # a directory of authorities, or it is being replaced


def _again(what: str, read: Callable[[], object]) -> None:
    try:
        read()
    except ConfigError as error:
        _log.error("not read again, what was in force stays: %s", error)
    else:
        _log.warning("%s read again", what)
