"""The name server: which broker carries which topic."""

from aiorocket.nameserver.server import NameServer

__all__ = ("NameServer",)
