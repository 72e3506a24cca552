"""What is started and closed again, as a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Startable(ABC):
    """Something that a `with` block starts and closes; it is closed, too, where its start fails."""

    @abstractmethod
    def start(self) -> None:
        """Start, and return when it serves."""

    @abstractmethod
    def close(self) -> None:
        """End it and remove what it need not leave."""

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
        """End; see `close`."""
        self.close()
