"""RocketMQ for Spark: a data source and sink in plain Python, a session helper, and the steps of a pipeline.

Needs the extra ``spark`` (``pip install 'aiorocketmq[spark]'``). Every public name is imported when it is first used:
a Spark worker that reads a queue pays for nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorocket.spark import steps as steps
    from aiorocket.spark.failures import explain as explain
    from aiorocket.spark.fetch import DataLossError as DataLossError
    from aiorocket.spark.kafka import kafka_as_rocketmq as kafka_as_rocketmq
    from aiorocket.spark.kafka import rocketmq_as_kafka as rocketmq_as_kafka
    from aiorocket.spark.lag import LagListener as LagListener
    from aiorocket.spark.session import register as register
    from aiorocket.spark.session import spark_session as spark_session
    from aiorocket.spark.source import RocketMQDataSource as RocketMQDataSource

_HOME_OF = {
    "DataLossError": "fetch",
    "LagListener": "lag",
    "RocketMQDataSource": "source",
    "explain": "failures",
    "kafka_as_rocketmq": "kafka",
    "register": "session",
    "rocketmq_as_kafka": "kafka",
    "spark_session": "session",
}

__all__ = sorted([*_HOME_OF, "steps"])


def __getattr__(name: str) -> object:
    if name == "steps":
        return import_module("aiorocket.spark.steps")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'aiorocket.spark' has no attribute {name!r}")
    value = getattr(import_module(f"aiorocket.spark.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
