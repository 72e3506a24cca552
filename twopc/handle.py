"""What the driver holds of a prepared transaction: its handle, and what is proven of it."""

from __future__ import annotations

from enum import Enum
from typing import Protocol, TypeVar


class Evidence(Enum):
    """What is proven of a prepared transaction. Only proof counts: an error from a broker proves nothing."""

    COMMITTED = "committed"  #: proven visible, for ever
    ABORTED = "aborted"  #: proven never to become visible ("lost", where it was decided)
    UNKNOWN = "unknown"  #: neither is proven (yet)


class Handle(Protocol):
    """What the driver needs to end a prepared transaction: frozen, picklable, and a dataclass of JSON values."""

    @property
    def transaction(self) -> str:
        """The transaction's name in messages to people."""


HandleT = TypeVar("HandleT", bound=Handle)
