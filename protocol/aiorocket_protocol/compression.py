"""Message bodies compressed by the sender. zlib is always there; lz4 and zstandard are imported when first needed."""

from __future__ import annotations

import zlib
from typing import Any

from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import MAX_DECOMPRESSED

__all__ = (
    "COMPRESSION_LZ4",
    "COMPRESSION_MASK",
    "COMPRESSION_ZLIB",
    "COMPRESSION_ZSTD",
    "beginning",
    "compress",
    "decompress",
)

#: Bits of sysFlag; 0 is what old peers write for zlib.
COMPRESSION_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300

_CHUNK = 256 * 1024
#: Memory a zstd frame may ask for beside its content; the levels that compress in real time ask for 8 MiB at most.
_MAX_WINDOW = 32 * 1024 * 1024
_WHERE = "compressed body"


def compress(body: bytes, level: int = 5, compression: int = COMPRESSION_ZLIB) -> bytes:
    """``compression`` is one of the COMPRESSION_ bits. ProtocolError names the extra to install when a library is
    missing."""
    if compression in (0, COMPRESSION_ZLIB):
        return zlib.compress(body, level)
    if compression == COMPRESSION_LZ4:
        return bytes(_lz4().compress(body, compression_level=level))
    if compression == COMPRESSION_ZSTD:
        return bytes(_zstd().ZstdCompressor(level=level).compress(body))
    raise ProtocolError(f"type 0x{compression:x} is unknown", where=_WHERE)


def decompress(data: bytes, compression: int, limit: int = MAX_DECOMPRESSED) -> bytes:
    """``compression`` is ``sys_flag & COMPRESSION_MASK``. ProtocolError for damaged data or more than ``limit`` bytes
    of it."""
    if compression in (0, COMPRESSION_ZLIB):
        body = _unzlib(data, limit)
    elif compression == COMPRESSION_LZ4:
        body = _unlz4(data, limit)
    elif compression == COMPRESSION_ZSTD:
        body = _unzstd(data, limit)
    else:
        raise ProtocolError(f"type 0x{compression:x} is unknown", where=_WHERE)
    if len(body) > limit:
        raise ProtocolError(f"more than {limit} bytes when decompressed", where=_WHERE)
    return body


def beginning(data: bytes, compression: int, size: int) -> bytes:
    """The first ``size`` bytes of what ``decompress`` would give, or all there are, for the work of so many: nothing is
    known of what is behind them. ProtocolError for data that is damaged before that."""
    if size < 1:
        return b""  # zlib takes 0 for all there is
    if compression in (0, COMPRESSION_ZLIB):
        try:
            return zlib.decompressobj().decompress(data, size)
        except zlib.error as error:
            raise ProtocolError(f"not zlib: {error}", where=_WHERE) from None
    if compression == COMPRESSION_LZ4:
        stream = _lz4().LZ4FrameDecompressor()
        try:
            return bytes(stream.decompress(data, max_length=size))
        except (RuntimeError, ValueError, EOFError) as error:
            raise ProtocolError(f"not an LZ4 frame: {error}", where=_WHERE) from None
    if compression == COMPRESSION_ZSTD:
        zstd = _zstd()
        try:
            return bytes(zstd.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(data).read(size))
        except (zstd.ZstdError, MemoryError) as error:
            raise ProtocolError(f"not a zstd frame: {error}", where=_WHERE) from None
    raise ProtocolError(f"type 0x{compression:x} is unknown", where=_WHERE)


def _unzlib(data: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise ProtocolError(f"not zlib: {error}", where=_WHERE) from None
    if not stream.eof and len(body) <= limit:
        raise ProtocolError("zlib stream is cut off", where=_WHERE)
    return body


def _unlz4(data: bytes, limit: int) -> bytes:
    stream = _lz4().LZ4FrameDecompressor()
    try:
        body = bytes(stream.decompress(data, max_length=limit + 1))
    except (RuntimeError, ValueError, EOFError) as error:
        raise ProtocolError(f"not an LZ4 frame: {error}", where=_WHERE) from None
    if not stream.eof and len(body) <= limit:
        raise ProtocolError("LZ4 frame is cut off", where=_WHERE)
    return body


def _unzstd(data: bytes, limit: int) -> bytes:
    zstd = _zstd()
    try:
        size = zstd.frame_content_size(data)
        decompressor = zstd.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        if size > limit:
            raise ProtocolError(f"{size} bytes when decompressed; at most {limit}", where=_WHERE)
        if size > 0:
            return bytes(decompressor.decompress(data))
        # Empty, or streamed by the sender so that its size is unknown: measured in small pieces first, it may then be
        # unfolded as a whole.
        reader = decompressor.stream_reader(data)
        total = 0
        while piece := reader.read(_CHUNK):
            total += len(piece)
            if total > limit:
                raise ProtocolError(f"more than {limit} bytes when decompressed", where=_WHERE)
        stream = decompressor.decompressobj()
        body = bytes(stream.decompress(data))
    except (zstd.ZstdError, MemoryError) as error:
        raise ProtocolError(f"not a zstd frame: {error}", where=_WHERE) from None
    if not stream.eof:
        raise ProtocolError("zstd frame is cut off", where=_WHERE)
    return body


def _lz4() -> Any:
    try:
        import lz4.frame
    except ImportError:
        raise ProtocolError("LZ4 needs the extra: pip install aiorocketmq[lz4]", where=_WHERE) from None
    return lz4.frame


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise ProtocolError("ZSTD needs the extra: pip install aiorocketmq[zstd]", where=_WHERE) from None
    return zstandard
