"""Check the arguments that all staged sinks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from twopc.sinks.arguments import Arguments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.sinks.staged.client import StoreClient


#: A server that hangs never responds to a call, even if another server has replaced it. So ``timeout_ms`` must leave
#: time for several tries.
_TRIES: Final = 3


class RowMapping(Protocol):
    """Converts rows to a store's commands."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the mapping needs."""


@dataclass(frozen=True, kw_only=True)
class StagedSettings(Arguments, ABC):
    """The settings that a writer and a committer need; see :class:`Arguments`."""

    positive: ClassVar = (*Arguments.positive, "chunk_rows", "chunk_bytes")

    mapping: RowMapping
    chunk_rows: int = 1_000
    chunk_bytes: int
    timeout_ms: int

    @property
    def columns(self) -> frozenset[str]:
        """See :class:`TwoPhaseCommitSink`. Choose the mapping's columns."""
        return self.mapping.columns

    @property
    def response_timeout_s(self) -> float:
        """How long one call waits for its response, before the client looks for the server again."""
        return self.timeout_ms / 1000 / _TRIES

    @abstractmethod
    def create_client(self) -> StoreClient[Any]:
        """Create a client, which the caller must close. The client is not connected yet."""

    @abstractmethod
    def objections(self, found: Any) -> Iterator[tuple[bool, str]]:
        """Yield the possible objections to a store that has these properties.

        Each objection consists of a flag, which says whether the objection applies, and advice. The caller stops at the first
        objection that applies.
        """

    def cautions(self, found: Any) -> Iterator[tuple[bool, str]]:
        """Yield the possible weaknesses of a usable store that has these properties, in the form of :meth:`objections`."""
        del found
        return iter(())
