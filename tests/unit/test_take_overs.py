"""See :mod:`tests.unit.take_overs`. ``TWOPC_TAKE_OVERS`` sets the number of histories, and ``TWOPC_SEED`` the first seed."""

from __future__ import annotations

import os
import random

import pytest

from tests.unit.take_overs import BrokenError, History

HISTORIES = int(os.environ.get("TWOPC_TAKE_OVERS", "300"))


def test_no_take_over_loses_or_duplicates_a_decided_row() -> None:
    first = int(os.environ.get("TWOPC_SEED", random.SystemRandom().randrange(10**9)))
    for seed in range(first, first + HISTORIES):
        try:
            History(seed).play()
        except BrokenError as broken:
            pytest.fail(f"TWOPC_SEED={seed} TWOPC_TAKE_OVERS=1: {broken}", pytrace=False)
