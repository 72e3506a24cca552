"""The settings of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field

from twopc.batch import Overrides
from twopc.errors import ConfigurationError


@dataclass(frozen=True)
class Settings:
    """How a coordinator behaves.

    Attributes:
        overrides: which queries the user allows this one to adopt or end.
        add_sink: the name of a sink that may join a checkpoint which was bound without it.
        max_attempts: how often a batch is prepared before its error stops the query.
        keep_batches: how many decisions are kept, including the last; at least as many as the engine keeps batches.

    Raises:
        ConfigurationError: a count is below 1.
    """

    overrides: Overrides = field(default_factory=Overrides)
    add_sink: str | None = None
    max_attempts: int = 3
    keep_batches: int = 100

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("max_attempts", "keep_batches"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)} is too low: set it to 1 or more")
