"""A prepared transaction as the driver holds it (its handle), and what is proven of it (evidence)."""

from __future__ import annotations

from enum import Enum
from typing import Protocol, TypeVar


class Evidence(Enum):
    """What is proven of a prepared transaction. Only proof counts: an error from a broker proves nothing."""

    COMMITTED = "committed"  #: proven visible, for good
    ABORTED = "aborted"  #: proven never to become visible; "lost" if it was decided
    UNKNOWN = "unknown"  #: neither is proven (yet)


class Handle(Protocol):
    """What the driver needs to end a prepared transaction: frozen, picklable, and a dataclass of JSON values."""

    @property
    def transaction(self) -> str:
        """The transaction's name in messages to people."""


HandleT = TypeVar("HandleT", bound=Handle)
