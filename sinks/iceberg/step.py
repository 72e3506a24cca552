"""One step of the driver: the table is read once, and what the step changes is committed when it ends, wholly or not at all."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from typing import TYPE_CHECKING, Final

from twopc.sinks.iceberg.errors import OvertakenError, StoreError, text_of
from twopc.sinks.iceberg.proposal import Change, propose
from twopc.sinks.iceberg.record import Published, read_tag
from twopc.sinks.iceberg.store import delete

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table import Table

    from twopc.sinks.iceberg.proposal import Additions, Proposal
    from twopc.sinks.iceberg.record import Tagged
    from twopc.sinks.iceberg.store import Store

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 5.0


class Step:
    """See above. All that a step reads of the sink hangs on its tag, so the step is valid as long as the tag has not moved.

    Attributes:
        table: the table as it was read.
        tagged: the sink's tag in it.
        control: the control record that the step writes; None if it changes none.
        published: the outcome that the step writes; None if it changes none.
        additions: the files that the step adds to the table.
    """

    def __init__(self, store: Store, sink: str) -> None:
        self._store = store
        self._sink = sink
        self.table: Table = store.load()
        self.tagged: Tagged | None = read_tag(self.table.metadata, sink)
        self.control: bytes | None = None
        self.published: Published | None = None
        self.additions: Additions = {}

    def end(self, timeout_ms: int) -> None:
        """Commit the step's changes, if there are any.

        A commit of others in between costs another try. A commit without an answer is repeated, too: since the tag moves by
        compare-and-set, at most one of the tries takes effect, no matter how late.

        Raises:
            OvertakenError: another driver has moved the tag.
            StoreError: the catalog has refused or not answered for too long. The outcome is unknown.
        """
        if self.control is None and self.published is None:
            return
        ends_at, pause_s = time.monotonic() + timeout_ms / 1000, _FIRST_PAUSE_S
        tried: list[Proposal] = []
        while True:
            tried.append(self._proposal())
            failure = self._commit(tried[-1])
            landed = tried[-1] if failure is None else self._find_landed(tried, failure, ends_at)
            if failure is None or landed:
                break
            if time.monotonic() >= ends_at:
                raise failure
            logger.info("sink %r: a commit was refused or not answered, trying again: %s", self._sink, failure)
            time.sleep(random.uniform(0.5, 1) * pause_s)  # noqa: S311 - not a secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        # A successor may have moved the tag on by now, so the tag does not say which try it was.
        self._tidy(proposal for proposal in tried if proposal is not landed)

    def _proposal(self) -> Proposal:
        tagged = self.tagged
        control = self.control or (tagged.control if tagged else b"")
        published = self.published or (tagged.published if tagged else Published())
        snapshot_id = tagged.snapshot_id if tagged else None
        return propose(self.table, self._sink, snapshot_id, Change(control, published, self.additions))

    def _commit(self, proposal: Proposal) -> StoreError | None:
        try:
            self._store.commit(self.table, proposal.requirements, proposal.updates)
        except StoreError as error:
            return error
        return None

    def _find_landed(self, tried: list[Proposal], failure: StoreError, ends_at: float) -> Proposal | None:
        """The try that took effect after all. Reads the table again; the next try is made for what it has now."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                table = self._store.load()
                break
            except StoreError:
                if time.monotonic() >= ends_at:
                    raise failure from None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if table.metadata.table_uuid != self.table.metadata.table_uuid:
            raise failure
        tagged = read_tag(table.metadata, self._sink)
        now, before = (None if one is None else one.snapshot_id for one in (tagged, self.tagged))
        if landed := next((proposal for proposal in tried if proposal.snapshot_id == now), None):
            return landed
        if now != before:
            raise OvertakenError(f"another driver has moved the sink's tag: {text_of(failure)}")
        self.table = table
        return None

    def _tidy(self, failed: Iterable[Proposal]) -> None:
        """Delete the metadata files of tries that took no effect. The tag has moved since, so they never will."""
        with contextlib.suppress(StoreError):
            for proposal in failed:
                for path in proposal.paths:
                    delete(self.table, path)
