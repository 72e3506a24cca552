"""The first act of a driver: check, fence the former driver, read what it decided, complete it, sweep the rest (rule 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.attempt import Claim
from twopc.batch import locate
from twopc.binding import FORMAT as BINDING_FORMAT
from twopc.binding import Bound
from twopc.crash_points import crash_point
from twopc.log_view import fold
from twopc.ownership import require_newest, require_same_log_owner, require_same_owner
from twopc.recovery import Outcome, lookup
from twopc.refusals import refused
from twopc.run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.batch import Batch
    from twopc.binding import Binding
    from twopc.decision_log import DecisionLog
    from twopc.log_view import LogView
    from twopc.participants import Participants
    from twopc.settings import Settings
    from twopc.staged_rows import StagedRows


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a driver starts from.

    Attributes:
        participants: the sinks.
        log: the deciding log.
        binding: what the checkpoint is bound to.
        settings: what the user has set.
        staging: the rows that tasks keep until they are proven, if they do.
        run_id: one for all tries of this driver, so that acquiring twice does not fence a newer driver.
    """

    participants: Participants
    log: DecisionLog
    binding: Binding
    settings: Settings
    staging: StagedRows | None
    run_id: str

    def recover(self, batch: Batch) -> Run:
        """Become the driver. May be repeated after an error.

        Raises:
            RefusedStartError: this query must not start.
            TwoPhaseCommitError: recovery failed; nothing was decided.
        """
        owners = self._check_read_only(batch)
        crash_point("driver.inspected")

        claim = Claim(query_id=batch.query_id, run=self.run_id, deciding_log=self.log.name)
        log_epoch = self.log.acquire(claim)  # from here on the former driver can decide nothing
        driver_epochs = self.participants.acquire(claim)
        view = fold(self.log.read())  # up to this driver's own record: nothing can be missing before it
        crash_point("driver.acquired")

        bound = self._bound_now()
        self.binding.check(bound, add_sink=self.settings.add_sink)
        self._require_startable(view, batch, owners)
        decision = view.decision
        handles = self.participants.decode(decision.tasks if decision else ())
        evidence = self.participants.recover(handles, decision.scan_start if decision else {})
        crash_point("driver.recovered")
        return Run(
            participants=self.participants,
            log=self.log,
            binding=self.binding,
            bound=bound,
            settings=self.settings,
            staging=self.staging,
            log_epoch=log_epoch,
            driver_epochs=driver_epochs,
            view=view,
            handles=handles,
            evidence=evidence,
            batch=batch,
        )

    def _check_read_only(self, batch: Batch) -> dict[str, str | None]:
        """Refuse what can be refused before a healthy driver is fenced; returns who owned each sink last."""
        overrides = self.settings.overrides
        owners = self.participants.inspect()
        require_same_owner(owners, batch, overrides)
        self.binding.check(self._bound_now(), add_sink=self.settings.add_sink)
        decided = self.log.inspect()
        self._require_startable(fold(decided), batch, owners)
        require_same_log_owner(self.participants, self.log, decided, batch, overrides)
        return owners

    def _require_startable(self, view: LogView, batch: Batch, owners: Mapping[str, str | None]) -> None:
        position = locate(view, batch, self.settings.overrides)
        case = lookup(view.status, Outcome.COMMITTED, position, staged=False)
        if case.step.stops:
            raise refused(case, position, view, batch, self.log.name)
        require_newest(self.participants, owners, view, batch, self.settings.overrides)

    def _bound_now(self) -> Bound:
        return Bound(
            format=BINDING_FORMAT,
            log=self.log.name,
            log_identity=self.log.identity(),
            sinks=self.participants.bindings(),
        )
