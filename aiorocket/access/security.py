"""What guards a server, made of its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from aiorocket.access.core.accounts import Accounts
from aiorocket.access.file import read_access_file
from aiorocket.access.guard import GuardedProcessors
from aiorocket.remoting.credentials import HasCredentials, signer_of
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.runtime.disk import Disk

if TYPE_CHECKING:
    from aiorocket_protocol.signing import Signer

__all__ = ("Security",)


class Security(NamedTuple):
    """``accounts`` is who may do what, None without access control; ``signer`` signs what the server itself asks."""

    accounts: Accounts | None
    signer: Signer | None

    @classmethod
    def of(
        cls, disk: Disk, acl: str | None, accounts: Accounts | None = None, own: HasCredentials | None = None
    ) -> Self:
        """``acl`` is the path of an access file, ``own`` are the server's credentials. Reads the files that they name
        (blocking, once); ConfigError. ``accounts`` take the place of the file: servers of one process share them."""
        if accounts is None and acl is not None:
            accounts = Accounts(read_access_file(disk, acl))
        return cls(accounts, signer_of(own, disk) if own is not None else None)

    def tables(self) -> dict[str, Accounts]:
        """What is to be kept of it, by the name of its state file."""
        return {"access": self.accounts} if self.accounts is not None else {}

    def processors(self, *, cluster: str, server: str) -> ProcessorTable:
        """A table for the server of this name, guarded when there are accounts."""
        if self.accounts is None:
            return ProcessorTable()
        return GuardedProcessors(self.accounts, cluster=cluster, server=server)
