"""A finding made small: fewer requests, then fewer fields and less body, as long as the server still does the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from aiorocket.fuzz.findings import Finding, Sample
from aiorocket.fuzz.wire import connect
from aiorocket_protocol import FrameSplitter, ProtocolError, decode, encode
from aiorocket_protocol.fuzzing import Drawn

__all__ = ("replay", "shrink")

#: Requests that are on their way at once when a sample is sent again.
_WINDOW = 50
#: Seconds in which a server that has died may be back.
_BACK = 15.0


async def replay(server: str, frames: Sequence[Drawn], patience: float = 10.0) -> list[Finding]:
    """What the server does wrong when it is sent this on one connection."""
    try:
        wire = await connect(server, patience)
    except (OSError, TimeoutError) as error:
        return [Finding("crash", f"nobody answers at {server}: {str(error) or 'time is up'}")]
    try:
        for at in range(0, len(frames), _WINDOW):
            if not await wire.exchange(frames[at : at + _WINDOW], patience):
                break
    finally:
        wire.close()
    found = list(wire.findings)
    if wire.lost:
        try:
            (await connect(server, patience)).close()
        except (OSError, TimeoutError) as error:
            found.append(Finding("crash", f"nobody answers at {server} any more: {str(error) or 'time is up'}"))
    return found


async def shrink(sample: Sample, *, patience: float = 10.0, most: int = 120) -> Sample:
    """The smallest found in ``most`` tries, with what the server does wrong on it: to a request of the same code, which
    may be another one than it was. A server that has died and does not come back leaves it as it is."""
    wanted = sample.finding.kind, sample.finding.code
    shown = await _shown(sample.server, sample.frames, wanted, patience)
    if shown is None:
        return sample
    frames, tries = list(sample.frames), 1
    size = max(1, len(frames) // 2)
    while tries < most:
        smaller = None
        for candidate in _without(frames, size):
            tries += 1
            if (found := await _shown(sample.server, candidate, wanted, patience)) is not None:
                smaller, shown = candidate, found
                break
            if tries >= most:
                break
        if smaller is not None:
            frames = smaller
            size = min(size, max(1, len(frames) // 2))
        elif size > 1:
            size //= 2
        else:
            break
    for number in range(len(frames)):
        for drawn in _simpler(frames[number]):
            tries += 1
            candidate = [*frames[:number], drawn, *frames[number + 1 :]]
            if tries < most and (found := await _shown(sample.server, candidate, wanted, patience)) is not None:
                frames, shown = candidate, found
    return sample._replace(frames=frames, finding=shown, shrunk=True)


async def _shown(server: str, frames: Sequence[Drawn], wanted: tuple[str, int], patience: float) -> Finding | None:
    """A finding of this kind and code, if the server does so."""
    for _ in range(round(_BACK)):
        found = await replay(server, frames, patience)
        if found and found[0].kind == "crash" and wanted[0] != "crash":
            await asyncio.sleep(1)  # somebody starts it again, perhaps
            continue
        return next((each for each in found if (each.kind, each.code) == wanted), None)
    return None


def _without(frames: list[Drawn], size: int) -> Iterator[list[Drawn]]:
    if len(frames) > 1:
        for at in range(0, len(frames), size):
            left = frames[:at] + frames[at + size :]
            if left:
                yield left


def _simpler(drawn: Drawn) -> Iterator[Drawn]:
    """The same request with one field less, or without its body."""
    try:
        (frame,) = FrameSplitter().feed(drawn.data)
        command = decode(*frame)
    except (ValueError, ProtocolError):
        return
    if command.body:
        command.body = b""
        yield drawn._replace(data=encode(command, drawn.kind))
        command = decode(*frame)
    for name in list(command.ext or {}):
        ext = dict(command.ext or {})
        del ext[name]
        command.ext = ext
        try:
            yield drawn._replace(data=encode(command, drawn.kind))
        except ProtocolError:
            return
