"""The events that the storage engine reports while it runs; the bookie makes metrics and log lines of them."""

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
        """Compaction copied that many bytes of blocks from entry logs that are mostly dead."""

    def log_removed(self, bytes_: int) -> None:
        """An entry log of that many bytes was removed, because no row names a block of it."""

    def reclaim_failed(self) -> None:
        """An error of a file ended a round of reclaiming space, which is retried later."""

    def scrubbed(self, bytes_: int) -> None:
        """The scrub has read and verified that many bytes of blocks."""

    def cut(self, what: str, path: str) -> None:
        """What a crash left behind all that was acknowledged was cut off; `what` says where. That is no damage."""

    def damage(self, what: str, path: str) -> None:
        """Stored bytes are damaged or unreadable; `what` says which bytes, and what was done about it."""


class NoObserver:
    """Ignores all events."""

    def journal_group(self, frames: int, bytes_: int, sync_seconds: float) -> None: ...

    def checkpoint(self, bytes_: int, seconds: float) -> None: ...

    def replayed(self, frames: int, bytes_: int) -> None: ...

    def compacted(self, bytes_: int) -> None: ...

    def log_removed(self, bytes_: int) -> None: ...

    def reclaim_failed(self) -> None: ...

    def scrubbed(self, bytes_: int) -> None: ...

    def cut(self, what: str, path: str) -> None: ...

    def damage(self, what: str, path: str) -> None: ...


NO_OBSERVER = NoObserver()
