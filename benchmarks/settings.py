"""The settings of a benchmark run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

#: How many times fewer rows a quick run has.
_QUICK = 50
_LEAST_ROWS = 100


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run of the benchmark.

    Attributes:
        rounds: how often each side runs, alternating.
        whole: run all cases, including those that take long.
        quick: few rows, to see that everything works; its figures mean nothing.
        only: how the names of the cases to run begin, without spaces; all if empty.
        exactly_once: settings of ``exactly_once()`` besides its defaults.
    """

    rounds: int = 5
    whole: bool = False
    quick: bool = False
    only: tuple[str, ...] = ()
    exactly_once: dict[str, Any] = field(default_factory=dict)

    def rows(self, count: int) -> int:
        """This number of rows, or few of them in a quick run."""
        return max(_LEAST_ROWS, count // _QUICK) if self.quick else count

    def wants(self, case: str) -> bool:
        """Whether a case should run."""
        return not self.only or case.replace(" ", "").startswith(self.only)

    @property
    def two_phases(self) -> dict[str, Any] | None:
        """The settings that make every batch take two phases; None if the default does that anyway."""
        if "write_by" in self.exactly_once:
            return None
        return {**self.exactly_once, "write_by": "tasks"}


def parsed(assignments: Iterable[str]) -> dict[str, Any]:
    """``name=value`` pairs; a value is JSON, or else text.

    Raises:
        ValueError: one has no ``=``.
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
