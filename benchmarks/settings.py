"""Define the settings of a benchmark run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A quick run divides the number of rows by this.
_QUICK = 50
_LEAST_ROWS = 100


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run of the benchmark.

    Attributes:
        rounds: how often each side runs, in turn.
        whole: whether to run all cases, including the long ones.
        quick: whether to use few rows, to see that everything works. The figures then mean nothing.
        only: prefixes, without spaces, of the names of the cases to run. Empty: run all cases.
        exactly_once: settings of ``exactly_once()`` that differ from its defaults.
    """

    rounds: int = 5
    whole: bool = False
    quick: bool = False
    only: tuple[str, ...] = ()
    exactly_once: dict[str, Any] = field(default_factory=dict)

    def rows(self, count: int) -> int:
        """Return this number of rows, or far fewer in a quick run."""
        return max(_LEAST_ROWS, count // _QUICK) if self.quick else count

    def wants(self, case: str) -> bool:
        """Whether a case should run."""
        return not self.only or case.replace(" ", "").startswith(self.only)

    @property
    def two_phases(self) -> dict[str, Any] | None:
        """Return the settings with which every batch takes two phases; None if the current settings already do that."""
        if "write_by" in self.exactly_once:
            return None
        return {**self.exactly_once, "write_by": "tasks"}


def parsed(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse ``name=value`` pairs. A value is JSON, or else text.

    Raises:
        ValueError: a pair has no ``=``.
    """
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator:
            raise ValueError(f"{assignment!r}: pass name=value, for example write_by=tasks")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found
