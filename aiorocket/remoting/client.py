"""Address -> connection: one per address, dialled once however many wait for it, with back-off between failures."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any, cast

from aiorocket.config import RemotingConfig
from aiorocket.config.addresses import mapped
from aiorocket.errors import ConfigError, NotConnectedError, RocketError
from aiorocket.remoting.address import parse_address, unix_path
from aiorocket.remoting.connection import Connection, Plain
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.remoting.sweeper import Sweeper
from aiorocket.remoting.tls import tls_trouble
from aiorocket.runtime.env import Env
from aiorocket.runtime.tasks import TaskScope
from aiorocket_protocol import READ_SIZE, RemotingCommand
from aiorocket_protocol.fast import compiled

if TYPE_CHECKING:
    from aiorocket_protocol.signing import Signer

__all__ = ("RemotingClient",)

_take_answers: Plain | None = compiled("take_answers")


class _Failures:
    """What is remembered of an address that could not be reached."""

    __slots__ = ("count", "last", "not_before")

    def __init__(self) -> None:
        self.count = 0
        self.not_before = 0.0
        self.last = ""


class RemotingClient:
    """Outgoing connections. ``processors`` serve requests that peers send on them, ``on_close(connection)`` tells of
    each end; ``signer`` signs every request, which then travels as JSON; ``tls`` is for all addresses. ``address_map``,
    as of ``ClientConfig``, says only where to dial: everywhere else a connection goes by the address that was asked
    for."""

    def __init__(
        self,
        env: Env,
        config: RemotingConfig,
        processors: ProcessorTable | None = None,
        on_close: Callable[[Connection], None] | None = None,
        *,
        signer: Signer | None = None,
        tls: ssl.SSLContext | None = None,
        address_map: Mapping[str, str] | Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self._address_map = address_map or {}
        self._make: Callable[..., Connection] = Connection
        self._tls: dict[str, Any] = {}
        self.config = config
        self.secure(signer, tls)
        self._env = env
        self._processors = processors if processors is not None else ProcessorTable()
        self._on_close = on_close
        #: The connection to each address; it may be closed, see ``live``.
        self.by_address: dict[str, Connection] = {}
        self._dials: dict[str, list[asyncio.Future[Connection]]] = {}
        self._failures: dict[str, _Failures] = {}
        #: Every address that was connected once.
        self.reached: set[str] = set()
        self._tasks = TaskScope("remoting-client")
        self._sweeper: Sweeper | None = None
        self._shared = memoryview(bytearray(READ_SIZE))
        self._closed = False

    def secure(self, signer: Signer | None, tls: ssl.SSLContext | None) -> None:
        """Sign, and encrypt, on every connection that is made from now on; None changes nothing."""
        if signer is not None:
            from aiorocket.remoting.signed import SignedConnection

            self._make = partial(SignedConnection, signer)
            self.config = replace(self.config, serializer="json")
        if tls is not None:
            limit = self.config.connect_timeout
            self._tls = {"ssl": tls, "ssl_handshake_timeout": limit, "ssl_shutdown_timeout": limit}

    def live(self, address: str) -> Connection | None:
        """The open connection to ``address``, or None: then ``await connect(address)``."""
        connection = self.by_address.get(address)
        return connection if connection is not None and not connection.closed else None

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return [connection for connection in self.by_address.values() if not connection.closed]

    @property
    def addresses(self) -> set[str]:
        """Those with an open connection."""
        return {address for address, connection in self.by_address.items() if not connection.closed}

    def trouble(self, address: str) -> str:
        """Why the latest dial of ``address`` failed; empty when none has since there was a connection."""
        failures = self._failures.get(address)
        return "" if failures is None or self.live(address) else f"{address}: {failures.last}"

    async def connect(self, address: str, timeout: float | None = None) -> Connection:
        """The connection to ``address`` (``host:port`` or ``unix:PATH``), dialled if there is none.

        Waits out the back-off after earlier failures first, for ``timeout`` seconds (default: connect_timeout) in all.
        Raises NotConnectedError with the address and the cause.
        """
        connection = self.live(address)
        if connection is not None:
            return connection
        if self._closed:
            raise NotConnectedError(f"this client is closed, it does not connect to {address} any more")
        if unix_path(address) is None:
            parse_address(address)
        loop = asyncio.get_running_loop()
        if timeout is None:
            timeout = self.config.connect_timeout
        failures = self._failures.get(address)
        if failures is not None and failures.not_before >= loop.time() + timeout:
            raise NotConnectedError(
                f"{address}: {failures.last}; tried {failures.count} times, the next attempt is in "
                f"{failures.not_before - loop.time():.1f} s"
            )
        waiter: asyncio.Future[Connection] = loop.create_future()
        waiters = self._dials.get(address)
        if waiters is None:
            waiters = self._dials[address] = []
            self._tasks.start(self._dial(address), name=f"dial-{address}")
        waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        except TimeoutError:
            last = f" (before that: {failures.last})" if failures is not None else ""
            raise NotConnectedError(f"{address}: no connection within {timeout:g} s{last}") from None

    async def request(self, address: str, command: RemotingCommand, timeout: float | None = None) -> RemotingCommand:
        """Connect if needed, send, wait for the answer; ``timeout`` (default: request_timeout) covers all of it."""
        if timeout is None:
            timeout = self.config.request_timeout
        connection = self.live(address)
        if connection is None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout
            connection = await self.connect(address, timeout)
            timeout = max(deadline - loop.time(), 0.001)
        return await connection.request(command, timeout)

    async def oneway(self, address: str, command: RemotingCommand, timeout: float | None = None) -> None:
        """Connect if needed and send a request that gets no answer."""
        connection = self.live(address) or await self.connect(address, timeout)
        connection.oneway(command)

    async def _dial(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        failures = self._failures.get(address)
        if failures is not None and failures.not_before > loop.time():
            await asyncio.sleep(failures.not_before - loop.time())
        if self._sweeper is None:
            self._sweeper = Sweeper(loop, self.config)

        def factory() -> asyncio.BaseProtocol:
            return self._make(
                loop,
                self.config,
                self._processors.dispatch,
                self._tasks,
                is_client=True,
                shared=self._shared,
                on_lost=self._lost,
            )

        cause = ""
        dialled = address
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self.config.connect_timeout):
                if self._address_map:
                    dialled = await self._mapped(address)
                if (path := unix_path(dialled)) is not None:
                    transport, made = await loop.create_unix_connection(factory, path)
                else:
                    transport, made = await loop.create_connection(factory, *parse_address(dialled), **self._tls)
                connection = cast(Connection, made)
                if (tls := transport.get_extra_info("ssl_object")) is not None:
                    connection.data["certificate"] = tls.getpeercert(True)  # in DER, of the server
                connection.plain = _take_answers
        except TimeoutError:
            with_tls = " (with its TLS handshake)" if self._tls else ""
            cause = f"no connection{with_tls} within {self.config.connect_timeout:g} s"
        except OSError as error:
            cause = (tls_trouble(error) if self._tls else None) or _cause(error)
        except (RocketError, ValueError) as error:  # the latter: a name that no resolver can be asked for
            cause = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is: who waits for this dial is told, and the next begins
            cause = _said(error)
        if cause and dialled != address:
            cause = f"as {dialled} (address_map): {cause}"
        waiters = self._dials.pop(address, [])
        if connection is not None:
            self.reached.add(address)
            self._sweeper.add(connection)
            if connection.closed:
                self._failed(address, connection.close_reason)
            else:
                connection.data["address"] = address
                self.by_address[address] = connection
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(connection)
            return
        self._failed(address, cause)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(NotConnectedError(f"{address}: {cause}"))

    def _failed(self, address: str, cause: str) -> None:
        """The next dial of ``address`` has to wait."""
        failures, config = self._failures.setdefault(address, _Failures()), self.config
        pause = min(config.backoff_max, config.backoff_initial * 2.0 ** min(failures.count, 30))
        failures.count += 1
        failures.last = cause
        failures.not_before = asyncio.get_running_loop().time() + self._env.entropy.jitter(pause)

    async def _mapped(self, address: str) -> str:
        """Where to dial ``address``. ConfigError when the user's function cannot say."""
        if isinstance(self._address_map, Mapping):
            return mapped(self._address_map, address)
        me = asyncio.current_task()
        try:
            dialled = await self._address_map(address)
            if unix_path(dialled) is None:
                parse_address(dialled)
        except BaseException as error:  # a user's code
            if isinstance(error, asyncio.CancelledError) and me is not None and me.cancelling():
                raise  # that is meant for us
            if isinstance(error, GeneratorExit) and (me is None or asyncio.current_task(me.get_loop()) is not me):
                raise  # and so is that: the dial is given up with its loop, which runs no more
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise ConfigError(f"address_map raised {_said(error)}") from error
        return dialled

    def _lost(self, connection: Connection) -> None:
        if self._sweeper is not None:
            self._sweeper.discard(connection)
        address = connection.data.get("address")
        if address is not None and self.by_address.get(address) is connection:
            del self.by_address[address]
            silence = asyncio.get_running_loop().time() - connection.heard_at
            # It has said something, or lasted so long that a back-off would make its dials no rarer.
            if connection.frames or silence > self.config.backoff_max:
                self._failures.pop(address, None)
            else:  # as of a proxy without a server behind it: dialled anew at once, it would be so for ever
                self._failed(address, connection.close_reason)
        if self._on_close is not None:
            self._on_close(connection)

    async def close(self, grace: float = 1.0) -> None:
        """Close every connection; pending requests fail at once, queued bytes have ``grace`` seconds to leave."""
        self._closed = True
        open_connections: list[Connection] = []
        try:
            await self._tasks.close()
        finally:
            # Also for one who is cancelled again and again: nobody else would close the sockets.
            for waiters in self._dials.values():
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_exception(NotConnectedError("the client was closed while it connected"))
            self._dials.clear()
            if self._sweeper is not None:
                open_connections += self._sweeper.connections
            for connection in open_connections:
                connection.close("this client closed it")
        await end_all(open_connections, grace)
        if self._sweeper is not None:
            self._sweeper.close()


def _said(error: BaseException) -> str:
    """Also of one whose __str__ fails."""
    return "".join(format_exception_only(error)).strip()


async def end_all(connections: list[Connection], grace: float) -> None:
    """Wait until closed connections are gone; those that are not within ``grace`` seconds lose what they had to
    write."""
    if not connections:
        return
    handle = asyncio.get_running_loop().call_later(grace, _abort_all, connections)
    for connection in connections:
        await connection.wait_closed()
    handle.cancel()  # not for one who is cancelled meanwhile: the sockets have to go all the same


def _abort_all(connections: list[Connection]) -> None:
    for connection in connections:
        connection.abort("it did not take its last bytes in time")


def _cause(error: OSError) -> str:
    """The error's own words with its number; create_connection hides several attempts in one error without a number."""
    if error.errno is None:
        return f"{type(error).__name__}: {error}"
    return f"{error.strerror or error} (errno {error.errno})"
