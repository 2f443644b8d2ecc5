"""A client's settings from the environment or from a TOML file, by the names of the dataclasses' fields."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from aiorocket.config.limits import Limits
from aiorocket.config.remoting import RemotingConfig
from aiorocket.config.tls import TlsConfig
from aiorocket.errors import ConfigError

__all__ = ("Option", "from_env", "from_toml", "options")

C = TypeVar("C")

#: The parts of a ClientConfig that are dataclasses themselves.
_PARTS: dict[str, type] = {"limits": Limits, "remoting": RemotingConfig, "tls": TlsConfig}
#: What the command line has always called it.
_NAMESERVERS = "NAMESERVER"
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Option(NamedTuple):
    """``path`` is its place in a ClientConfig and in TOML, ``variable`` its name in the environment without prefix."""

    path: tuple[str, ...]
    variable: str
    kind: Any


def options(config: type) -> Iterator[Option]:
    """Every option of ``config``, a ClientConfig, that a text can say."""
    yield from _of(config, ())


def _of(config: type, above: tuple[str, ...]) -> Iterator[Option]:
    hints = get_type_hints(config)
    for each in fields(config):
        path = (*above, each.name)
        variable = _NAMESERVERS if path == ("nameservers",) else "_".join(path).upper()
        if each.name in _PARTS:
            if each.name == "tls":
                yield Option(path, variable, bool)
            yield from _of(_PARTS[each.name], path)
        else:
            yield Option(path, variable, hints[each.name])


def from_env(config: type[C], prefix: str, environ: Mapping[str, str] | None) -> C:
    """See ``ClientConfig.from_env``."""
    environ = os.environ if environ is None else environ
    known = {prefix + each.variable: each for each in options(config)}
    values: dict[str, Any] = {}
    for name in sorted(environ):
        if not name.startswith(prefix):
            continue
        option = known.get(name)
        if option is not None:
            _put(values, option.path, _read(option.kind, environ[name], name), name)
        elif near := get_close_matches(name, known, 1, 0.85):
            raise ConfigError(f"the variable {name} is no option: is {near[0]} meant?")
    return _made(config, values)


def from_toml(config: type[C], path: str | os.PathLike[str], section: str) -> C:
    """See ``ClientConfig.from_toml``."""
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
    values: dict[str, Any] = {}

    def walk(table: Mapping[str, Any], above: tuple[str, ...]) -> None:
        for name, value in table.items():
            place = (*above, name)
            where = f"{os.fspath(path)}: {'.'.join(place)}"
            if isinstance(value, dict) and name in _PARTS and not above:
                walk(value, place)
            elif place not in known:
                near = get_close_matches(".".join(place), [".".join(each) for each in known], 1)
                raise ConfigError(f"{where} is no option" + (f": is {near[0]} meant?" if near else ""))
            else:
                _check(known[place].kind, value, where)
                _put(values, place, tuple(value) if isinstance(value, list) else value, where)

    walk(found, ())
    return _made(config, values)


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any, where: str) -> None:
    if len(path) == 1:
        if path[0] in _PARTS and isinstance(values.get(path[0]), dict):
            raise ConfigError(f"{where}={value!r} beside options of its own: leave it out")
        values[path[0]] = value
        return
    part = values.setdefault(path[0], {})
    if not isinstance(part, dict):
        if part is not True:
            raise ConfigError(f"{where}: {path[0]} is switched off")
        part = values[path[0]] = {}
    part[path[1]] = value


def _made(config: type[C], values: Mapping[str, Any]) -> C:
    return config(**{
        name: _PARTS[name](**value) if isinstance(value, dict) else value for name, value in values.items()
    })  # fmt: skip


def _plain(kind: Any) -> Any:
    """``kind`` without its None."""
    kinds = get_args(kind)
    return next(each for each in kinds if each is not type(None)) if type(None) in kinds else kind


def _check(kind: Any, value: Any, where: str) -> None:
    """ConfigError, without the value, unless one from TOML is of ``kind``; the config itself looks at numbers."""
    kind = _plain(kind)
    if get_origin(kind) is tuple:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ConfigError(f"{where}: a list of texts is needed")
    elif kind in (str, bool) and not isinstance(value, kind):
        raise ConfigError(f"{where}: {'text in quotes' if kind is str else 'true or false'} is needed")


def _read(kind: Any, text: str, name: str) -> Any:
    """``text`` as a value of ``kind``; ConfigError names the variable, and never holds the value of a secret."""
    kind = _plain(kind)
    if get_origin(kind) is Literal or kind is str:
        return text  # the config says which texts there are
    if get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.replace(",", ";").split(";") if part.strip())
    if kind is bool:
        if text.lower() not in _YES + _NO:
            raise ConfigError(f"{name}={text!r}: true or false")
        return text.lower() in _YES
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r}: a number is needed") from None
