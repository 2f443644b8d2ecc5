"""The configuration of a running broker: 25 and 26."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aiorocket.broker import Broker
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.settings import Settings
from aiorocket.config import BrokerConfig, NameServerConfig
from aiorocket.errors import ConfigError
from aiorocket.nameserver.server import NameServer
from aiorocket.runtime.env import real_env
from aiorocket_protocol import (
    GetBrokerConfigResponseHeader,
    GetRouteInfoRequestHeader,
    TopicRouteData,
    decode_body,
    decode_configuration,
    encode_configuration,
)
from tests.broker.peer import Peer, running


async def shown(peer: Peer) -> dict[str, str]:
    answer = await peer.call(26)
    assert answer.code == 0, answer.remark
    return decode_configuration(answer.body)


async def change(peer: Peer, **values: Any) -> int:
    answer = await peer.call(25, None, encode_configuration({name: str(value) for name, value in values.items()}))
    return answer.code


async def test_what_is_shown_is_what_it_runs_with(peer: Peer, broker: Broker) -> None:
    found = await shown(peer)
    assert found["brokerName"] == "broker-a" and found["brokerClusterName"] == "DefaultCluster"
    assert found["listenPort"] == str(broker.port) and found["flushDiskType"] == "SYNC_FLUSH"
    assert found["transactionTimeOut"] == "6000" and found["autoCreateTopicEnable"] == "true"
    assert Settings(BrokerConfig()).properties()["messageDelayLevel"] == (
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )


async def test_a_change_works_at_once_and_its_version_grows(peer: Peer) -> None:
    async def version() -> str:
        return (await peer.call(26)).read(GetBrokerConfigResponseHeader).version

    before = await version()
    assert await change(peer, autoCreateTopicEnable="false", autoCreateSubscriptionGroup="false") == 0
    assert (await peer.send(topic="New")).code == 17
    assert (await peer.pull("SELF_TEST_TOPIC", consumer_group="new")).code == 26
    assert (await shown(peer))["autoCreateTopicEnable"] == "false" and await version() != before
    assert await change(peer, autoCreateTopicEnable="true") == 0
    assert (await peer.send(topic="New")).code == 0


async def test_topics_can_be_made_by_being_used_where_they_could_not(tmp_path: Path) -> None:
    async with running(auto_create_topics=False) as broker:
        peer = await Peer.connect(broker.port)
        assert (await peer.send()).code == 17
        assert await change(peer, autoCreateTopicEnable="true") == 0
        assert (await peer.send()).code == 0
        await peer.close()


async def test_a_change_outlives_the_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = real_env()
    config = BrokerConfig(port=0, data=str(tmp_path))
    async with running(config, env) as broker:
        peer = await Peer.connect(broker.port)
        assert await change(peer, transactionCheckMax=3, brokerPermission=4) == 0
        await peer.close()
    async with running(config, env) as broker:
        assert broker.transactions.max_checks == 3
        assert "settings changed while it ran are in force: {'transactionCheckMax': '3'" in caplog.text
    await env.disk.close()


async def test_a_broker_that_is_only_read_tells_the_name_server() -> None:
    env = real_env()
    nameserver = NameServer(env, NameServerConfig(port=0))
    await nameserver.start()
    async with running(nameservers=(nameserver.address,)) as broker:
        peer, asked = await Peer.connect(broker.port), await Peer.connect(nameserver.port)
        await peer.create_topic("T")

        async def perm(topic: str) -> int:
            answer = await asked.call(105, GetRouteInfoRequestHeader(topic))
            return decode_body(TopicRouteData, answer.body, answer.serialize_type).queue_datas[0].perm

        assert (await perm("T"), await perm("TBW102")) == (6, 7)
        assert await change(peer, brokerPermission=4) == 0
        assert (await perm("T"), await perm("TBW102")) == (4, 5)
        await peer.close(), await asked.close()
    await nameserver.close()
    await env.disk.close()


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"listenPort": "1"}, 16),
        ({"storePathRootDir": "/tmp/; rm -rf /"}, 16),
        ({"brokerConfigPath": "/etc/passwd"}, 29),
        ({"rocketmqHome": "$(id)"}, 29),
        ({"autoCreateTopicEnable": "maybe"}, 29),
        ({"transactionCheckMax": "0"}, 29),
        ({"transactionCheckMax": "-1"}, 29),
        ({"transactionTimeOut": "1e3"}, 29),
        ({"brokerPermission": "2"}, 29),
        ({"fileReservedTime": "-1"}, 29),
        ({"fileReservedTime": "nan"}, 29),
        ({"diskMaxUsedSpaceRatio": "5"}, 29),
        ({"diskMaxUsedSpaceRatio": "60", "deleteWhen": "24"}, 29),
        ({"autoCreateTopicEnable": "false", "rocketmqHome": "1"}, 29),
    ],
)
def test_what_is_refused_changes_nothing(values: dict[str, str], code: int) -> None:
    settings = Settings(BrokerConfig())
    before = settings.config
    refusal = settings.change(values)
    assert isinstance(refusal, Refusal) and refusal.code == code and next(iter(values)) in refusal.remark + str(values)
    assert settings.config is before and not settings.changed and settings.version == 0


def test_what_is_already_so_is_no_change() -> None:
    settings = Settings(BrokerConfig())
    assert settings.change(settings.properties()) is False and settings.version == 0


def test_damaged_settings_leave_the_rest() -> None:
    settings = Settings(BrokerConfig())
    settings.load({"version": 7, "changed": {"transactionCheckMax": "x", "gone": "1", "brokerPermission": "4"}})
    assert settings.changed == {"brokerPermission": "4"} and settings.version == 7


def test_what_is_saved_does_not_change_while_it_is_written() -> None:
    """It is read piece by piece in the thread that writes it."""
    settings = Settings(BrokerConfig())
    settings.change({"transactionCheckMax": "3"})
    saved = settings.to_dict()
    settings.change({"topicByteRate": "7"})
    assert saved["changed"] == {"transactionCheckMax": "3"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"access_key": "me"}, "secret_key is missing: access_key alone"),
        ({"secret_key": "12345678"}, "access_key is missing: secret_key alone"),
        ({"access_key": "me", "secret_key": "12345678", "credentials_file": "c.json"}, "credentials_file='c.json'"),
    ],
)
def test_keys_that_sign_nothing_are_refused(keys: dict[str, str], said: str) -> None:
    """Its registration was not signed, and nobody said why name servers refused it."""
    with pytest.raises(ConfigError, match=said) as caught:
        BrokerConfig(**keys)  # type: ignore[arg-type]  # some of its texts
    assert "12345678" not in str(caught.value)
