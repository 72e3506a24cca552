"""How a committer reports the failures of its steps: as an error, as a blocker of a decided batch, or in the log."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from twopc.errors import FencedError, RestoredError, UnavailableError, release

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twopc.errors import TwoPhaseCommitError

logger = logging.getLogger(__name__)


class StepFailures:
    """See :class:`twopc.control_committer.ControlCommitter`.

    Args:
        name: the sink's name.
    """

    failures: tuple[type[Exception], ...] = (UnavailableError,)

    def __init__(self, name: str) -> None:
        self.name = name
        self._blockers: list[str] = []

    def explain(self, error: Exception, what: str) -> TwoPhaseCommitError:
        """Build the error for one of ``failures`` that came before the decision.

        The message begins with the sink and step (``what``).
        """
        return UnavailableError(f"{what}: {text_of(error)}")

    def reason(self, error: Exception) -> str:
        """Say why one of ``failures`` stopped a decided batch, for :meth:`blockers`."""
        return text_of(error)

    def blockers(self) -> Sequence[str]:
        """See :class:`SinkCommitter`."""
        return self._blockers

    @contextmanager
    def _try(self, what: str) -> Iterator[None]:
        """Turn a failure before the decision into an error that makes the attempt fail."""
        try:
            yield
        except self.failures as error:
            raise self.explain(error, self._named(what)) from error

    @contextmanager
    def _tidy(self, what: str) -> Iterator[None]:
        """Log a failure of an operation that no decided batch depends on."""
        try:
            yield
        except FencedError:
            logger.warning("sink %r: another driver has fenced this one, and will take care of %s", self.name, what)
        except RestoredError as error:
            logger.warning("%s. Because of this, %s was skipped", error, what)
            release(error)
        except self.failures as error:
            logger.warning(
                "sink %r: %s failed and will be retried. No data is at risk. Cause: %s", self.name, what, error
            )
            release(error)

    def _block(self, reason: str) -> None:
        self._blockers.append(self._named(reason))

    def _named(self, text: str) -> str:
        return f"sink {self.name!r}, {text}"


def text_of(error: Exception) -> str:
    """Return the error's message, or its class name if the message is empty."""
    return str(error) or type(error).__name__
