"""Settings, one frozen dataclass per concern: durations in seconds, sizes in bytes, rules across fields checked.

Each class is made when it is first asked for: a broker's process needs none of the client's, and they take longer to
make than a message takes through it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorocket.config.client import BROKER_LOCK as BROKER_LOCK
    from aiorocket.config.client import DEFAULT_NAMESERVER as DEFAULT_NAMESERVER
    from aiorocket.config.client import ClientConfig as ClientConfig
    from aiorocket.config.client import ConsumerConfig as ConsumerConfig
    from aiorocket.config.client import MissingTopics as MissingTopics
    from aiorocket.config.client import ProducerConfig as ProducerConfig
    from aiorocket.config.client import PullConsumerConfig as PullConsumerConfig
    from aiorocket.config.limits import Limits as Limits
    from aiorocket.config.remoting import RemotingConfig as RemotingConfig
    from aiorocket.config.remoting import Serializer as Serializer
    from aiorocket.config.server import DELAY_LEVELS as DELAY_LEVELS
    from aiorocket.config.server import BrokerConfig as BrokerConfig
    from aiorocket.config.server import Flush as Flush
    from aiorocket.config.server import NameServerConfig as NameServerConfig
    from aiorocket.config.server import RateLimits as RateLimits
    from aiorocket.config.server import StoreConfig as StoreConfig
    from aiorocket.config.tls import ServerTlsConfig as ServerTlsConfig
    from aiorocket.config.tls import TlsConfig as TlsConfig

_HOMES = {
    "client": (
        "BROKER_LOCK ClientConfig ConsumerConfig DEFAULT_NAMESERVER MissingTopics ProducerConfig PullConsumerConfig"
    ),
    "limits": "Limits",
    "remoting": "RemotingConfig Serializer",
    "server": "BrokerConfig DELAY_LEVELS Flush NameServerConfig RateLimits StoreConfig",
    "tls": "ServerTlsConfig TlsConfig",
}
_HOME_OF = {name: f"aiorocket.config.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'aiorocket.config' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
