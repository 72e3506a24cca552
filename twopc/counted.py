"""Format a number with its noun, for messages."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """Return text such as ``1 row`` or ``2,000 rows``; pass ``many`` for an irregular plural."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
