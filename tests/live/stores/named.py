"""The place of the sinks for ``--sinks`` in these tests."""

from __future__ import annotations

from typing import Any

SINKS: list[Any] = []
