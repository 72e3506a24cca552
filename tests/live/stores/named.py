"""The module that ``--sinks`` names in these tests."""

from __future__ import annotations

from typing import Any

SINKS: list[Any] = []
