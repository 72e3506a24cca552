"""Broken variants of what is checked under Spark Connect."""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, one_edit

_PLANS: Final = "tests/unit/test_connect_plans.py"
_LIVE: Final = "tests/live/test_connect.py"
_SHUFFLE: Final = "integration/connect/one_shuffle.py"

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
        "a node of a plan that nobody knows does not shuffle",
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
        "a query with state is written through Spark Connect",
        0,
        "integration/connect/mode.py",
        '        if plan.keeps_state or files.names("state"):\n',
        "        if False:\n",
        model=False,
        whole=f"{_LIVE} -k keeps_state",
    ),
    one_edit(
        "the checkpoint of another query of the session is taken",
        10,
        "integration/connect/query.py",
        "    if len(active) > 1 and not _is_of(called.frame, query):\n",
        "    if False:\n",
        model=False,
        whole=f"{_LIVE} -k own",
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
