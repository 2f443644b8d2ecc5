"""Settings' own ``dataclass`` gives what the standard one gives."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from aiorocket import ClientConfig
from aiorocket.config.quick import dataclass as quick


class _Sample:
    """Never made itself."""

    name: str
    sizes: list[int] = dataclasses.field(default_factory=list, hash=False)
    secret: str | None = dataclasses.field(default=None, repr=False)
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.seconds < 0:  # type: ignore[operator]  # of the field's own type once it is made
            raise ValueError(self.seconds)


def _of(make: Any) -> Any:
    namespace = dict(vars(_Sample))
    for name in ("__dict__", "__weakref__"):
        namespace.pop(name, None)
    return make(frozen=True, slots=True, kw_only=True)(type("Sample", (), namespace))


Sample, Standard = _of(quick), _of(dataclasses.dataclass)


def test_it_is_read_compared_shown_and_copied_as_the_standard_one() -> None:
    for given in ({"name": "a"}, {"name": "b", "sizes": [1, 2], "secret": "s", "seconds": 2.5}):
        ours, standard = Sample(**given), Standard(**given)
        assert dataclasses.asdict(ours) == dataclasses.asdict(standard)
        assert (repr(ours), hash(ours)) == (repr(standard), hash(standard))
        assert ours == Sample(**given) == copy.copy(ours) == copy.deepcopy(ours) != standard
        assert dataclasses.replace(ours, seconds=7) == Sample(**{**given, "seconds": 7}) != ours
        assert not hasattr(ours, "__dict__")
    assert [(f.name, f.type, f.kw_only) for f in dataclasses.fields(Sample)] == [
        (f.name, f.type, f.kw_only) for f in dataclasses.fields(Standard)
    ]
    ours, standard = (inspect.signature(each).parameters for each in (Sample, Standard))
    assert list(ours) == list(standard) and ours["seconds"] == standard["seconds"] and ours["name"] == standard["name"]
    assert Sample(name="a").sizes is not Sample(name="a").sizes


@pytest.mark.parametrize("given", [{}, {"name": "a", "nmae": 1}, {"name": "a", "seconds": -1}])
def test_it_refuses_what_the_standard_one_refuses(given: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as standard:
        Standard(**given)
    with pytest.raises(standard.type) as ours:
        Sample(**given)
    assert str(ours.value).split()[-1] == str(standard.value).split()[-1]  # what is wrong, by its name
    with pytest.raises(TypeError):
        Sample("a")


def test_it_is_frozen() -> None:
    made = Sample(name="a")
    for change in (lambda: setattr(made, "name", "b"), lambda: delattr(made, "name")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    with pytest.raises(TypeError):
        quick(frozen=False, slots=True, kw_only=True)


def test_settings_travel_to_other_processes() -> None:
    config = ClientConfig(nameservers=("a:1",), namespace="dev", secret_key="s", access_key="k")
    there = pickle.loads(pickle.dumps(config))
    assert there == config and hash(there) == hash(config)
    assert "'s'" not in repr(config) and "secret" not in repr(config)
