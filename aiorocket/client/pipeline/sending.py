"""For pipelines that prepare messages by themselves: ``producer.sender`` opens topics, draws ids and sends an
EncodedMessage, to a queue or in the turn of a key."""

from __future__ import annotations

from aiorocket.client.sending.outgoing import EncodedMessage, property_text, squeeze
from aiorocket.client.sending.producer import Producer
from aiorocket.client.sending.publish import Publish
from aiorocket.client.sending.sender import Sender
from aiorocket.client.sending.transaction import TransactionProducer

__all__ = ("EncodedMessage", "Producer", "Publish", "Sender", "TransactionProducer", "property_text", "squeeze")
