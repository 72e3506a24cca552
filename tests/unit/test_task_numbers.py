"""Which Python functions may ask Spark for the number of their task, as their pickles and a plan show it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from pyspark import TaskContext
from pyspark.serializers import CloudPickleSerializer

from twopc.integration.spark.task_numbers import depends_on_task, plan_depends_on_task

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


def pickled(function: Any) -> bytes:
    """Pickle a function with the type of its result, as PySpark does."""
    serializer: Any = CloudPickleSerializer
    command: bytes = serializer().dumps((function, "long"))
    return command


def code_of_main(source: str) -> Any:
    """Return the object ``f`` of a program that is not a module, as in a notebook."""
    names: dict[str, Any] = {"__name__": "__main__", "TaskContext": TaskContext, "functools": functools}
    exec(source, names)  # noqa: S102 - see above
    return names["f"]


@pytest.mark.parametrize(
    "source",
    [
        "def f(): return TaskContext.get().partitionId()",
        "def f():\n    from pyspark import TaskContext as T\n    return T.get().partitionId()",
        "def f():\n    def inner():\n        return TaskContext.get().partitionId()\n    return inner()",
        "def g(): return TaskContext.get().partitionId()\ndef f(): return g()",
        "def g(context): return context.partitionId()\nf = functools.partial(g, None)",
        "class F:\n    def __call__(self): return TaskContext.get().partitionId()\nf = F()",
        "f = lambda: getattr(TaskContext.get(), 'partitionId')()",
    ],
)
def test_a_function_that_asks_for_its_task(source: str) -> None:
    assert depends_on_task([pickled(lambda: 1), pickled(code_of_main(source))])


def test_a_function_that_does_not_ask() -> None:
    assert not depends_on_task([pickled(code_of_main("def f(): return functools.reduce(max, [1])"))])
    assert not depends_on_task([])


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], types.ModuleType]:
    import importlib  # noqa: PLC0415 - only here

    monkeypatch.syspath_prepend(str(tmp_path))

    def create(name: str, source: str) -> types.ModuleType:
        (tmp_path / f"{name}.py").write_text(source)
        return importlib.import_module(name)

    return create


def test_a_function_of_a_module_whose_source_mentions_the_task(
    modules: Callable[[str, str], types.ModuleType],
) -> None:
    """Its pickle contains only the names of the module and of the function."""
    asking = modules(
        "twopc_ids", "from pyspark import TaskContext\ndef number(): return TaskContext.get().partitionId()\n"
    )
    plain = modules("twopc_plain", "def number(): return 1\n")
    assert b"TaskContext" not in pickled(asking.number)
    assert depends_on_task([pickled(asking.number)])
    assert not depends_on_task([pickled(plain.number)])


def test_a_function_that_uses_such_a_module(modules: Callable[[str, str], types.ModuleType]) -> None:
    ids = modules(
        "twopc_helper", "from pyspark import TaskContext\ndef number(): return TaskContext.get().partitionId()\n"
    )
    function = code_of_main("def f(): return ids.number()")
    function.__globals__["ids"] = ids
    assert depends_on_task([pickled(function)])


# -- plans -------------------------------------------------------------------------------------------------------------


class Parts:
    """A sequence, as py4j shows Scala's."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def size(self) -> int:
        return len(self._parts)

    def apply(self, index: int) -> Any:
        return self._parts[index]


def part(name: str, *children: Any, has_function: bool = True, **parts: Any) -> Any:
    """A node of a plan, or a part of an expression."""
    found = MagicMock(name=name)
    found.nodeName.return_value, found.children.return_value = name, Parts(*children)
    found.containsPattern.return_value = has_function
    found.expressions.return_value = Parts(*parts.get("expressions", ()))
    found.isBarrier.return_value = parts.get("is_barrier", False)
    found.func.return_value.command.return_value.toArray.return_value = parts.get("command", b"")
    return found


ASKS, PLAIN = b"... TaskContext ...", b"... pandas ..."


def read(plan: Any) -> bool:
    return plan_depends_on_task(plan, MagicMock(), MagicMock())


def plans(command: bytes) -> Iterator[Any]:
    function = part("PythonUDF", command=command)
    batch = part("LogicalRDD", has_function=False)
    yield part("MapInPandas", batch, expressions=[function])
    yield part("Filter", part("Project", batch, expressions=[part("Alias", part("Add", function))]))
    yield part("Project", batch, expressions=[part("PythonUDF", function, command=PLAIN)])
    yield part("Aggregate", batch, expressions=[part("PythonUDAF", command=command)])


@pytest.mark.parametrize("number", range(4))
def test_a_plan_with_a_function(number: int) -> None:
    assert read(list(plans(ASKS))[number])
    assert not read(list(plans(PLAIN))[number])


def test_spark_is_asked_once_about_a_plan_without_functions() -> None:
    plan = part("Project", part("LogicalRDD"), has_function=False)
    assert not read(plan)
    assert not plan.children.called


@pytest.mark.parametrize("name", ["MapInPandas", "MapInArrow", "PythonMapInArrow"])
def test_spark_refuses_to_merge_the_partitions_of_code_in_barrier_mode(name: str) -> None:
    function: Sequence[Any] = [part("PythonUDF", command=PLAIN)]
    assert read(part(name, expressions=function, is_barrier=True))
    assert not read(part(name, expressions=function))
