"""Define the parts of error messages that differ between table formats."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """The parts of error messages that depend on the table's format.

    Attributes:
        moved: names the value that other drivers have moved, such as a tag.
        recreated: says that a new table has replaced the table.
        restored: says that the table has lost a running driver's commits.
        lost: says, when a driver starts, that the table has lost commits.
    """

    moved: str
    recreated: str
    restored: str
    lost: str
