"""RocketMQ for asyncio: producer, consumers, name server and a durable broker on one event loop.

Every public name is here and is imported when it is first used, so that ``import aiorocket`` and the command line
start quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorocket.client.bulk import SendOutcome as SendOutcome
    from aiorocket.client.consumer import Consumer as Consumer
    from aiorocket.client.exits import DeadLetter as DeadLetter
    from aiorocket.client.exits import Retry as Retry
    from aiorocket.client.exits import Skip as Skip
    from aiorocket.client.message import Message as Message
    from aiorocket.client.producer import Producer as Producer
    from aiorocket.client.router import Router as Router
    from aiorocket.client.session import Client as Client
    from aiorocket.client.state import ConsumerState as ConsumerState
    from aiorocket.config import BrokerConfig as BrokerConfig
    from aiorocket.config import ClientConfig as ClientConfig
    from aiorocket.config import ConsumerConfig as ConsumerConfig
    from aiorocket.config import NameServerConfig as NameServerConfig
    from aiorocket.config import ProducerConfig as ProducerConfig
    from aiorocket.config import RemotingConfig as RemotingConfig
    from aiorocket.config import StoreConfig as StoreConfig
    from aiorocket.embedded import Embedded as Embedded
    from aiorocket.embedded import embed as embed
    from aiorocket.errors import BackPressureError as BackPressureError
    from aiorocket.errors import BrokerBusyError as BrokerBusyError
    from aiorocket.errors import ConfigError as ConfigError
    from aiorocket.errors import ConnectionLostError as ConnectionLostError
    from aiorocket.errors import NotConnectedError as NotConnectedError
    from aiorocket.errors import ProtocolError as ProtocolError
    from aiorocket.errors import RemoteError as RemoteError
    from aiorocket.errors import RequestTimeoutError as RequestTimeoutError
    from aiorocket.errors import RocketError as RocketError
    from aiorocket.errors import SendError as SendError
    from aiorocket.errors import StoreCorruptedError as StoreCorruptedError
    from aiorocket.errors import StoreError as StoreError
    from aiorocket.errors import StoreFullError as StoreFullError
    from aiorocket.errors import StoreLockedError as StoreLockedError
    from aiorocket.errors import TopicNotFoundError as TopicNotFoundError
    from aiorocket.errors import UsageError as UsageError
    from aiorocket.model import OutgoingMessage as OutgoingMessage
    from aiorocket.model import Queue as Queue
    from aiorocket.model import SendReceipt as SendReceipt
    from aiorocket.model import SendStatus as SendStatus
    from aiorocket.runtime.loop import run as run

_HOMES = {
    "client.bulk": "SendOutcome",
    "client.consumer": "Consumer",
    "client.exits": "DeadLetter Retry Skip",
    "client.message": "Message",
    "client.producer": "Producer",
    "client.router": "Router",
    "client.session": "Client",
    "client.state": "ConsumerState",
    "config": "BrokerConfig ClientConfig ConsumerConfig NameServerConfig ProducerConfig RemotingConfig StoreConfig",
    "embedded": "Embedded embed",
    "errors": (
        "BackPressureError BrokerBusyError ConfigError ConnectionLostError NotConnectedError ProtocolError RemoteError "
        "RequestTimeoutError RocketError SendError StoreCorruptedError StoreError StoreFullError StoreLockedError "
        "TopicNotFoundError UsageError"
    ),
    "model": "OutgoingMessage Queue SendReceipt SendStatus",
    "runtime.loop": "run",
}
_HOME_OF = {name: f"aiorocket.{home}" for home, names in _HOMES.items() for name in names.split()}

__version__ = "0.1.0"
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'aiorocket' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
