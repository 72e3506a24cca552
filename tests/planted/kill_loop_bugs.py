"""Broken variants of the kill loop. Each of them reports a proof that it does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.planted.bug import one_edit

if TYPE_CHECKING:
    from tests.planted.bug import Bug

_SEEDED: Final = "twopc/testing/kill_loop/seeded.py"
_LOOP: Final = "twopc/testing/kill_loop/loop.py"
_OUTCOME: Final = "twopc/testing/kill_loop/outcome.py"
_PLAN: Final = "tests/unit/test_kill_plan.py"
_RUNS: Final = "tests/unit/test_kill_loop_runs.py"

KILL_LOOP_BUGS: Final[tuple[Bug, ...]] = (
    one_edit(
        "the records of an earlier run hide a lost record from the kill loop",
        0,
        _SEEDED,
        "    _require_fresh(read, directory)\n",
        "",
        model=False,
        protocol=f"{_RUNS} -k earlier_run",
    ),
    one_edit(
        "the kill loop never repeats a batch of a query without foreachBatch",
        0,
        _LOOP,
        'return self._without_record(before) if kill is not None and kill.moment is Moment.AFTER else ""\n',
        'return ""\n',
        model=False,
        protocol=f"{_RUNS} -k hold",
        whole="tests/live/test_kill_loop.py -k data_source",
    ),
    one_edit(
        "the kill loop repeats a batch without rows",
        0,
        _LOOP,
        " or self._sources(last) == self._sources(last - 1):\n",
        ":\n",
        model=False,
        protocol=f"{_RUNS} -k has_no_rows",
    ),
    one_edit(
        "a kill that always reveals a fault may be missed",
        0,
        _OUTCOME,
        "            if place not in came | _MAY_BE_MISSED:\n",
        "            if place not in came | _MAY_BE_MISSED | _NEEDS.keys():\n",
        model=False,
        protocol=f"{_PLAN} -k contains_the_seed",
    ),
    one_edit(
        "a kill at a crash point may be missed",
        0,
        _OUTCOME,
        "            if place not in came | _MAY_BE_MISSED:\n",
        "            if place in _NEEDS.keys() - came:\n",
        model=False,
        protocol=f"{_PLAN} -k contains_the_seed",
    ),
)
