"""RocketMQ for asyncio: producer, consumers, name server and a durable broker on one event loop.

Every public name is here and is imported when it is first used, so that ``import aiorocket`` and the command line
start quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorocket.broker.core.counters import SendBack as SendBack
    from aiorocket.client.admin.admin import Admin as Admin
    from aiorocket.client.admin.dead_letters import DeadLetters as DeadLetters
    from aiorocket.client.admin.dead_letters import DeadMessage as DeadMessage
    from aiorocket.client.admin.replay import REPLAY_ID as REPLAY_ID
    from aiorocket.client.admin.replay import ReplayOutcome as ReplayOutcome
    from aiorocket.client.admin.replay import ReplayReport as ReplayReport
    from aiorocket.client.app import Client as Client
    from aiorocket.client.core.balance import fixed as fixed
    from aiorocket.client.core.balance import machine_room as machine_room
    from aiorocket.client.core.balance import machine_room_nearby as machine_room_nearby
    from aiorocket.client.core.stats import ConsumeStats as ConsumeStats
    from aiorocket.client.core.stats import ConsumeStatus as ConsumeStatus
    from aiorocket.client.core.typed_body import Body as Body
    from aiorocket.client.exits import DeadLetter as DeadLetter
    from aiorocket.client.exits import LeaseLost as LeaseLost
    from aiorocket.client.exits import Retry as Retry
    from aiorocket.client.exits import Skip as Skip
    from aiorocket.client.group.rebalance_hooks import RebalanceHooks as RebalanceHooks
    from aiorocket.client.health import BrokerHealth as BrokerHealth
    from aiorocket.client.health import ConsumerHealth as ConsumerHealth
    from aiorocket.client.health import Health as Health
    from aiorocket.client.message import Message as Message
    from aiorocket.client.middleware import ConsumeNext as ConsumeNext
    from aiorocket.client.middleware import Middleware as Middleware
    from aiorocket.client.middleware import PublishNext as PublishNext
    from aiorocket.client.pop.popped import PoppedMessage as PoppedMessage
    from aiorocket.client.pop.simple_consumer import SimpleConsumer as SimpleConsumer
    from aiorocket.client.pull.pull_consumer import PullConsumer as PullConsumer
    from aiorocket.client.push.batch_listener import Batch as Batch
    from aiorocket.client.push.consumer import Consumer as Consumer
    from aiorocket.client.push.hooks import ConsumeContext as ConsumeContext
    from aiorocket.client.push.hooks import ConsumeHook as ConsumeHook
    from aiorocket.client.push.hooks import ConsumeReturnType as ConsumeReturnType
    from aiorocket.client.push.router import Router as Router
    from aiorocket.client.push.status import ConsumeConcurrentlyContext as ConsumeConcurrentlyContext
    from aiorocket.client.push.status import ConsumeConcurrentlyStatus as ConsumeConcurrentlyStatus
    from aiorocket.client.push.status import ConsumeOrderlyContext as ConsumeOrderlyContext
    from aiorocket.client.push.status import ConsumeOrderlyStatus as ConsumeOrderlyStatus
    from aiorocket.client.sending.bulk import SendOutcome as SendOutcome
    from aiorocket.client.sending.producer import Producer as Producer
    from aiorocket.client.sending.send_hooks import SendContext as SendContext
    from aiorocket.client.sending.send_hooks import SendHook as SendHook
    from aiorocket.client.sending.sender import OnewayOptions as OnewayOptions
    from aiorocket.client.sending.sender import SendOptions as SendOptions
    from aiorocket.client.sending.transaction import Transaction as Transaction
    from aiorocket.client.sending.transaction import TransactionProducer as TransactionProducer
    from aiorocket.client.sending.transaction import TransactionResult as TransactionResult
    from aiorocket.client.state import ConsumerState as ConsumerState
    from aiorocket.config import BrokerConfig as BrokerConfig
    from aiorocket.config import ClientConfig as ClientConfig
    from aiorocket.config import ConsumerConfig as ConsumerConfig
    from aiorocket.config import NameServerConfig as NameServerConfig
    from aiorocket.config import ProducerConfig as ProducerConfig
    from aiorocket.config import PullConsumerConfig as PullConsumerConfig
    from aiorocket.config import RateLimits as RateLimits
    from aiorocket.config import RemotingConfig as RemotingConfig
    from aiorocket.config import StoreConfig as StoreConfig
    from aiorocket.config import TlsConfig as TlsConfig
    from aiorocket.embedded import Embedded as Embedded
    from aiorocket.embedded import embed as embed
    from aiorocket.errors import BackPressureError as BackPressureError
    from aiorocket.errors import BadNameError as BadNameError
    from aiorocket.errors import BodyError as BodyError
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
    from aiorocket.errors import WrongLoopError as WrongLoopError
    from aiorocket.model import OutgoingMessage as OutgoingMessage
    from aiorocket.model import Queue as Queue
    from aiorocket.model import SendReceipt as SendReceipt
    from aiorocket.model import SendStatus as SendStatus
    from aiorocket.model import TxState as TxState
    from aiorocket.runtime.loop import run as run

_HOMES = {
    "broker.core.counters": "SendBack",
    "client.admin.admin": "Admin",
    "client.app": "Client",
    "client.push.batch_listener": "Batch",
    "client.sending.bulk": "SendOutcome",
    "client.push.consumer": "Consumer",
    "client.core.balance": "fixed machine_room machine_room_nearby",
    "client.core.stats": "ConsumeStats ConsumeStatus",
    "client.core.typed_body": "Body",
    "client.admin.dead_letters": "DeadLetters DeadMessage",
    "client.exits": "DeadLetter LeaseLost Retry Skip",
    "client.health": "BrokerHealth ConsumerHealth Health",
    "client.push.hooks": "ConsumeContext ConsumeHook ConsumeReturnType",
    "client.message": "Message",
    "client.middleware": "ConsumeNext Middleware PublishNext",
    "client.sending.producer": "Producer",
    "client.pop.popped": "PoppedMessage",
    "client.pull.pull_consumer": "PullConsumer",
    "client.pop.simple_consumer": "SimpleConsumer",
    "client.group.rebalance_hooks": "RebalanceHooks",
    "client.admin.replay": "REPLAY_ID ReplayOutcome ReplayReport",
    "client.push.router": "Router",
    "client.sending.send_hooks": "SendContext SendHook",
    "client.sending.sender": "OnewayOptions SendOptions",
    "client.state": "ConsumerState",
    "client.push.status": (
        "ConsumeConcurrentlyContext ConsumeConcurrentlyStatus ConsumeOrderlyContext ConsumeOrderlyStatus"
    ),
    "client.sending.transaction": "Transaction TransactionProducer TransactionResult",
    "config": (
        "BrokerConfig ClientConfig ConsumerConfig NameServerConfig ProducerConfig PullConsumerConfig RateLimits "
        "RemotingConfig StoreConfig TlsConfig"
    ),
    "embedded": "Embedded embed",
    "errors": (
        "BackPressureError BadNameError BodyError BrokerBusyError ConfigError ConnectionLostError NotConnectedError "
        "ProtocolError RemoteError RequestTimeoutError RocketError SendError StoreCorruptedError StoreError "
        "StoreFullError StoreLockedError TopicNotFoundError UsageError WrongLoopError"
    ),
    "model": "OutgoingMessage Queue SendReceipt SendStatus TxState",
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
