"""Broken variants of the kill loop. Each of them reports a proof that it does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.planted.bug import one_edit

if TYPE_CHECKING:
    from tests.planted.bug import Bug

_SEEDED: Final = "twopc/testing/kill_loop/seeded.py"
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
)
