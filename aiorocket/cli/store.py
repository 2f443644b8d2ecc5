"""``aiorocket store verify|repair|dump|salvage``"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from aiorocket.broker.core.delay import DelaySchedule
from aiorocket.broker.core.queue_codes import queue_codes
from aiorocket.cli.counts import counted
from aiorocket.cli.running import run, told_in_a_line
from aiorocket.config import DELAY_LEVELS, StoreConfig
from aiorocket.errors import ProtocolError, StoreCorruptedError, StoreError
from aiorocket.runtime.disk import RealDisk
from aiorocket.runtime.env import real_env
from aiorocket.storage.checkup import Finding, Survey, records, salvage, state_files, survey
from aiorocket.storage.queue_recovery import Codes
from aiorocket.storage.snapshots import Snapshot
from aiorocket.storage.store import MessageStore
from aiorocket_protocol import RecordView

__all__ = ("store",)

_SHOWN = 20
_json = click.option("--json", "as_json", is_flag=True, help="As JSON on standard output.")
_directory = click.argument("directory", type=click.Path(exists=True, file_okay=False))


@click.group()
def store() -> None:
    """Look through the data directory of a broker that is not running, and mend it.

    A broker finds the same damage itself and goes on around it; this says what there is, before or instead of a start.
    """


@store.command()
@_directory
@_json
def verify(directory: str, as_json: bool) -> None:
    """Read all of DIRECTORY and say what is damaged. Changes nothing.

    Exit code 0: nothing is damaged; 1: something is.
    """
    with told_in_a_line(), _locked(directory) as disk:
        found = survey(disk, directory, _progress("verify"), _codes())
    _tell(directory, found, as_json)
    sys.exit(1 if found.findings else 0)


@store.command()
@_directory
@_json
def repair(directory: str, as_json: bool) -> None:
    """Mend DIRECTORY: what is derived is made again from the log, damaged ranges of the log are recorded as gaps.

    Intact messages stay where they are. State files of which no generation is good are put aside as NAME.damaged.
    Exit code 0: the store starts; messages that are lost are named.
    """
    with told_in_a_line(), _locked(directory) as disk:
        found = survey(disk, directory, _progress("verify"), _codes())
        _tell(directory, found, as_json)
        for snapshot in state_files(disk, directory):
            _mend_state(disk, snapshot.path)
        for finding in found.findings:
            if finding.kind == "queue":
                _remove(disk, finding.file)  # a start makes those that are missing again
            elif finding.kind == "checksums" and disk.exists(finding.file):
                disk.unlink(finding.file)
    run(_start_once(directory))
    if not as_json:
        click.echo(f"{directory} is mended: {counted(found.lost, 'message')} lost")


@store.command()
@_directory
@click.option("--topic", help="Only this topic.")
@click.option("--queue", type=int, help="Only this queue of it.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="N records at most.")
def dump(directory: str, topic: str | None, queue: int | None, limit: int | None) -> None:
    """Print the records of DIRECTORY in the order of the log, one JSON object a line, over what is damaged."""
    printed = 0
    with told_in_a_line(), _locked(directory) as disk:
        for found in records(disk, directory):
            if (topic is not None and found.topic != topic.encode()) or (queue is not None and found.queue_id != queue):
                continue
            click.echo(json.dumps(_as_json(found.view)))
            printed += 1
            if printed == limit:
                return


@store.command("salvage")
@_directory
@click.argument("target", type=click.Path())
@_json
def salvage_(directory: str, target: str, as_json: bool) -> None:
    """Write every intact record of DIRECTORY to a new store in TARGET, with the queue offsets they have, and the state
    files that can be read."""
    with told_in_a_line():
        with _locked(directory) as disk:
            found = salvage(disk, directory, target.rstrip("/"), StoreConfig(), _progress("salvage"))
        run(_start_once(target))
    if as_json:
        click.echo(json.dumps(found._asdict()))
    else:
        for problem in found.problems:
            click.echo(problem)
        click.echo(
            f"{counted(found.records, 'record')}, {counted(found.bytes, 'byte')} written to {target};"
            f" {counted(found.skipped, 'byte')} of {directory} were damaged"
        )


@contextmanager
def _locked(directory: str) -> Iterator[RealDisk]:
    disk = RealDisk()
    if not disk.is_dir(f"{directory}/commitlog"):
        inside = [
            f"{directory}/{name}" for name in disk.listdir(directory) if disk.is_dir(f"{directory}/{name}/commitlog")
        ]
        raise StoreError(
            f"{directory} has no commitlog: it is not the data directory of a broker"
            + (f", these are: {', '.join(inside)}" if inside else "")
        )
    lock = disk.lock(f"{directory}/lock")
    try:
        yield disk
    finally:
        lock.release()


def _codes() -> Codes:
    return queue_codes(DelaySchedule(DELAY_LEVELS))


async def _start_once(directory: str) -> None:
    """Open and close it as a broker does: recovery mends what is derived."""
    env = real_env()
    try:
        opened = await MessageStore.open(env, StoreConfig(), directory, store_host=bytes(8), codes=_codes())
        await asyncio.sleep(0)
        await opened.close()
    finally:
        await env.disk.close()


def _mend_state(disk: RealDisk, path: str) -> None:
    snapshot = Snapshot(disk, path)
    try:
        value = snapshot.load()
    except StoreCorruptedError:
        for name in (path + ".a", path + ".b"):
            if disk.exists(name):
                disk.rename(name, f"{name}.damaged")
        disk.fsync_dir(os.path.dirname(path))
        return
    if value is not None and snapshot.problems:
        snapshot.save(value)
        snapshot.save(value)


def _remove(disk: RealDisk, directory: str) -> None:
    if disk.is_dir(directory):
        for name in disk.listdir(directory):
            disk.unlink(f"{directory}/{name}")


def _progress(what: str) -> Callable[[int, int], None]:
    """A line that moves on a terminal, nothing elsewhere; on standard error."""
    shown = -1

    def update(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // max(total, 1)
        if percent != shown and sys.stderr.isatty():
            shown = percent
            click.echo(f"\r{what}: {percent} % of {total >> 20} MiB", err=True, nl=percent == 100)

    return update


def _tell(directory: str, found: Survey, as_json: bool) -> None:
    if as_json:
        findings = [finding._asdict() for finding in found.findings]
        click.echo(json.dumps({**found._asdict(), "findings": findings, "lost": found.lost}))
        return
    click.echo(
        f"{directory}: {counted(found.records, 'record')} in {counted(found.queues, 'queue')},"
        f" {counted(found.bytes, 'byte')}" + (f"; {counted(found.torn, 'byte')} of a torn tail" if found.torn else "")
    )
    for finding in found.findings[:_SHOWN]:
        click.echo(_line(finding))
    if len(found.findings) > _SHOWN:
        click.echo(f"and {len(found.findings) - _SHOWN} more: --json has all")
    if not found.findings:
        click.echo("nothing is damaged")


def _line(finding: Finding) -> str:
    text = f"{finding.file}: "
    if finding.kind == "log":
        text += f"log offsets {finding.offset} to {finding.end}: "
    elif finding.kind == "queue":
        text += f"queue offsets {finding.offset} to {finding.end}: "
    text += finding.what
    lost = [
        f"topic {topic} queue {queue_id} offset {first} ({count})" for topic, queue_id, first, count in finding.lost
    ]
    return text + (f"; lost: {', '.join(lost)}" if lost else "")


def _as_json(view: RecordView) -> dict[str, Any]:
    """One record for people and programs: the body as text when it is text."""
    shown: dict[str, Any] = {
        "log_offset": view.physical_offset,
        "topic": view.topic,
        "queue": view.queue_id,
        "offset": view.queue_offset,
        "stored": view.store_timestamp,
        "born": view.born_timestamp,
        "born_host": view.born_host,
        "reconsume_times": view.reconsume_times,
        "sys_flag": view.sys_flag,
        "size": view.size,
    }
    try:
        shown["properties"] = view.properties
        shown["body"] = view.body.decode()
    except (ProtocolError, UnicodeDecodeError):
        shown["body_base64"] = base64.b64encode(view.raw_body).decode()
    return shown
