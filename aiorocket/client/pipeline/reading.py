"""For pipelines that read queues by offset, as no member of a group: a Session is all they start."""

from __future__ import annotations

from aiorocket.client.core.namespace import unwrap, wrap
from aiorocket.client.core.retry import BUSY_CODES, remote_error
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.queue_scan import Bounds, QueueScan
from aiorocket.client.session import Session

__all__ = ("BUSY_CODES", "Bounds", "QueueScan", "Session", "TopicRoute", "remote_error", "unwrap", "wrap")
