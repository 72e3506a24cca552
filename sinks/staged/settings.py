"""Check the arguments that all staged sinks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from twopc.errors import ConfigurationError
from twopc.sinks.sink_names import RULE, is_sink_name

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
class StagedSettings(ABC):
    """The settings that a writer and a committer need. The sink's class documents the arguments.

    Attributes:
        positive: the arguments that must be positive numbers.

    Raises:
        ConfigurationError: an argument is invalid. The message identifies the argument and says what to pass instead.
    """

    positive: ClassVar[tuple[str, ...]] = ("chunk_rows", "chunk_bytes", "timeout_ms")

    name: str
    mapping: RowMapping
    chunk_rows: int = 1_000
    chunk_bytes: int
    timeout_ms: int

    def __post_init__(self) -> None:
        self._require(is_sink_name(self.name), "name", RULE)
        for argument in self.positive:
            self._require(getattr(self, argument) > 0, argument, "set a positive number")

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

    def _require(self, is_valid: object, argument: str, advice: str) -> None:
        if not is_valid:
            field = self.__dataclass_fields__[argument]
            shown = repr(getattr(self, argument)) if field.repr else "…"  # the value may contain a password
            raise ConfigurationError(f"{type(self).__name__}({argument}={shown}): {advice}")
