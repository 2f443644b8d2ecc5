"""What makes ``format("rocketmq")`` work without ``register()``: Spark imports every top-level module whose name begins
with ``pyspark_`` and takes its ``DefaultSource``. Installed beside the package, not in it."""

from aiorocket.spark.source import RocketMQDataSource as DefaultSource

__all__ = ("DefaultSource",)
