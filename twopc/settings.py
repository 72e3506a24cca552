"""Define a coordinator's settings and parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twopc.errors import ConfigurationError
from twopc.override import Overrides

if TYPE_CHECKING:
    from twopc.binding import Binding
    from twopc.decision_log import DecisionLog
    from twopc.engine import StagedRows
    from twopc.participants import Participants


@dataclass(frozen=True)
class Settings:
    """The user's settings for a coordinator.

    Attributes:
        overrides: the user's permissions for actions that would otherwise be rejected.
        max_attempts: how many times a batch is prepared before an error stops the query.
        keep_batches: how many decisions are retained, including the last one. This number must not be less than the
            number of batches that the engine retains.

    Raises:
        ConfigurationError: a count is below 1.
    """

    overrides: Overrides = field(default_factory=Overrides)
    max_attempts: int = 3
    keep_batches: int = 100

    def __post_init__(self) -> None:
        for name in ("max_attempts", "keep_batches"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be 1 or more, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The parts of a driver that recovery does not replace.

    Attributes:
        log: the log that stores the decisions.
        staging: the store for rows that tasks retain until their transactions are proven; None if tasks retain no rows.
        driver_run_id: the id that this driver uses for every acquisition, so that a repeated acquisition does not fence
            a newer driver.
    """

    participants: Participants
    log: DecisionLog
    binding: Binding
    settings: Settings
    staging: StagedRows | None
    driver_run_id: str

    @property
    def other_logs(self) -> dict[str, DecisionLog]:
        """The logs that do not store this query's decisions, by the name of the sink that provides each log."""
        return {name: log for name, log in self.participants.logs().items() if log is not self.log}

    @property
    def decides_in_checkpoint(self) -> bool:
        """Whether the decisions are in the checkpoint. If they are, each copy of the checkpoint has its own decisions."""
        return self.log not in self.participants.decision_logs()
