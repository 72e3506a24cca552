"""Read what an operator forced, which the product only writes down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.integration.operate.journal import FORMAT, Act
from twopc.sealed import unseal

if TYPE_CHECKING:
    from pathlib import Path


def acts_in(directory: Path) -> list[Act]:
    """All forced actions, oldest first."""
    files = sorted(directory.glob("operator-*.json"))
    return [unseal(file.read_bytes(), Act, of_format=FORMAT) for file in files]
