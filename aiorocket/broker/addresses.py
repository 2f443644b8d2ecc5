"""Which address a broker tells its clients."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from aiorocket.config import BrokerConfig
from aiorocket.errors import UsageError
from aiorocket_protocol import pack_host

__all__ = ("advertised",)

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})


async def advertised(config: BrokerConfig, port: int) -> tuple[str, bytes]:
    """What clients are told, and the same packed for stored records, where only a number will do."""
    host = config.advertise or config.host
    if host in _WILDCARDS:
        raise UsageError(
            f"broker {config.name} listens on every address ({config.host}), so clients must be told which one to use: "
            "set advertise (--advertise HOST) to an address of this machine that they can reach"
        )
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UsageError(f"advertise={host!r} cannot be resolved to an address: {error}") from error
        ip = ipaddress.ip_address(found[0][4][0])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return address, pack_host(f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}")
