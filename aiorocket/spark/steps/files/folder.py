"""The files of an archive, through pyarrow's file systems: a path without a scheme is a folder of this machine.

What must happen once (``create``) is exact on a local disk, where a hard link to a taken name fails. Object stores have
no such call in pyarrow: there the name is looked up first, and claims (``claims.py``) keep a second run away.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from pyarrow import ArrowException, fs

from aiorocket.errors import RocketError, UsageError
from aiorocket.runtime.entropy import Entropy
from aiorocket.runtime.process import last_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ("CHECKED", "Folder", "Written", "unreadable")

#: For Spark's reader of Parquet: pages have checksums, without which every tenth flipped bit is another value. (All
#: that pyarrow reads for us is asked for ``page_checksum_verification``.)
CHECKED = {"parquet.page.verify-checksum.enabled": "true"}

#: How long a request to Google's store is tried, in seconds.
_GOOGLE_PATIENCE = 15

#: What Azure's library takes from the environment as an address or a file; where it is none, it ends the process.
_AZURE_NAMES = (
    "AZURE_AUTHORITY_HOST", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_POD_IDENTITY_AUTHORITY_HOST", "IDENTITY_ENDPOINT",
    "MSI_ENDPOINT",
)  # fmt: skip


def unreadable(address: str, error: Exception) -> RocketError:
    """For a file of an archive or a table that is gone, cut short or changed, in one line."""
    why = " ".join(str(error).split())
    return RocketError(
        f"{address} cannot be read ({why:.200}): put it back from a copy, or begin another folder while the brokers "
        "have the messages"
    )


class Written(Protocol):
    """A file as it was written: its length, and that and the CRC-32 of its ``tail_of`` (``tail`` 0: nobody took it)."""

    @property
    def path(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def tail(self) -> int: ...
    @property
    def crc(self) -> int: ...


class Folder:
    """One folder with all below it; names are relative to it, with ``/`` between the parts."""

    def __init__(self, location: str) -> None:
        scheme, there, path = location.partition("://")
        if not there:
            self._fs, self._root, self._local = fs.LocalFileSystem(), os.path.abspath(location), True
        elif "?" in path:
            raise UsageError(f"{location}: Spark takes no options in an address; say them in the environment (AWS_...)")
        else:
            # Where nobody gives it a key, Google's library asks for one for 15 minutes.
            limits = f"?retry_limit_seconds={_GOOGLE_PATIENCE}" if scheme in ("gs", "gcs") else ""
            if scheme in ("abfs", "abfss") and (told := [name for name in _AZURE_NAMES if name in os.environ]):
                _check_azure(location, tuple(f"{name}={os.environ[name]}" for name in told))
            try:
                self._fs, self._root = fs.FileSystem.from_uri(f"{'s3' if scheme == 's3a' else scheme}://{path}{limits}")
            except ValueError as error:  # of a bucket that cannot be asked it is an OSError
                raise UsageError(f"{location}: {error}") from None
            self._local = isinstance(self._fs, fs.LocalFileSystem)
        self._root = self._root.rstrip("/")
        if scheme in ("abfs", "abfss"):
            # Without a token this is an error, and to read a file the end of the process.
            try:
                self._fs.get_file_info(self._root)
            except ArrowException as error:
                raise UsageError(
                    f"{location}: nothing gives Azure's library a token. Set AZURE_TENANT_ID, AZURE_CLIENT_ID and "
                    "AZURE_CLIENT_SECRET, or run `az login`; on a machine of Azure's give it an identity"
                ) from error
        #: What Spark takes as the same place: S3 has a name of its own there.
        self.location = self._root if self._local else f"{'s3a' if scheme == 's3' else scheme}://{path}".rstrip("/")

    @property
    def local(self) -> bool:
        """Whether it is on a disk of this machine, or one that is mounted here."""
        return self._local

    @property
    def filesystem(self) -> Any:
        """The pyarrow file system that ``full`` paths belong to."""
        return self._fs

    def full(self, name: str) -> str:
        """The path of ``name`` in ``filesystem``."""
        return f"{self._root}/{name}" if name else self._root

    def uri(self, name: str) -> str:
        """``name`` as Spark takes it."""
        return f"{self.location}/{name}" if name else self.location

    def exists(self, name: str) -> bool:
        return bool(self._fs.get_file_info(self.full(name)).type.value)  # 0 is FileType.NotFound

    def names(self, name: str) -> list[str]:
        """The file names right in folder ``name``, sorted; none where there is no such folder. Without those that begin
        with a point: what a process that was killed did not get to ``create``."""
        found = [each.rpartition("/")[2] for each in self._found(name, recursive=False)]
        return sorted(each for each in found if not each.startswith("."))

    def folders(self, name: str) -> list[str]:
        """The names of the folders right in folder ``name``, empty ones too, sorted."""
        selector = fs.FileSelector(self.full(name), allow_not_found=True)
        found = self._fs.get_file_info(selector)
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def walk(self, name: str) -> list[str]:
        """All files below folder ``name``, with their paths from this folder, sorted."""
        return sorted(found[len(self._root) + 1 :] for found in self._found(name, recursive=True))

    def size(self, name: str) -> int:
        return int(self._fs.get_file_info(self.full(name)).size)

    def need(self, files: Sequence[Written]) -> None:
        """RocketError names the first of these files that is not there or has another length, as a file that a machine
        lost power over: Spark passes over an empty one without a word. Or another tail: with a flipped bit there a
        column is another one, or no row is found. On a disk only: an object is there as it was written or not at all,
        and to ask for each costs a request."""
        if not self._local:
            return
        found = self._fs.get_file_info([self.full(file.path) for file in files])
        for file, info in zip(files, found, strict=True):
            if info.type == fs.FileType.NotFound:
                raise unreadable(self.uri(file.path), FileNotFoundError("there is no such file"))
            if info.size != file.bytes:
                raise unreadable(self.uri(file.path), OSError(f"{info.size} bytes of {file.bytes}"))
            if file.tail and crc32(self._tail(file)) != file.crc:
                raise unreadable(self.uri(file.path), OSError("its footer has another checksum than the manifest says"))

    def _tail(self, file: Written) -> bytes:
        try:
            with self._fs.open_input_file(self.full(file.path)) as stream:
                return bytes(stream.read_at(file.tail, file.bytes - file.tail))
        except OSError as error:
            raise unreadable(self.uri(file.path), error) from error

    def changed_ms(self, name: str) -> int:
        """When the file was written, in milliseconds since 1970 UTC."""
        return int((self._fs.get_file_info(self.full(name)).mtime_ns or 0) // 1_000_000)

    def read(self, name: str) -> bytes:
        """The bytes of a file; FileNotFoundError where there is none."""
        with self._fs.open_input_stream(self.full(name)) as stream:
            return bytes(stream.read())

    def json(self, name: str, made: Callable[[Any], Any] = lambda value: value) -> Any:
        """What ``made`` makes of a file of JSON; FileNotFoundError where there is none, RocketError when it is damaged,
        or not what ``made`` expects."""
        try:
            value = json.loads(self.read(name))
        except ValueError as error:
            raise unreadable(self.uri(name), error) from error
        try:
            return made(value)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise unreadable(self.uri(name), ValueError(f"JSON of something else: {error!r}")) from error

    def create(self, name: str, data: bytes) -> None:
        """Makes the file appear with all its bytes, durably; FileExistsError when it is there already."""
        folder = name.rpartition("/")[0]
        self.make(folder)
        temporary = f"{folder}/.{name.rpartition('/')[2]}.{Entropy().token(6).hex()}".lstrip("/")
        try:
            with self.naming(name), self._fs.open_output_stream(self.full(temporary)) as stream:
                stream.write(data)
            if self._local:
                _sync(self.full(temporary))
                os.link(self.full(temporary), self.full(name))
                self._settle({folder})
                return
            if self.exists(name):
                raise FileExistsError(f"{self.uri(name)} is there already")
            self._fs.copy_file(self.full(temporary), self.full(name))
        finally:
            with suppress(FileNotFoundError):
                self._fs.delete_file(self.full(temporary))

    @contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Within it errors of pyarrow's say the file that they are about, as those of the system do."""
        try:
            yield
        except OSError as error:
            if error.filename is None:
                error.filename = self.full(name)
            raise

    def replace(self, name: str, data: bytes) -> None:
        """Gives a file new bytes, durably on a local disk: a reader sees the old ones or the new ones."""
        temporary = f"{name}.{Entropy().token(6).hex()}"
        self.create(temporary, data)
        self.move({temporary: name})

    def put(self, name: str, data: bytes) -> None:
        """Gives a file bytes, in one request where it is an object; not durably. A reader sees the old ones or the new
        ones. One writer at a time."""
        folder, _, last = name.rpartition("/")
        written = f"{folder}/.{last}".lstrip("/") if self._local else name
        if self._local:
            self.make(folder)
        with self._fs.open_output_stream(self.full(written)) as stream:
            stream.write(data)
        if self._local:
            os.replace(self.full(written), self.full(name))

    def make(self, name: str) -> None:
        self._fs.create_dir(self.full(name), recursive=True)

    def move(self, moves: Mapping[str, str]) -> None:
        """Moves files to the names given, durably on a local disk: bytes are synced, then all folders on the way.
        FileNotFoundError for one that is not there."""
        folders = {target.rpartition("/")[0] for target in moves.values()}
        for folder in sorted(folders):
            self.make(folder)
        for source, target in moves.items():
            if self._local:
                _sync(self.full(source))
            elif not self.exists(source):  # each store has an error of its own for that
                raise FileNotFoundError(self.uri(source))
            self._fs.move(self.full(source), self.full(target))
        if self._local:
            self._settle(folders)

    def remove(self, name: str) -> bool:
        """Removes a file; False when it was gone already."""
        try:
            self._fs.delete_file(self.full(name))
        except FileNotFoundError:
            return False
        return True

    def remove_tree(self, name: str) -> None:
        """Removes a folder with all that is in it, if it is there."""
        if self.exists(name):
            self._fs.delete_dir(self.full(name))

    def prune(self, *names: str) -> None:
        """Removes those of these folders that are empty; in an object store a folder is nothing by itself."""
        for name in names if self._local else ():
            with suppress(OSError):
                os.rmdir(self.full(name))

    def _settle(self, folders: set[str]) -> None:
        """Syncs folders and all above them: a new one counts when its parent knows it."""
        paths = [each.split("/") for each in folders]
        parents = {"/".join(parts[:count]) for parts in paths for count in range(len(parts))}
        for folder in sorted(folders | parents, reverse=True):
            _sync(self.full(folder))
        with suppress(PermissionError):  # a folder that we may not look into was there before
            _sync(os.path.dirname(self._root) or "/")

    def _found(self, name: str, *, recursive: bool) -> Iterator[str]:
        selector = fs.FileSelector(self.full(name), recursive=recursive, allow_not_found=True)
        return (info.path for info in self._fs.get_file_info(selector) if info.type == fs.FileType.File)


def _sync(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@cache
def _check_azure(location: str, told: tuple[str, ...]) -> None:
    """UsageError where Azure's library ends the process that opens ``location``, for what it is ``told``."""
    said = last_words("from pyarrow import fs\nfs.FileSystem.from_uri(sys.argv[1])", location)
    if said is not None:
        why = " ".join(said.partition("what():")[2].split())
        raise UsageError(
            f"{location}: Azure's library cannot begin with {', '.join(told)} in the environment ({why:.200}): mend or "
            "unset what is wrong"
        )
