"""Broken variants of what is checked under Spark Connect."""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, one_edit

_PLANS: Final = "tests/unit/test_connect_plans.py"
_CALLER: Final = "tests/unit/test_connect_caller.py"
_LIVE: Final = "tests/live/test_connect.py"
_SHUFFLE: Final = "integration/connect/one_shuffle.py"
_UI: Final = "integration/connect/ui_shuffles.py"
_UI_TESTS: Final = "tests/unit/test_connect_ui.py"

CONNECT_BUGS: Final[tuple[Bug, ...]] = (
    one_edit(
        "a plan that shuffles is written through Spark Connect",
        6,
        _SHUFFLE,
        "    if obstacles:\n",
        "    if False:\n",
        model=False,
        protocol=_PLANS,
        whole=f"{_LIVE} -k refused_before",
    ),
    one_edit(
        "the check of the plan is left out",
        6,
        "integration/connect/engine.py",
        "        self.require_sound()\n",
        "",
        model=False,
        whole=f"{_LIVE} -k refused_before",
    ),
    one_edit(
        "an unknown node of a plan does not shuffle",
        6,
        "integration/connect/plans.py",
        " or any(name not in known for form in names for name in form)",
        "",
        model=False,
        protocol=_PLANS,
    ),
    one_edit(
        "Spark's checksums count for two shuffles, too",
        6,
        _SHUFFLE,
        "    if None in shuffles or sum(map(int, filter(None, shuffles))) > 1:\n",
        "    if None in shuffles:\n",
        model=False,
        protocol=_PLANS,
    ),
    one_edit(
        "Spark's checksums count for two DataFrames, too",
        6,
        _SHUFFLE,
        "    if len(frames) > 1:\n",
        "    if False:\n",
        model=False,
        protocol=_PLANS,
    ),
    one_edit(
        "Spark Connect: a batch waits for the garbage collector, in which PySpark may hang",
        0,
        "integration/connect/worker.py",
        "sys._getframe(1)  # noqa: SLF001 - the only way to the caller\n    while frame is not None:\n"
        "        code = frame.f_code\n",
        "sys._getframe()  # noqa: SLF001 - the only way to the caller\n    while frame is not None:\n"
        "        code, _ = frame.f_code, frame.f_locals\n",
        model=False,
        protocol="tests/unit/test_connect_object.py -k released",
    ),
    one_edit(
        "Spark Connect: the history of the jobs has no moment before the query",
        6,
        _UI,
        "        now = history.begin(exactly=True)\n",
        "        now = history.store.now()\n",
        model=False,
        protocol=f"{_UI_TESTS} -k restart_writes_it",
    ),
    one_edit(
        "Spark Connect: reports that Spark has dropped count as none",
        6,
        "integration/connect/ui_reports.py",
        "        return self._ui.dropped_events()\n",
        "        return 0\n",
        model=False,
        protocol=f"{_UI_TESTS} -k dropped",
    ),
    one_edit(
        "Spark Connect: a server that knows nothing of the application counts as one that knows no such job",
        6,
        "integration/connect/spark_ui.py",
        ' and absent.search(body.decode(errors="replace")):',
        ":",
        model=False,
        protocol=f"{_UI_TESTS} -k cannot_be_used",
    ),
    one_edit(
        "Spark Connect: a stateful batch is decided although only a part of it was read",
        0,
        "integration/connect/state.py",
        "            self.evaluate()\n        missing",
        "        missing",
        model=False,
        protocol="tests/unit/test_connect_state.py -k only_a_job",
        whole="tests/live/test_connect_state.py -k cut_off",
    ),
    one_edit(
        "Spark Connect: a job over a cached batch counts as one over the batch",
        0,
        "integration/connect/state.py",
        "(frame is self._batch and not self._is_cached)",
        "(frame is self._batch)",
        model=False,
        protocol="tests/unit/test_connect_state.py -k only_a_job",
    ),
    one_edit(
        "Spark Connect: a batch is decided although its plan has left out a part of its state",
        0,
        "integration/connect/state.py",
        "        if missing:\n",
        "        if False:\n",
        model=False,
        protocol="tests/unit/test_connect_state.py -k without_the_batchs_version",
    ),
    one_edit(
        "the checkpoint of another query of the session is taken",
        10,
        "integration/connect/query.py",
        "    if query.run_id not in found:\n",
        "    if False:\n",
        model=False,
        protocol=_CALLER,
        whole=f"{_LIVE} -k own",
    ),
    one_edit(
        "Spark Connect: a run that was active before the process started may be the caller",
        10,
        "integration/connect/caller.py",
        "set(earlier)",
        "set[str]()",
        model=False,
        protocol=f"{_CALLER} -k before_the_process",
    ),
    one_edit(
        "Spark Connect: the runs that were active before the process started are not noted",
        10,
        "integration/connect/calls.py",
        "(str(query.runId) for query in session.streams.active))",
        "())",
        model=False,
        protocol="tests/unit/test_connect_object.py -k already_active",
    ),
    one_edit(
        "Spark Connect: an idle query may be the caller",
        10,
        "integration/connect/caller.py",
        'not query.status["isTriggerActive"] or ',
        "",
        model=False,
        protocol=f"{_CALLER} -k does_not_wait",
    ),
    one_edit(
        "Spark Connect: a call that two queries may have made is taken for the checkpoint's query's",
        10,
        "integration/connect/query.py",
        "    if len(found) > 1:\n",
        "    if False:\n",
        model=False,
        protocol=f"{_CALLER} -k two_queries",
    ),
    one_edit(
        "a call from any thread counts as Spark's",
        0,
        "integration/connect/query.py",
        "    called = called_batch()\n    if called is None:\n        raise ConfigurationError(\n",
        "    called = called_batch()\n    if False:\n        raise ConfigurationError(\n",
        model=False,
        whole=f"{_LIVE} -k own",
    ),
)
