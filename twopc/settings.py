"""What a user sets about a coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field

from twopc.batch import Overrides
from twopc.errors import ConfigurationError


@dataclass(frozen=True)
class Settings:
    """How a coordinator behaves.

    Attributes:
        overrides: what the user has allowed by name.
        add_sink: a sink that may join a bound checkpoint.
        max_attempts: how often a batch is prepared before its error is the query's.
        keep_batches: decisions kept, the last one included; at least as many as the engine keeps batches.

    Raises:
        ConfigurationError: a count below one.
    """

    overrides: Overrides = field(default_factory=Overrides)
    add_sink: str | None = None
    max_attempts: int = 3
    keep_batches: int = 100

    def __post_init__(self) -> None:
        """Check."""
        for name in ("max_attempts", "keep_batches"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)}: set it to 1 or more")
