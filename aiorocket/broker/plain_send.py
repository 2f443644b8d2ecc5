"""The plainest sends, as many in one go as came behind each other.

Of SEND_MESSAGE_V2s with msgpack header, a known topic and queue, an id, and nothing that delays, times, retries or
prepares them, the way from the frames to the commit log and from the commit to the answers is one call each: in
compiled code where the fast lane is installed, else that of plain_run.py. It is the way of ``Connection``,
``SendHandlers`` and ``MessageStore.append``, which take every other send. A run of sends has one store timestamp.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from aiorocket.broker.answers import put_refusal, refuse
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.handlers.send import TRACE_ON, SendHandlers
from aiorocket.broker.plain_run import PlainSends
from aiorocket.remoting.connection import Connection, Plain
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import DEFAULT_REGION, MSGPACK, VERSION, RemotingCommand, RequestCode
from aiorocket_protocol.fast import compiled

if TYPE_CHECKING:
    from aiorocket.config import BrokerConfig
    from aiorocket.storage.store import MessageStore

__all__ = ("plain_sends",)


def plain_sends(
    config: BrokerConfig, tables: Tables, store: MessageStore, sends: SendHandlers, served: ProcessorTable
) -> Plain | None:
    """None where the broker has an IPv6 address, and where somebody judges requests before their handlers. It takes
    nothing while something stands around its handler (limits of rates)."""
    made = compiled("PlainSends") or PlainSends
    if type(served) is not ProcessorTable or len(store.store_host) != 8:
        return None
    plain: Plain = made(
        running_loop=asyncio.get_running_loop(),
        served_by=served.get,
        handler=sends.send_v2,
        topic=tables.topics.get,
        store=store,
        result=partial(tuple.__new__, PutResult),
        ok=PutStatus.OK,
        refused=_refused,
        max_body=config.max_message_size,
        max_properties=sends.max_user_properties,
        store_host=store.store_host,
        added=sends.added.encode(),
        region=DEFAULT_REGION,
        trace=TRACE_ON,
        version=VERSION,
        **store.appending(),
    )
    return plain


def _refused(connection: Connection, opaque: int, result: PutResult) -> None:
    request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque, serialize_type=MSGPACK)
    connection.reply(request, refuse(put_refusal(result)))
