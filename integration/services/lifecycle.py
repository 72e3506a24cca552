"""Start and close something with a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Startable(ABC):
    """A `with` block starts it and closes it; a failed start closes it too."""

    @abstractmethod
    def start(self) -> None:
        """Start; return when it is ready."""

    @abstractmethod
    def close(self) -> None:
        """Stop it and remove its temporary files."""

    def __enter__(self) -> Self:
        """Start; see `start`."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; see `close`."""
        self.close()
