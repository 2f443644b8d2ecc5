"""Settings of clients and servers from the environment or from a TOML file, by the names of the dataclasses' fields."""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from aiorocket.config.addresses import read_address_map
from aiorocket.config.server import BrokerConfig, NameServerConfig
from aiorocket.errors import ConfigError

__all__ = (
    "BROKER_PREFIX",
    "NAMESERVER_PREFIX",
    "SERVERS",
    "Option",
    "Server",
    "broker_settings",
    "from_env",
    "from_toml",
    "is_service_link",
    "options",
    "parts_of",
    "server_settings",
)

_log = logging.getLogger("aiorocket.config")

C = TypeVar("C")

#: The variables of a server, and its section, have names of their own: a client beside it has other settings.
BROKER_PREFIX, NAMESERVER_PREFIX = "AIOROCKET_BROKER_", "AIOROCKET_NAMESERVER_"
#: What the command line has always called it.
_NAMESERVERS = "NAMESERVER"
#: What Kubernetes tells a pod of a service NAME beside it: NAME_SERVICE_HOST, NAME_PORT=tcp://10.0.0.7:10911,
#: NAME_PORT_10911_TCP_ADDR and more. A service that is called aiorocket-broker has our prefix.
_LINK = re.compile(r"(_SERVICE_(HOST|PORT(_\w+)?)|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
_LINKS_TO = ("tcp://", "udp://", "sctp://")
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Server(NamedTuple):
    """What runs with a ``config``: its section of a file, and the prefix of its variables."""

    section: str
    config: type[Any]
    prefix: str


#: By the command that runs it.
SERVERS = {
    each.section: each
    for each in (
        Server("broker", BrokerConfig, BROKER_PREFIX),
        Server("nameserver", NameServerConfig, NAMESERVER_PREFIX),
    )
}


class Option(NamedTuple):
    """``path`` is its place in the config and in TOML, ``variable`` its name in the environment without prefix."""

    path: tuple[str, ...]
    variable: str
    kind: Any


def options(config: type) -> Iterator[Option]:
    """Every option of ``config``, a client's or a server's, that a text can say."""
    yield from _of(config, ())


def _of(config: type, above: tuple[str, ...]) -> Iterator[Option]:
    hints, parts = get_type_hints(config), parts_of(config)
    for each in fields(config):
        path = (*above, each.name)
        variable = _NAMESERVERS if path == ("nameservers",) else "_".join(path).upper()
        if each.name in parts:
            if bool in get_args(hints[each.name]):
                yield Option(path, variable, bool)
            yield from _of(parts[each.name], path)
        else:
            yield Option(path, variable, hints[each.name])


def parts_of(config: type) -> dict[str, type]:
    """The fields of ``config`` that are dataclasses themselves."""
    return {
        name: kind
        for name, hint in get_type_hints(config).items()
        for kind in (hint, *get_args(hint))
        if isinstance(kind, type) and is_dataclass(kind)
    }


def from_env(config: type[C], prefix: str, environ: Mapping[str, str] | None) -> C:
    """See ``ClientConfig.from_env``."""
    return _made(config, _of_env(config, prefix, environ))


def from_toml(config: type[C], path: str | os.PathLike[str], section: str) -> C:
    """See ``ClientConfig.from_toml``."""
    return _made(config, _of_toml(config, path, section))


def broker_settings(
    path: str | os.PathLike[str] | None, environ: Mapping[str, str] | None = None
) -> tuple[BrokerConfig, dict[tuple[str, ...], str]]:
    """``server_settings`` of a broker."""
    return server_settings(SERVERS["broker"], path, environ)


def server_settings(
    server: Server, path: str | os.PathLike[str] | None, environ: Mapping[str, str] | None = None
) -> tuple[Any, dict[tuple[str, ...], str]]:
    """A server's settings from its section of a file and from its variables, which come first; and where each that was
    given comes from. ConfigError as of ``ClientConfig``."""
    said = list(_of_toml(server.config, path, server.section)) if path is not None else []
    said += _of_env(server.config, server.prefix, environ)
    last = {each.path: each for each in said}
    return _made(server.config, last.values()), {each.path: each.where for each in last.values()}


class _Said(NamedTuple):
    """The value of an option, and where it stands."""

    path: tuple[str, ...]
    value: Any
    where: str


def _of_env(config: type, prefix: str, environ: Mapping[str, str] | None) -> Iterator[_Said]:
    environ = os.environ if environ is None else environ
    known = {prefix + each.variable: each for each in options(config)}
    for name in sorted(environ):
        others = any(each.prefix != prefix and name.startswith(each.prefix) for each in SERVERS.values())
        if others or not name.startswith(prefix):
            continue
        option = known.get(name)
        if is_service_link(name, environ[name]):
            if option is not None:
                _log.warning("%s=%s is Kubernetes' link to a service and no setting: ignored", name, environ[name])
        elif option is not None:
            yield _Said(option.path, _read(option.kind, environ[name], name), name)
        elif near := get_close_matches(name, known, 1, 0.85):
            raise ConfigError(f"the variable {name} is no option: is {near[0]} meant?")


def is_service_link(name: str, value: str) -> bool:
    """Whether a variable is one that Kubernetes sets for a service, whose name happens to begin as ours do."""
    return value.startswith(_LINKS_TO) or _LINK.search(name) is not None


def _of_toml(config: type, path: str | os.PathLike[str], section: str) -> Iterator[_Said]:
    try:
        with open(path, "rb") as file:
            found: Any = tomllib.load(file)
    except (OSError, ValueError) as error:  # no file, no UTF-8, no TOML
        raise ConfigError(f"settings file {os.fspath(path)}: {error}") from error
    for name in filter(None, section.split(".")):
        if not isinstance(found, dict) or name not in found:
            raise ConfigError(f"settings file {os.fspath(path)} has no section [{section}]")
        found = found[name]
    if not isinstance(found, dict):
        raise ConfigError(f"settings file {os.fspath(path)}: {section} is a value, a section [{section}] is needed")
    known = {each.path: each for each in options(config)}
    parts = parts_of(config)

    def walk(table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[_Said]:
        for name, value in table.items():
            place = (*above, name)
            where = f"{os.fspath(path)}: {'.'.join(place)}"
            if isinstance(value, dict) and name in parts and not above:
                yield from walk(value, place)
            elif place not in known:
                near = get_close_matches(".".join(place), [".".join(each) for each in known], 1)
                raise ConfigError(f"{where} is no option" + (f": is {near[0]} meant?" if near else ""))
            else:
                _check(known[place].kind, value, where)
                yield _Said(place, tuple(value) if isinstance(value, list) else value, where)

    yield from walk(found, ())


def _made(config: type[C], said: Iterable[_Said]) -> C:
    parts, values = parts_of(config), dict[str, Any]()
    for path, value, where in said:
        _put(values, path, value, where, parts)
    for name, value in values.items():
        if isinstance(value, dict) and name in parts:
            for each in fields(parts[name]):
                if each.name not in value and each.default is MISSING and each.default_factory is MISSING:
                    raise ConfigError(f"{name}.{each.name} is needed beside {name}.{min(value)}")
            values[name] = parts[name](**value)
    return config(**values)


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any, where: str, parts: Mapping[str, type]) -> None:
    if len(path) == 1:
        if path[0] in parts and isinstance(values.get(path[0]), dict):
            raise ConfigError(f"{where}={value!r} beside options of its own: leave it out")
        values[path[0]] = value
        return
    part = values.setdefault(path[0], {})
    if not isinstance(part, dict):
        if part is not True:
            raise ConfigError(f"{where}: {path[0]} is switched off")
        part = values[path[0]] = {}
    part[path[1]] = value


def _plain(kind: Any) -> Any:
    """``kind`` without its None."""
    kinds = get_args(kind)
    return next(each for each in kinds if each is not type(None)) if type(None) in kinds else kind


def _check(kind: Any, value: Any, where: str) -> None:
    """ConfigError, without the value, unless one from TOML is of ``kind``."""
    kind = _plain(kind)
    if get_origin(kind) is tuple:
        of = get_args(kind)[0]
        if not isinstance(value, list) or not all(_is(of, each) for each in value):
            raise ConfigError(f"{where}: a list of {'texts' if of is str else 'numbers'} is needed")
    elif _ADDRESSES in get_args(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: a table of addresses is needed")
    elif kind in _WANTED and not _is(kind, value):
        raise ConfigError(f"{where}: {_WANTED[kind]} is needed")


#: Of ``address_map``.
_ADDRESSES = Mapping[str, str]
_WANTED = {str: "text in quotes", bool: "true or false", int: "a whole number", float: "a number"}


def _is(kind: Any, value: Any) -> bool:
    return isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)


def _read(kind: Any, text: str, name: str) -> Any:
    """``text`` as a value of ``kind``; ConfigError names the variable, and never holds the value of a secret."""
    kind = _plain(kind)
    if get_origin(kind) is tuple:
        parts = (part.strip() for part in text.replace(",", ";").split(";"))
        return tuple(_read(get_args(kind)[0], part, name) for part in parts if part)
    if _ADDRESSES in get_args(kind):
        return read_address_map(text)
    if get_origin(kind) is Literal or kind is str or str in get_args(kind):
        return text  # the config says which texts there are
    if kind is bool:
        if text.lower() not in _YES + _NO:
            raise ConfigError(f"{name}={text!r}: true or false")
        return text.lower() in _YES
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r}: a number is needed") from None
