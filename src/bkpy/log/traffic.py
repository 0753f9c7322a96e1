"""What goes through the named logs of one client, for its metrics: a count a block, never one an entry.

Invariant: at most `metrics_logs_max` logs have counts of their own; all others share one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from bkpy.metadata.logs.maintenance import LOG_NAME, LOG_PRODUCER
from bkpy.protocol.wire.records import NUMBERED, PLAIN, STAMP_SIZES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from bkpy.client.write.writer import LedgerWriter
    from bkpy.config.client import ClientSettings
    from bkpy.log.entries import LogBlock

    Lag = tuple[int, int, float]  # a `ConsumerLag`

OTHERS: Final = "(others)"  # no log's name has parentheses


class OpenWriter(Protocol):
    """A writer of a log."""

    @property
    def name(self) -> str:
        """The log's name."""

    @property
    def usable(self) -> bool:
        """Whether it goes on."""


class OpenConsumer(Protocol):
    """A consumer of a log."""

    @property
    def log(self) -> str:
        """The log's name."""

    @property
    def name(self) -> str:
        """Its own."""

    @property
    def position(self) -> int:
        """The next position that it has to read."""


class LogTraffic:
    """Of one log: what was read, and what the ended writers of its ledgers had acknowledged."""

    __slots__ = ("appended_bytes", "appended_entries", "read_bytes", "read_entries")

    def __init__(self) -> None:
        self.appended_entries = self.appended_bytes = 0
        self.read_entries = self.read_bytes = 0

    def read(self, block: LogBlock) -> None:
        self.read_entries += len(block)
        self.read_bytes += block.payload_bytes


class Appended(NamedTuple):
    """What a writer of a ledger has had acknowledged. `log`: the log that the ledger is made for, empty for none."""

    log: str
    entries: int
    bytes: int
    failed: int


def appended(writer: LedgerWriter) -> Appended:
    """Of this writer, by now."""
    pending, custom = writer.pending, writer.metadata.custom_metadata
    entries, bytes_, name = pending.confirmed_entries, pending.length, custom.get(LOG_NAME)
    if name is not None:
        bytes_ -= entries * STAMP_SIZES[NUMBERED if LOG_PRODUCER in custom else PLAIN]
    failed = pending.next_id - entries if pending.replication.error is not None else 0
    return Appended("" if name is None else name.decode(), entries, bytes_, failed)


class OpenLogs:
    """The traffic of each log; and how to measure the lags of a writer's log, and of a consumer from its position.

    Both read the log anew, so that no reader of an application learns from them.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.traffic: dict[str, LogTraffic] = {}
        self.writers: WeakKeyDictionary[OpenWriter, Callable[[], Awaitable[Mapping[str, Lag]]]] = WeakKeyDictionary()
        self.consumers: WeakKeyDictionary[OpenConsumer, Callable[[int], Awaitable[Lag]]] = WeakKeyDictionary()
        self.ended = LogTraffic()  # the ended writers of all ledgers, of logs and others
        self.failed_appends = 0  # of these
        self._logs_max = settings.metrics_logs_max

    def of(self, name: str) -> LogTraffic:
        """The counts of this log."""
        return self.traffic.setdefault(self.name_of(name), LogTraffic())

    def name_of(self, name: str) -> str:
        """The name by which the log is counted."""
        return name if name in self.traffic or len(self.traffic) < self._logs_max else OTHERS

    def end(self, writer: LedgerWriter) -> None:
        """Keep what the writer has counted, which has ended."""
        done = appended(writer)
        self.failed_appends += done.failed
        for traffic in (self.ended, self.of(done.log)) if done.log else (self.ended,):
            traffic.appended_entries += done.entries
            traffic.appended_bytes += done.bytes
