"""An object store at its worst, as the files of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Objects:
    """See :class:`twopc.files.Files`. Nothing is listed before :meth:`show`.

    A put looks for the file when it begins. The file appears in :meth:`close`, and replaces any file that was closed in between.
    Every reader and writer of the same ``content`` shares the store.
    """

    location: str = "s3a://bucket/checkpoint/twopc"
    content: dict[str, bytes] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    is_atomic = False

    def show(self) -> None:
        """List all files from now on."""
        self.listed |= self.content.keys()

    def read(self, name: str) -> bytes | None:
        return self.content.get(name)

    def read_end(self, name: str, size: int) -> bytes | None:
        data = self.read(name)
        return None if data is None else data[-size:]

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        return sorted({name.removeprefix(prefix).split("/")[0] for name in self.listed if name.startswith(prefix)})

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name in self.content:
            return False
        self.close(name, data)
        return True

    def close(self, name: str, data: bytes) -> None:
        """End a put. A test replaces this method to pause or kill a driver in its put."""
        self.content[name] = data

    def remove(self, name: str) -> None:
        self.content.pop(name, None)
        self.listed.discard(name)
