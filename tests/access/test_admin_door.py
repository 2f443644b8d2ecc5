"""Administration of servers that other machines reach and that have no access control."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import pytest

from aiorocket.access.admin_door import share_listener
from aiorocket.config import BrokerConfig, ClientConfig, NameServerConfig, RemotingConfig
from aiorocket.errors import ConfigError, NotConnectedError, UsageError
from aiorocket.nameserver import NameServer
from aiorocket.remoting import RemotingClient
from aiorocket.runtime.env import memory_env
from aiorocket_protocol import RemotingCommand, RequestCode
from aiorocket_protocol.signing import Signer
from tests.broker.peer import running

OPEN = {"host": "0.0.0.0", "advertise": "127.0.0.1", "port": 0}
TOKEN = "sixteen characters at least"
LIST = int(RequestCode.GET_ALL_TOPIC_CONFIG)


async def answer(address: str, code: int = LIST, signer: Signer | None = None) -> RemotingCommand:
    client = RemotingClient(memory_env(), ClientConfig().remoting, signer=signer)
    try:
        return await client.request(address, RemotingCommand.request(code), 5.0)
    finally:
        await client.close()


async def test_a_stranger_is_told_the_three_ways() -> None:
    async with running(**OPEN) as broker:
        refused = await answer(broker.address)
    assert refused.code == 16
    for way in ("--admin-bind", "--admin-token-file", "--acl", "code 21"):
        assert way in (refused.remark or "")


async def test_an_administration_listener_on_tcp_and_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    async with running(**OPEN, admin_bind="127.0.0.1:0") as broker, running(**OPEN, admin_bind=f"unix:{path}") as unix:
        assert (await answer(broker._security.door.address)).code == 0
        assert (await answer(broker.address)).code == 16, "the other listener serves what it did"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await answer(f"unix:{path}")).code == 0
        assert (await answer(unix.address)).code == 16
        with pytest.raises(UsageError, match="another server listens there"):
            async with running(**OPEN, admin_bind=f"unix:{path}"):
                pass
        assert (await answer(f"unix:{path}")).code == 0, "who came second took nothing away"
    with pytest.raises(NotConnectedError, match="unix:"):
        await answer(f"unix:{path}")


async def test_what_an_ended_server_left_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    left, file = tmp_path / "left.sock", tmp_path / "file"
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(left))
    file.write_text("mine")
    async with running(**OPEN, admin_bind=f"unix:{left}"):
        assert (await answer(f"unix:{left}")).code == 0
    with pytest.raises(UsageError, match="unix socket"):
        async with running(**OPEN, admin_bind=f"unix:{file}"):
            pass
    assert file.read_text() == "mine"


async def test_a_token_gives_administration_to_who_signs_with_it() -> None:
    async with running(**OPEN, admin_token=TOKEN) as broker:
        assert (await answer(broker.address, signer=Signer("admin", TOKEN))).code == 0
        for signer in (None, Signer("admin", "sixteen characters at most."), Signer("root", TOKEN)):
            assert (await answer(broker.address, signer=signer)).code == 16


async def test_a_name_server_has_the_same(tmp_path: Path) -> None:
    ask = int(RequestCode.GET_NAMESRV_CONFIG)
    env = memory_env()
    config = NameServerConfig(host="0.0.0.0", port=0, admin_token=TOKEN, admin_bind=f"unix:{tmp_path / 'n'}")
    server = NameServer(env, config)
    await server.start()
    try:
        address = f"127.0.0.1:{server.port}"
        assert (await answer(address, ask)).code == 16
        assert (await answer(address, ask, Signer("admin", TOKEN))).code == 0
        assert (await answer(f"unix:{tmp_path / 'n'}", ask)).code == 0
    finally:
        await server.close()
        await env.disk.close()


async def test_one_listener_serves_both_servers_of_a_process(tmp_path: Path) -> None:
    names_ask, route = int(RequestCode.GET_NAMESRV_CONFIG), int(RequestCode.GET_BROKER_CLUSTER_INFO)
    env = memory_env()
    names = NameServer(env, NameServerConfig(host="0.0.0.0", port=0))
    admin = f"unix:{tmp_path / 'admin'}"
    async with running(**OPEN, admin_bind=admin) as broker:
        share_listener(broker.server.processors, names.processors)
        for code in (LIST, names_ask, route):
            assert (await answer(admin, code)).code == 0
        names.processors.replace(names_ask, lambda connection, command: RemotingCommand.response(remark="replaced"))
        assert (await answer(admin, names_ask)).remark == "replaced"
        for code in (names_ask, route):
            told = await answer(broker.address, code)
            assert (
                told.code == 3
                and told.remark
                == (await answer(broker.address, 9999)).remark.replace("9999", f"{code}")
                + f" ({RequestCode(code).name})"
            ), "elsewhere a broker is what it was"
        assert (await answer(admin, int(RequestCode.REGISTER_BROKER))).code == 3
    await env.disk.close()


@pytest.mark.parametrize("bind", ["10912", "host:", "unix:", ":1", "a:99999"])
async def test_an_address_that_is_none_is_refused(bind: str) -> None:
    with pytest.raises(ConfigError, match="admin_bind"):
        async with running(BrokerConfig(**OPEN, admin_bind=bind)):  # type: ignore[arg-type]  # OPEN has texts and numbers
            pass


async def test_a_short_token_is_refused_and_no_token_is_shown() -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        async with running(**OPEN, admin_token="short"):
            pass
    assert TOKEN not in repr(BrokerConfig(admin_token=TOKEN)) + repr(NameServerConfig(admin_token=TOKEN))


async def test_strangers_who_take_every_connection_leave_the_administrator_one(tmp_path: Path) -> None:
    admin = f"unix:{tmp_path / 'admin'}"
    limits = RemotingConfig(max_connections=3, max_per_host=2)
    async with running(**OPEN, admin_bind=admin, remoting=limits) as broker:
        strangers = [await asyncio.open_connection("127.0.0.1", broker.port) for _ in range(8)]
        while broker.server.refused < 6:
            await asyncio.sleep(0.01)
        for _ in range(5):
            assert (await answer(admin)).code == 0
        for _, writer in strangers:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
