"""The broker: stores messages, serves pulls, keeps groups and offsets."""

from aiorocket.broker.broker import Broker

__all__ = ("Broker",)
