"""What the storage engine reports about itself while it runs; the bookie makes metrics and log lines of it."""

from __future__ import annotations

from typing import Protocol


class StorageObserver(Protocol):
    """Called on the event loop. Must not raise, and must be quick."""

    def journal_group(self, frames: int, bytes_: int, sync_seconds: float) -> None:
        """One group commit: requests in it, bytes written, seconds of write and sync together."""

    def checkpoint(self, bytes_: int, seconds: float) -> None:
        """One shard's checkpoint: bytes of memtable written out, seconds from seal to commit."""

    def replayed(self, frames: int, bytes_: int) -> None:
        """At start: commit frames and bytes that were read from a journal."""

    def compacted(self, bytes_: int) -> None:
        """That many bytes of blocks were copied from entry logs in which little lives."""

    def log_removed(self, bytes_: int) -> None:
        """An entry log of that many bytes was removed, because nothing in it lives."""

    def reclaim_failed(self) -> None:
        """A round of giving space back was ended by an error of a file, and is tried again later."""

    def scrubbed(self, bytes_: int) -> None:
        """The scrub has read and verified that many bytes of blocks."""

    def damage(self, what: str, path: str) -> None:
        """Stored bytes were found damaged, or could not be read; `what` says which and what was done about it."""


class NoObserver:
    """Hears nothing."""

    def journal_group(self, frames: int, bytes_: int, sync_seconds: float) -> None: ...

    def checkpoint(self, bytes_: int, seconds: float) -> None: ...

    def replayed(self, frames: int, bytes_: int) -> None: ...

    def compacted(self, bytes_: int) -> None: ...

    def log_removed(self, bytes_: int) -> None: ...

    def reclaim_failed(self) -> None: ...

    def scrubbed(self, bytes_: int) -> None: ...

    def damage(self, what: str, path: str) -> None: ...


NO_OBSERVER = NoObserver()
