"""Calls from a forked child process of the process in which Spark calls the user's function.

Each test runs a script, because the tests' own process has threads, and should not fork.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]

#: Defines ``outcome(action)`` and ``outcome_in_child(action)``, which return the result or the error as text.
_FORK: Final = """
import os, threading, warnings
from types import SimpleNamespace
warnings.simplefilter("ignore")

def outcome(action):
    try:
        return str(action())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def outcome_in_child(action):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, outcome(action).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        return file.read()
"""

#: Stands in for py4j: the thread that makes the call, and a JVM that sees only the connection.
_CLASSIC: Final = """
from twopc.integration.spark.running import RunningQuery
java = SimpleNamespace(id=str, runId=str, queryExecutionThread=lambda: SimpleNamespace(equals=lambda other: True))
query = RunningQuery(java, SimpleNamespace(currentThread=lambda: None))

def function():
    for action in BEFORE:
        action()
    print(outcome_in_child(query.makes_this_call))
    print(outcome(query.makes_this_call))

thread = threading.Thread(target=function)
thread.start()
thread.join()
"""

#: The query itself runs in a forked child, which is a normal way to start a query.
_QUERY_IN_CHILD: Final = _CLASSIC.replace(
    "thread = threading.Thread", "if os.fork(): os.wait(), os._exit(0)\nthread = threading.Thread"
)

#: Stands in for PySpark's worker: its frame is on the stack.
_CONNECT: Final = """
from twopc.integration.connect import worker
from twopc.integration.connect.query import ConnectQuery
query = ConnectQuery(SimpleNamespace(id="q", runId="r"), "/checkpoint")

def function(batch_df, batch_id):
    print(outcome_in_child(query.makes_this_call))
    print(outcome(query.makes_this_call))

source = "def process(batch_df, batch_id): function(batch_df, batch_id)"
exec(compile(source, "foreach_batch_worker.py", "exec"))
process(None, 0)
"""

_CONNECT_IN_CHILD: Final = _CONNECT.replace(
    "process(None, 0)", "if os.fork(): os.wait(), os._exit(0)\nprocess(None, 0)"
)


@pytest.mark.parametrize(
    "script",
    [
        "BEFORE = []" + _CLASSIC,
        "BEFORE = [lambda: query.makes_this_call()]" + _CLASSIC,
        "BEFORE = []" + _QUERY_IN_CHILD,
        _CONNECT,
        _CONNECT_IN_CHILD,
    ],
    ids=["classic", "classic, next batch", "classic query in a child", "connect", "connect worker in a child"],
)
def test_a_call_from_a_forked_child_is_refused_and_the_functions_own_call_is_accepted(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORK + script], cwd=_ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    in_child, in_parent = done.stdout.splitlines()
    assert in_child.startswith("ConfigurationError: this call came from a child process")
    assert "This call wrote nothing" in in_child and "restart the query" in in_child
    assert in_parent == "True"
