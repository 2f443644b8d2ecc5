"""Settings of clients and servers from the environment or from a TOML file, by the names of the dataclasses' fields."""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from aiorocket.config.addresses import read_address_map
from aiorocket.config.server import BrokerConfig, NameServerConfig
from aiorocket.config.toml_lines import line_of, lines_of
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
    "placed",
    "server_settings",
    "wanted",
)

_log = logging.getLogger("aiorocket.config")

C = TypeVar("C")

#: The variables of a server, and its section, have names of their own: a client beside it has other settings.
BROKER_PREFIX, NAMESERVER_PREFIX = "AIOROCKET_BROKER_", "AIOROCKET_NAMESERVER_"
#: Compiles each annotation.
_hints = cache(get_type_hints)
#: What the command line has always called it.
_NAMESERVERS = "NAMESERVER"
#: What Kubernetes tells a pod of a service NAME beside it: NAME_SERVICE_HOST, NAME_PORT=tcp://10.0.0.7:10911,
#: NAME_PORT_10911_TCP_ADDR and more. A service that is called aiorocket-broker has our prefix.
_LINK = re.compile(r"(_SERVICE_(HOST|PORT(_\w+)?)|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
_LINKS_TO = ("tcp://", "udp://", "sctp://")
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
#: A variable that is set -> what of the file it stands in place of besides: a server has keys or a file of them.
_INSTEAD = {
    "credentials_file": ("access_key", "secret_key", "security_token"),
    "access_key": ("credentials_file",),
    "secret_key": ("credentials_file",),
}


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
    hints, parts = _hints(config), parts_of(config)
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
        for name, hint in _hints(config).items()
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
    of_env = list(_of_env(server.config, server.prefix, environ))
    instead = {name for each in of_env if each.value for name in _INSTEAD.get(each.path[0], ())}
    of_file = _of_toml(server.config, path, server.section) if path is not None else ()
    last = {each.path: each for each in (*(each for each in of_file if each.path[0] not in instead), *of_env)}
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
            text = file.read().decode()
        found: Any = tomllib.loads(text)
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
    above_all, lines = tuple(filter(None, section.split("."))), lines_of(text)

    def walk(table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[_Said]:
        for name, value in table.items():
            place = (*above, name)
            line = line_of(lines, (*above_all, *place))
            where = f"{os.fspath(path)}{'' if line is None else f':{line}'}: {'.'.join(place)}"
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
    said = list(said)
    parts, values = parts_of(config), dict[str, Any]()
    for path, value, where in said:
        _put(values, path, value, where, parts)
    try:
        for name, value in values.items():
            if isinstance(value, dict) and name in parts:
                for each in fields(parts[name]):
                    if each.name not in value and each.default is MISSING and each.default_factory is MISSING:
                        raise ConfigError(f"{name}.{each.name} is needed beside {name}.{min(value)}")
                values[name] = parts[name](**value)
        return config(**values)
    except ConfigError as error:
        raise ConfigError(placed(str(error), {each.path: each.where for each in said}, values)) from None


def placed(error: str, where: Mapping[tuple[str, ...], str], values: Mapping[str, Any]) -> str:
    """``error`` with the places of the settings it speaks of, by name or by value: ``where`` each was given, and which
    ``values`` a config has of them."""
    of = [place for path, place in where.items() if place not in error and _speaks_of(error, path, values)]
    return f"{error} ({', '.join(of)})" if of else error


def _speaks_of(error: str, path: tuple[str, ...], values: Mapping[str, Any]) -> bool:
    name = path[-1]
    # Many names are words too (name, data, port).
    if re.search(rf"\b{name}\b" if "_" in name else rf"(\b{name}=|[.]{name}\b)", error.replace("-", "_")):
        return True
    value: Any = values
    for each in path:
        value = value.get(each) if isinstance(value, Mapping) else getattr(value, each, None)
    return isinstance(value, str) and (repr(value) in error or (len(value) > 2 and value in error))


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
    """ConfigError unless one from TOML is of ``kind``. It holds no value that may be a secret."""
    kind = _plain(kind)
    if get_origin(kind) is Literal:
        _check_one_of(kind, value, where)
        return
    if get_origin(kind) is tuple:
        right = isinstance(value, list) and all(_is(get_args(kind)[0], each) for each in value)
    elif _ADDRESSES in get_args(kind):
        right = isinstance(value, dict)
    else:
        right = kind not in _WANTED or _is(kind, value)
    if not right:
        raise ConfigError(f"{where}: {wanted(kind)} is needed")


def _check_one_of(kind: Any, value: object, where: str) -> None:
    if value not in get_args(kind):
        raise ConfigError(f"{where}={value!r:.200}: {wanted(kind)}")


#: Of ``address_map``.
_ADDRESSES = Mapping[str, str]
_WANTED = {str: "text in quotes", bool: "true or false", int: "a whole number", float: "a number"}


def wanted(kind: Any) -> str:
    """What can be said of an option of ``kind``, in words; empty when there are none for it."""
    kind = _plain(kind)
    if get_origin(kind) is Literal:
        *others, last = map(repr, get_args(kind))
        return f"{', '.join(others)} or {last}"
    if get_origin(kind) is tuple:
        return f"a list of {'texts' if get_args(kind)[0] is str else 'numbers'}"
    return "a table of addresses" if _ADDRESSES in get_args(kind) else _WANTED.get(kind, "")


def _is(kind: Any, value: Any) -> bool:
    return isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)


def _read(kind: Any, text: str, name: str) -> Any:
    """``text`` as a value of ``kind``; ConfigError names the variable, and never holds the value of a secret."""
    kind = _plain(kind)
    if get_origin(kind) is tuple:
        parts = (part.strip() for part in text.replace(",", ";").split(";"))
        return tuple(_read(get_args(kind)[0], part, name) for part in parts if part)
    if _ADDRESSES in get_args(kind):
        try:
            return read_address_map(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    if get_origin(kind) is Literal:
        _check_one_of(kind, text, name)
    if get_origin(kind) is Literal or kind is str or str in get_args(kind):
        return text
    if kind is bool:
        if text.lower() not in _YES + _NO:
            raise ConfigError(f"{name}={text!r}: true or false")
        return text.lower() in _YES
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r}: a number is needed") from None
