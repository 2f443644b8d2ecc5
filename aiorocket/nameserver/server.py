"""The name server: the codes of the wire, around a table of routes and a table of key-values."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from aiorocket.access.core.accounts import Accounts
from aiorocket.access.core.requests import is_registration
from aiorocket.access.handlers import AccessHandlers
from aiorocket.access.security import Security
from aiorocket.config import NameServerConfig
from aiorocket.nameserver.broker_lists import BrokerLists
from aiorocket.nameserver.core.kv import KeyValues
from aiorocket.nameserver.core.routes import BrokerReport, RouteInfo
from aiorocket.nameserver.key_values import KeyValueHandlers
from aiorocket.nameserver.local import from_here
from aiorocket.nameserver.reported import reported
from aiorocket.nameserver.settings import SettingsHandlers
from aiorocket.nameserver.state_file import StateFile
from aiorocket.nameserver.topic_lists import TopicLists
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.one_at_a_time import OneAtATime
from aiorocket.remoting.processors import RequestHandler
from aiorocket.remoting.server import RemotingServer
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket.runtime.env import Env
from aiorocket.runtime.tasks import TaskScope
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    DEFAULT_CLUSTER,
    MAX_LENIENT,
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    BrokerHeartbeatRequestHeader,
    DataVersion,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    ProtocolError,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
    decode_body,
    encode_body,
)

__all__ = ("NameServer",)

_log = logging.getLogger("aiorocket.nameserver")

#: The KV namespace whose table rides on every answer to a registration.
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class NameServer:
    """Answers who carries a topic. Brokers register here and are forgotten when their connection or lease ends.

    ``start()`` binds (UsageError when the port is taken); ``address`` and ``port`` are valid afterwards; ``close()``
    ends it. Without authentication the codes that change something for everyone are served only when bound to loopback.
    """

    def __init__(self, env: Env, config: NameServerConfig, accounts: Accounts | None = None) -> None:
        self.config = config
        self._env = env
        self.routes = RouteInfo(config.broker_expiry, config.limits)
        self.kv = KeyValues(config.limits.key_values)
        self._kv_file = StateFile(env, config.data, "kvConfig") if config.data is not None else None
        self._key_values = KeyValueHandlers(self.kv, self._kv_file)
        self._security = security = Security(env, config, accounts)
        self.processors = processors = security.processors(cluster=DEFAULT_CLUSTER, server="nameserver")
        self._server = RemotingServer(env, processors, config.remoting, on_close=self._lost, tls=security.tls)
        self._settings = SettingsHandlers(config, self.kv, port=lambda: self.port, changed=self._key_values.changed)
        self._tasks = TaskScope("nameserver")
        self._expiry: DeadlineDriver | None = None
        self._heard = False  # of any broker since the start
        self._forgetting = False
        self._reading = asyncio.Lock()  # of a registration, which what comes behind it waits for
        self._access_file: StateFile | None = None  # of users made by command, when they are this server's own
        if config.data is not None and accounts is None and security.accounts is not None:
            self._access_file = StateFile(env, config.data, "access")
            names = "nameserver", DEFAULT_CLUSTER, config.host
            access = AccessHandlers(security.accounts, self._save_accounts, config.limits, *names)
            for code, handler in access.codes().items():
                processors.add(code, handler)
        for code, handler in self._codes().items():
            if is_registration(code) and not security.door.open and not config.open_registration:
                handler = partial(from_here, handler)
            processors.add(code, security.door.guarded(code, handler))

    async def start(self) -> None:
        """Load the key-values and listen. StoreLockedError when another name server has them."""
        self._expiry = DeadlineDriver(asyncio.get_running_loop(), self.routes.next_deadline, self._expire)
        if self._kv_file is not None:
            self.kv.load(await self._kv_file.load())
        if self._access_file is not None and self.accounts is not None and (users := await self._access_file.load()):
            self.accounts.load(users)
        await self._server.start(self.config.host, self.config.port)
        opened = ("every broker's word is taken",) if self.config.open_registration else ()
        await self._security.open(self._server, self.config.host, "the name server", *opened)
        if self._security.changes:
            self._tasks.start(self._security.keep_fresh(), name="security")

    async def close(self) -> None:
        """Stop listening and end every connection. A second call does nothing."""
        if self._expiry is None:
            return
        self._expiry.close()
        self._expiry = None
        await self._tasks.close()
        await self._server.close()
        for file in filter(None, (self._kv_file, self._access_file)):
            file.close()

    async def _save_accounts(self) -> None:
        if self._access_file is not None and self.accounts is not None:
            await self._access_file.save(self.accounts.later())

    def reload(self) -> None:
        """Read the access file and the certificates again."""
        self._security.reload()

    @property
    def accounts(self) -> Accounts | None:
        """Who may do what; None without access control."""
        return self._security.accounts

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def address(self) -> str:
        """``host:port`` as bound."""
        return self._server.address

    def _codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_KV_CONFIG: self._key_values.get,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            **self._lists(),
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.PUT_KV_CONFIG: self._key_values.put,
            RequestCode.DELETE_KV_CONFIG: self._key_values.delete,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            **self._settings.codes(),
        }

    def _lists(self) -> dict[int, RequestHandler]:
        """Of everything there is; clients ask for them seldom."""
        lists: dict[int, RequestHandler] = {
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._key_values.all_of,
            **TopicLists(self.routes).codes(),
            **BrokerLists(self.routes).codes(),
        }
        whole = OneAtATime().whole
        return {code: whole(handler) for code, handler in lists.items()}

    # ---- routes

    def _route(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topic = command.read(GetRouteInfoRequestHeader).topic
        order = self.kv.get(ORDER_TOPIC_CONFIG, topic) if self._settings.order_topics else None
        route = self.routes.topic_route(topic, order)
        if route is None and not self._heard:
            # Just (re)started: who is told "no such topic" gives up, and the brokers are about to register.
            remark = "no broker has registered with this name server since it started"
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark=remark)
        if route is None:
            return RemotingCommand.response(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info in name server for the topic: {topic:.200}"
            )
        return _body(connection, command, route)

    async def _delete_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = command.read(DeleteTopicFromNamesrvRequestHeader)
        async with self._reading:
            self.routes.delete_topic(header.topic, header.cluster_name)
        return RemotingCommand.response()

    async def _wipe_write_perm(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = command.read(WipeWritePermOfBrokerRequestHeader).broker_name
        async with self._reading:
            count = await in_turns(self.routes.setting_writable(name, False))
        return RemotingCommand.response(header=WipeWritePermOfBrokerResponseHeader(count))

    async def _add_write_perm(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = command.read(AddWritePermOfBrokerRequestHeader).broker_name
        async with self._reading:
            count = await in_turns(self.routes.setting_writable(name, True))
        return RemotingCommand.response(header=AddWritePermOfBrokerResponseHeader(count))

    # ---- brokers

    async def _register(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        header = command.read(RegisterBrokerRequestHeader)
        async with self._reading:  # in the order in which they came
            version, topics = await reported(command, header, self.config.limits.broker_topics)
            if connection.closed:
                return None
            expiry, now = header.heartbeat_timeout_millis, asyncio.get_running_loop().time()
            lease = expiry / 1000 if expiry and expiry > 0 else None
            who = header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
            report = BrokerReport(*who, topics, version, lease, header.enable_acting_master)
            known = self.routes.holder(header.broker_name, header.broker_id)
            refusal = await in_turns(self.routes.registering(report, connection=connection, now=now))
        if connection.closed:  # it may have been while its topics were counted
            self._lost(connection)
            return None
        self._heard = True
        if refusal is not None:
            _log.warning("registration of %s from %s refused: %s", header.broker_name, connection.peer, refusal)
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark=refusal)
        if known != header.broker_addr:
            _log.info("broker %s id %d registered at %s", header.broker_name, header.broker_id, header.broker_addr)
        self._rearm()
        master = self.routes.holder(header.broker_name, 0) or ""
        answer = RegisterBrokerResponseHeader(ha_server_addr="", master_addr="" if header.broker_id == 0 else master)
        try:
            body = await in_turns(self._key_values.written(ORDER_TOPIC_CONFIG, connection.reply_type(command)))
        except ProtocolError as error:
            _log.warning("brokers are not told which topics are ordered: %s", error)
            body = b""
        return RemotingCommand.response(header=answer, body=body)

    async def _unregister(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = command.read(UnRegisterBrokerRequestHeader)
        async with self._reading:
            if self.routes.unregister(header.broker_name, header.broker_id, header.broker_addr, header.cluster_name):
                _log.info("broker %s id %d unregistered", header.broker_name, header.broker_id)
        self._forget()
        self._rearm()
        return RemotingCommand.response()

    def _query_data_version(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header, now = command.read(QueryDataVersionRequestHeader), asyncio.get_running_loop().time()
        asked = DataVersion(0, 0)
        if command.body:
            asked = decode_body(DataVersion, command.body, command.serialize_type, lenient=MAX_LENIENT)
        known = self.routes.renew(*header, asked, now)
        self._rearm()
        response = RemotingCommand.response(header=QueryDataVersionResponseHeader(changed=known != asked))
        if known is not None:
            response.body = encode_body(known, connection.reply_type(command))
        return response

    def _broker_heartbeat(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header, now = command.read(BrokerHeartbeatRequestHeader), asyncio.get_running_loop().time()
        self.routes.touch(header.broker_name, header.broker_addr, header.cluster_name, header.broker_id or 0, now)
        self._rearm()
        return RemotingCommand.response()

    # ---- leases

    def _rearm(self) -> None:
        if self._expiry is not None:
            self._expiry.update()

    def _expire(self, now: float) -> None:
        for address in self.routes.expire(now):
            _log.warning("broker at %s has not registered in time, its routes are dropped", address)
        self._forget()

    def _lost(self, connection: Connection) -> None:
        for address in self.routes.lost(connection):
            _log.info("broker at %s closed its connection, its routes are dropped", address)
        self._forget()
        self._rearm()

    def _forget(self) -> None:
        """The topics of who has gone, in turns."""
        if not self._forgetting and self.routes.is_leaving:
            self._forgetting = True
            asyncio.get_running_loop().call_soon(self._forget_some)

    def _forget_some(self) -> None:
        self._forgetting = self.routes.forget()
        if self._forgetting:
            asyncio.get_running_loop().call_soon(self._forget_some)


def _body(connection: Connection, command: RemotingCommand, value: Any) -> RemotingCommand:
    return RemotingCommand.response(body=encode_body(value, connection.reply_type(command)))
