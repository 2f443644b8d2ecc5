"""codes.py and headers.py are what spec/*.toml says, and the spec is what other modules rely on."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import aiorocket_protocol
from aiorocket_protocol import REQUEST_HEADERS, RESPONSE_HEADERS, SPECS, RequestCode, ResponseCode

PROTOCOL = Path(__file__).resolve().parents[2] / "protocol"


def test_generated_files_are_up_to_date() -> None:
    run = subprocess.run(
        [sys.executable, str(PROTOCOL / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_codes_equal_the_spec() -> None:
    spec = tomllib.loads((PROTOCOL / "spec" / "codes.toml").read_text(encoding="utf-8"))
    assert {code.name: code.value for code in RequestCode} == spec["request"]
    assert {code.name: code.value for code in ResponseCode} == spec["response"]


def test_headers_take_their_fields_by_name_and_default_to_absent() -> None:
    for header_class, specs in SPECS.items():
        names: tuple[str, ...] = header_class._fields  # type: ignore[attr-defined]
        assert names == tuple(spec.name for spec in specs)
        header = header_class(**{spec.name: 0 for spec in specs if spec.required})
        assert [value for value, spec in zip(header, specs, strict=True) if not spec.required] == [
            None for spec in specs if not spec.required
        ]


def test_header_tables_name_known_codes() -> None:
    known = {code.value for code in RequestCode}
    assert REQUEST_HEADERS.keys() <= known
    assert RESPONSE_HEADERS.keys() <= known
    assert {*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()} == set(SPECS)


def test_every_exported_name_exists_once() -> None:
    """The package is the sum of its modules, so no two of them may export one name."""
    homes: dict[str, str] = {}
    for node in ast.parse(Path(aiorocket_protocol.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            for name in module.__all__:
                assert getattr(aiorocket_protocol, name) is getattr(module, name)
                assert homes.setdefault(name, module.__name__) == module.__name__, name
    assert len(homes) > 200


def test_package_is_importable_alone_and_pure() -> None:
    """Nothing of the outside world comes in with the package: no loop, no socket, no thread pool."""
    program = (
        f"import sys; sys.path.insert(0, {str(PROTOCOL)!r}); import aiorocket_protocol;"
        "outside = {'asyncio', 'socket', 'random', 'logging', 'uvloop', 'anyio', 'threading', 'aiorocket'};"
        "sys.exit(', '.join(sorted(outside & set(sys.modules))) or None)"
    )
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_readme_program_runs() -> None:
    text = (PROTOCOL / "README.md").read_text(encoding="utf-8")
    program = text.split("```python\n")[1].split("```")[0]
    exec(compile(program, "protocol/README.md", "exec"), {})
