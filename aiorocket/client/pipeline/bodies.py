"""What a listener's body is read by, for pipelines that read the same bodies."""

from __future__ import annotations

from aiorocket.client.core.typed_body import CONTENT_TYPE, decoder

__all__ = ("CONTENT_TYPE", "decoder")
