"""Takes aiorocket to Spark processes that do not have it: as a zip for ``--py-files``, or inside of what Spark pickles.

Spark pickles classes by name, and so each of its Python processes (planning, tasks, the driver side of a stream) must
be able to import them. ``travelling_source`` makes a data source whose pickle holds the sources of the package. It is
made of local classes and functions only, and imports within them: cloudpickle takes those by value.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from pyspark.sql.datasource import DataSource

__all__ = ("bundle", "travelling_source")

#: What a task imports; msgpack brings the part of it that is plain Python; msgspec has none, and readers do without.
_PACKAGES = ("aiorocket", "aiorocket_protocol", "msgpack")
_SHIM = "pyspark_aiorocket.py"
#: Servers and tools are not needed there.
_LEFT_OUT = (
    "broker", "nameserver", "storage", "cli", "web", "testing", "dashboard", "fuzz", "load", "sql", "autoload",
    "__pycache__",
)  # fmt: skip


def bundle(path: str) -> None:
    """Write a zip for ``spark-submit --py-files`` (or the conf ``spark.submit.pyFiles``): all that executors need
    beside pyspark, numpy, pyarrow and, for the sink, msgspec. Wheels are not taken there; a zip has no compiled parts,
    and needs none."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr(_SHIM, "from aiorocket.spark.source import RocketMQDataSource as DefaultSource\n")
        for name, source in _sources():
            zipped.writestr(name, source)


def _sources() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        yield from _below(files(package), PurePosixPath(package))


def _below(folder: Traversable, place: PurePosixPath) -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            if entry.name not in _LEFT_OUT:
                yield from _below(entry, place / entry.name)
        elif entry.name.endswith(".py"):
            yield str(place / entry.name), entry.read_text(encoding="utf-8")


def travelling_source() -> type[DataSource]:
    """``RocketMQDataSource`` as a class that works in processes without aiorocket (some 600 KB in each pickle). Where
    aiorocket is installed, that one is used."""
    from pyspark.sql.datasource import DataSource

    archive = zlib.compress(json.dumps(dict(_sources())).encode(), 9)

    def load(module: str) -> Any:
        """The module, from this process's installation or else from the archive."""
        import sys
        from importlib import import_module
        from importlib.util import find_spec

        if find_spec("aiorocket") is None:
            sys.meta_path.append(finder())  # last: an installed msgpack is a faster one
        return import_module(module)

    def finder() -> Any:
        import json
        import zlib
        from importlib.abc import InspectLoader, MetaPathFinder
        from importlib.util import spec_from_loader

        sources: dict[str, str] = json.loads(zlib.decompress(archive))

        class InMemory(MetaPathFinder, InspectLoader):
            def _file(self, name: str) -> str | None:
                path = name.replace(".", "/")
                return next((each for each in (f"{path}/__init__.py", f"{path}.py") if each in sources), None)

            def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
                file = self._file(name)
                return None if file is None else spec_from_loader(name, self, origin=f"<shipped>/{file}")

            def is_package(self, fullname: str) -> bool:
                return str(self._file(fullname)).endswith("/__init__.py")

            def get_source(self, fullname: str) -> str:
                return sources[str(self._file(fullname))]

        return InMemory()

    def travelling(thing: Any) -> Any:
        """``thing``, a reader or writer, so that its own pickle brings the archive too."""
        kind = type(thing)

        def reduce(self: Any, protocol: Any) -> Any:
            import pickle

            return rebuild, (kind.__module__, kind.__qualname__, pickle.dumps(vars(self)))

        thing.__class__ = type(kind.__name__, (kind,), {"__reduce_ex__": reduce, "__module__": kind.__module__})
        return thing

    def rebuild(module: str, name: str, state: bytes) -> Any:
        import pickle

        kind = getattr(load(module), name)
        thing = kind.__new__(kind)
        vars(thing).update(pickle.loads(state))
        return travelling(thing)

    class RocketMQDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "rocketmq"

        def schema(self) -> Any:
            return load("aiorocket.spark.source").RocketMQDataSource(self.options).schema()

        def reader(self, schema: Any) -> Any:
            return travelling(load("aiorocket.spark.source").RocketMQDataSource(self.options).reader(schema))

        def streamReader(self, schema: Any) -> Any:
            return travelling(load("aiorocket.spark.source").RocketMQDataSource(self.options).streamReader(schema))

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return travelling(load("aiorocket.spark.source").RocketMQDataSource(self.options).writer(schema, overwrite))

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            made = load("aiorocket.spark.source").RocketMQDataSource(self.options)
            return travelling(made.streamWriter(schema, overwrite))

    return RocketMQDataSource
