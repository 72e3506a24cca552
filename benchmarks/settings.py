"""Define the settings for a benchmark run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

T = TypeVar("T")

#: A quick run divides the number of rows by this.
_QUICK = 50
_LEAST_ROWS = 100


def packed(case: str) -> str:
    """Write a case's name as the command line names it: ``2,000 rows`` is ``2000rows``."""
    return case.replace(" ", "").replace(",", "")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings for one run of the benchmark.

    Attributes:
        rounds: how often each side runs. The sides take turns.
        whole: whether to run all cases, including the long ones.
        quick: whether to use few rows, to check that everything works. The figures then mean nothing.
        only: run only cases whose names begin with one of these prefixes, without spaces. Empty: run all cases.
        exactly_once: settings for ``exactly_once()`` that differ from its defaults.
    """

    rounds: int = 5
    whole: bool = False
    quick: bool = False
    only: tuple[str, ...] = ()
    exactly_once: dict[str, Any] = field(default_factory=dict)

    def rows(self, count: int) -> int:
        """Return ``count``, or far fewer rows in a quick run."""
        return max(_LEAST_ROWS, count // _QUICK) if self.quick else count

    def wants(self, case: str) -> bool:
        """Whether a case should run."""
        return not self.only or packed(case).startswith(self.only)

    def wanted(self, cases: Mapping[str, T]) -> Iterator[tuple[str, T]]:
        """Yield the name and the value of each case that should run."""
        return ((name, value) for name, value in cases.items() if self.wants(name))

    @property
    def two_phases(self) -> dict[str, Any] | None:
        """The settings that make every batch take two phases; None if ``write_by`` is already set."""
        if "write_by" in self.exactly_once:
            return None
        return {**self.exactly_once, "write_by": "tasks"}


def parsed(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse ``name=value`` pairs. A value that is not JSON is taken as text.

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
