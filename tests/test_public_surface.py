"""A package's ``__all__`` is its public surface; documents, examples and the demo use nothing else."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import twopc

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[1]
#: Public names that ``from twopc import *`` does not import, because each needs an extra or Kafka's client.
_FACE = (
    "DeltaSink",
    "DriverUpTo",
    "ExactlyOnce",
    "HBaseSink",
    "IcebergSink",
    "InterceptedBatch",
    "Interceptor",
    "KafkaSink",
    "PostgresSink",
    "RedisSink",
    "exactly_once",
    "exit_status",
    "intercepted",
)
_SINKS = (
    "twopc.sinks.kafka",
    "twopc.sinks.redis",
    "twopc.sinks.hbase",
    "twopc.sinks.postgres",
    "twopc.sinks.iceberg",
    "twopc.sinks.delta",
)
_PUBLIC = (
    "twopc",
    *_SINKS,
    "twopc.integration.spark",
    "twopc.integration.history",
    "twopc.integration.alerts",
    "twopc.integration.migrate",
    "twopc.integration.operate",
)
#: Modules that are public as a whole, for people who break a sink on purpose.
_FOR_TESTS = ("twopc.testing", "twopc.crash_points")
#: Modules that scripts may import, too: examples and the demo start servers, and the demo consists of separate modules.
_ROOMS = (
    "twopc.integration.services",
    "twopc.integration.demo",
    "twopc.integration.topic_reader",
    "twopc.integration.signals",
)
_DOCUMENTS = [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
_SCRIPTS = [*sorted((_ROOT / "examples").glob("*.py")), *sorted((_ROOT / "integration" / "demo").glob("*.py"))]


def _blocks(document: Path) -> Iterator[str]:
    """The Python blocks of a document that import something; fragments do not."""
    for block in re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL):
        if re.search(r"^(from|import) ", block, re.MULTILINE):
            yield block


def _imported(code: str) -> Iterator[tuple[str, str | None]]:
    """``(module, name)`` of each import from our packages; name None if the module itself is imported."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "twopc")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "twopc":
            yield from ((node.module or "", alias.name) for alias in node.names)


def _is_public(module: str, name: str | None) -> bool:
    if f"{module}.{name}".startswith(_FOR_TESTS):
        return True
    if module == "twopc" and name in _FACE:
        return True
    return module in _PUBLIC and (name is None or name in importlib.import_module(module).__all__)


def _private(code: str, *rooms: str) -> list[str]:
    return [
        f"{module}.{name}" for module, name in _imported(code) if module not in rooms and not _is_public(module, name)
    ]


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: path.name)
def test_code_in_the_docs_imports_only_public_names(document: Path) -> None:
    assert [found for block in _blocks(document) for found in _private(block)] == []


@pytest.mark.parametrize("script", _SCRIPTS, ids=lambda path: path.name)
def test_examples_and_the_demo_import_only_public_names(script: Path) -> None:
    code = script.read_text()
    own = {module for module, _ in _imported(code) if module.startswith(_ROOMS)}
    assert _private(code, *own) == []


@pytest.mark.parametrize("module", _PUBLIC)
def test_every_public_name_exists_and_has_a_docstring(module: str) -> None:
    package = importlib.import_module(module)
    assert package.__doc__
    named = {name: getattr(package, name) for name in package.__all__}
    assert [name for name, value in named.items() if name != "__version__" and not value.__doc__] == []


def test_every_name_of_twopc_comes_from_its_listed_module() -> None:
    homes = {name: value.__module__ for name in twopc.__all__ if hasattr(value := getattr(twopc, name), "__module__")}
    assert homes == {name: twopc._HOMES[name] for name in homes}
    assert set(twopc._HOMES) | {"__version__"} == {*twopc.__all__, *_FACE}


def test_names_that_a_query_needs_can_be_imported_from_twopc_and_are_the_same_classes() -> None:
    for name in _FACE:
        assert getattr(twopc, name) is getattr(importlib.import_module(twopc._HOMES[name]), name)
    assert set(_FACE) <= set(dir(twopc))


def test_an_unknown_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Sink'"):
        twopc.Sink  # type: ignore[attr-defined]  # noqa: B018 - the test is about this access


def test_importing_twopc_loads_none_of_its_modules() -> None:
    code = "import sys, twopc; print(sorted(name for name in sys.modules if name.startswith('twopc')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['twopc']"
