"""Frames: ``length 4 · serialize type 1 · header length 3 · header · body`` (spec/frame.md).

One splitter serves the running system (a read goes straight into its buffer), asyncio streams, the tests and the
fuzzer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct

from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.fast import twin
from aiorocket_protocol.limits import MAX_FRAME, MAX_HEADER

__all__ = ("READ_SIZE", "Frame", "FrameSplitter", "cut_frames", "encode_frame")

#: serialize type, header bytes, body bytes.
Frame = tuple[int, bytes, bytes]

_WORDS = Struct(">II")
_unpack_words = _WORDS.unpack_from
_pack_words = _WORDS.pack

#: Reads of a busy connection go into this much; an idle connection keeps little or nothing, so that thousands of them
#: are cheap.
READ_SIZE = 256 * 1024
_FIRST_SIZE = 16 * 1024
#: A buffer grown for one large frame is kept for the next up to this size, else every large pull answer pays an
#: allocation.
_KEEP_SIZE = 2 * 1024 * 1024
#: How a TLS alert and a TLS handshake begin: what a peer sends that expects or offers TLS.
_TLS_RECORDS = (0x1503, 0x1603)


def encode_frame(serialize_type: int, header: bytes, body: bytes) -> bytes:
    """What the splitter gave, as it came. ProtocolError over MAX_FRAME."""
    length = 4 + len(header) + len(body)
    if length > MAX_FRAME - 4:
        raise ProtocolError(f"{length + 4} bytes; at most {MAX_FRAME} fit one frame", where="frame")
    return _pack_words(length, serialize_type << 24 | len(header)) + header + body


@twin
def cut_frames(view: memoryview, end: int) -> tuple[list[Frame], int, int]:
    """The frames that are whole in ``view[:end]``, where they end, and the size of the one that has begun there: 0 when
    not known, -1 when it is none."""
    frames: list[Frame] = []
    start = 0
    known = cut = None
    while end - start >= 8:
        words = length, word = _unpack_words(view, start)
        stop = start + 4 + length
        if words == known and stop <= end:  # as the one before, which was checked: one call in place of two slices
            if cut is None:
                cut = _parts(word & 0xFFFFFF, length - 4 - (word & 0xFFFFFF))
            header, body = cut(view, start + 8)
            frames.append((word >> 24, header, body))
            start = stop
            continue
        header_length = word & 0xFFFFFF
        if length > MAX_FRAME - 4 or header_length > length - 4 or header_length > MAX_HEADER:
            return frames, start, -1
        if stop > end:
            return frames, start, stop - start
        at = start + 8 + header_length
        frames.append((word >> 24, bytes(view[start + 8 : at]), bytes(view[at:stop]) if at < stop else b""))
        start, known, cut = stop, words, None
    return frames, start, 0


@lru_cache(64)
def _parts(header_length: int, body_length: int) -> Callable[[memoryview, int], tuple[bytes, bytes]]:
    """What takes header and body of these lengths out of a buffer."""
    unpack: Callable[..., tuple[bytes, bytes]] = Struct(f"{header_length}s{body_length}s").unpack_from
    return unpack


class FrameSplitter:
    """Cuts a byte stream into frames, whatever its fragmentation.

    Read into ``writable()``, then call ``received(n)``; or pass bytes to ``feed``. Memory grows with what has arrived,
    never with what a length word claims: to at most four times the bytes received and never beyond the frame.

    ``shared`` is a buffer of READ_SIZE that splitters may have in common when each read is followed by its
    ``received`` before another one of them is read into, as in one event loop: a splitter then has memory of its own
    only while a frame is incomplete, or while it is busy.

    After a bad length the stream cannot be followed any more. Frames before it in the same read are still returned;
    ``error`` is then set, and the next call raises it. Without such frames the call itself raises.
    """

    __slots__ = ("_end", "_shared", "_view", "error", "own")

    def __init__(self, shared: memoryview | None = None) -> None:
        self._shared = shared
        self._view = memoryview(bytearray(_FIRST_SIZE)) if shared is None else shared
        self._end = 0
        self.error: ProtocolError | None = None
        #: Bytes of the buffer that is not shared.
        self.own = 0 if shared is not None else _FIRST_SIZE

    @property
    def partial(self) -> bool:
        """A frame has begun and is not complete (or the stream is broken): silence from here on deserves a deadline."""
        return self._end > 0 or self.error is not None

    def writable(self) -> memoryview:
        """Where the next read goes; valid until ``received``. Never empty."""
        return self._view[self._end :] if self._end else self._view

    def received(self, count: int) -> list[Frame]:
        """The frames completed by ``count`` bytes written into ``writable()``. ProtocolError when the stream is no
        frame."""
        if self.error is not None:
            raise self.error
        view = self._view
        end = self._end + count
        frames, start, size = cut_frames(view, end)
        if size < 0:
            length, word = _unpack_words(view, start)
            self.error = _bad_frame(length, word & 0xFFFFFF)
            self._end = 0
            if frames:
                return frames
            raise self.error
        tail = end - start
        capacity = len(view)
        if start == 0 and end == capacity:
            self._grow(tail, size)
        elif view is self._shared:
            if tail:
                self._replace(READ_SIZE if end == capacity else max(_FIRST_SIZE, 2 * tail), start, end)
        elif start:
            if capacity > _KEEP_SIZE and tail <= READ_SIZE // 2:
                self._replace(READ_SIZE, start, end)
            elif capacity < READ_SIZE and end == capacity:
                # The read filled the small buffer: this connection is busy.
                self._replace(READ_SIZE, start, end)
            elif tail:
                view[:tail] = view[start:end]
            elif capacity < READ_SIZE and self._shared is not None:
                self._view = self._shared
                self.own = 0
        self._end = tail
        return frames

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """``received`` for bytes that are already in memory."""
        frames: list[Frame] = []
        source = memoryview(data)
        while source:
            space = self.writable()
            count = min(len(space), len(source))
            space[:count] = source[:count]
            source = source[count:]
            if self.error is not None and frames:
                return frames
            frames += self.received(count)
        if not data and self.error is not None:
            raise self.error
        return frames

    def _grow(self, tail: int, frame_size: int) -> None:
        """The buffer is full of one unfinished frame: four times as much, but not more than the frame."""
        self._replace(max(min(frame_size, 4 * tail), READ_SIZE), 0, tail)

    def _replace(self, capacity: int, start: int, end: int) -> None:
        buffer = memoryview(bytearray(capacity))
        buffer[: end - start] = self._view[start:end]
        # The old view may still be held by a loop that reads; it is dropped, never resized.
        self._view = buffer
        self.own = capacity


def _bad_frame(length: int, header_length: int) -> ProtocolError:
    if length > MAX_FRAME - 4:
        tls = " (this looks like TLS, where plain text is spoken)" if length >> 16 in _TLS_RECORDS else ""
        return ProtocolError(
            f"length field {length} (0x{length:08x}); at most {MAX_FRAME - 4} is allowed{tls}", where="frame"
        )
    if length < 4:
        return ProtocolError(f"length field {length}; at least 4 is needed", where="frame")
    if header_length <= length - 4:
        return ProtocolError(f"header of {header_length} bytes; at most {MAX_HEADER} are allowed", where="frame")
    return ProtocolError(f"header of {header_length} bytes in a frame with room for {length - 4}", where="frame")
