"""Find out whether the user's Python code may depend on the task in which it runs.

The code of a plan's last stage runs in the tasks that write the rows. If such a task receives several partitions of the plan,
``TaskContext.partitionId()`` is the same for all of them, so ids that the code builds from it would collide. Spark runs
code in barrier mode only if nothing merges the partitions (SPARK-24820).

A pickled function contains the names that its code uses, as text. But it contains only the name of a module that it imports,
so this module also reads the source of each such module. It follows no further imports.
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: How code reaches the number of its task.
_TASK: Final = re.compile("TaskContext|partitionId")
_PICKLED_TASK: Final = re.compile(_TASK.pattern.encode())
#: A pickle contains all code of ``__main__`` that it uses. The other packages contain no code of the user.
_OTHERS: Final = sys.stdlib_module_names | {"__main__", "pyspark", "py4j", "pandas", "numpy", "pyarrow", "twopc"}
#: Expressions that contain a pickled function.
_FUNCTIONS: Final = frozenset({"PythonUDF", "PythonUDAF"})
#: Nodes that may run a Python function in barrier mode.
_BARRIERS: Final = frozenset({"MapInPandas", "MapInArrow", "PythonMapInArrow"})


def depends_on_task(commands: Iterable[bytes]) -> bool:
    """Whether one of these pickled functions may ask for the number of its task."""
    return any(map(_may_ask, commands))


@lru_cache(maxsize=32)
def _may_ask(command: bytes) -> bool:
    return _PICKLED_TASK.search(command) is not None or any(map(_mentions_task, _modules_in(command)))


def _modules_in(command: bytes) -> Iterator[str]:
    own = (name for name in list(sys.modules) if name.partition(".")[0] not in _OTHERS)
    return (name for name in own if name.encode() in command)


@lru_cache(maxsize=1024)
def _mentions_task(module: str) -> bool:
    try:
        return _TASK.search(inspect.getsource(sys.modules[module])) is not None
    except (KeyError, OSError, TypeError):  # the module has no source
        return False


def function_pattern(jvm: Any) -> Any:
    """Return Spark's mark of a plan that contains a Python function. Each part of a class's name costs a call of the JVM."""
    return jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()


def plan_depends_on_task(plan: Any, pattern: Any, jvm: Any) -> bool:
    """Whether the Python functions in a classic plan may depend on their task.

    Args:
        plan: the analyzed plan.
        pattern: see :func:`function_pattern`.
        jvm: the driver's JVM.

    Raises:
        Py4JError: this version of Spark does not show the functions.
    """
    for node in _parts(plan, pattern):
        if str(node.nodeName()) in _BARRIERS and node.isBarrier():
            return True
        functions = (part for one in _each(node.expressions()) for part in _parts(one, pattern))
        if depends_on_task(_command(one, jvm) for one in functions if str(one.nodeName()) in _FUNCTIONS):
            return True
    return False


def _parts(root: Any, pattern: Any) -> Iterator[Any]:
    """Yield those parts of a plan, or of an expression, that contain a function. A plan may be deeper than Python's stack."""
    waiting = [root]
    while waiting:
        part = waiting.pop()
        if part.containsPattern(pattern):
            yield part
            waiting += _each(part.children())


def _command(function: Any, jvm: Any) -> bytes:
    tags = getattr(jvm.scala.reflect, "ClassTag$")
    return bytes(function.func().command().toArray(getattr(tags, "MODULE$").Byte()))


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))
