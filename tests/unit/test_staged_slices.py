"""The proof about a whole slice from the states of its parts."""

from __future__ import annotations

from itertools import combinations

import pytest

from twopc.sinks.staged.slices import APPLICABLE, SliceState, combine

ALL = list(SliceState)
WHOLE = {SliceState.PREPARED, SliceState.APPLYING, SliceState.COMMITTED}
SETS = [frozenset(chosen) for size in range(1, len(ALL) + 1) for chosen in combinations(ALL, size)]


@pytest.mark.parametrize("parts", SETS, ids=lambda parts: "+".join(sorted(state.name for state in parts)))
def test_a_slices_state_follows_from_the_states_of_all_its_parts(parts: frozenset[SliceState]) -> None:
    whole = combine([*parts, *parts])
    assert (whole is SliceState.COMMITTED) == (parts == {SliceState.COMMITTED})
    assert (whole is SliceState.STALE) == (SliceState.STALE in parts)
    # Lost: no part is applied, and none is unknown.
    assert (whole is SliceState.LOST) == (SliceState.LOST in parts <= {SliceState.LOST, SliceState.PREPARED})
    # Applicable: no part is gone, and none is unknown.
    assert (whole in APPLICABLE) == (parts <= WHOLE and parts != {SliceState.COMMITTED})
