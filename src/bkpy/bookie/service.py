"""What all requests of a bookie are served from: its storage, the limits that they share, and whether it takes entries.

Invariants: what all connections receive into, and their answers in memory, are bounded; a read-only bookie takes no
entries but those that a recovery writes back, and one that leaves the cluster not even those; a bookie that stops
starts nothing new and keeps no long poll waiting.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from bkpy.bookie.connection.answers import Answers
from bkpy.bookie.connection.chunks import BookieChunks
from bkpy.bookie.connection.complaint import Complaint
from bkpy.bookie.connection.keys import KeyAuthority, KeyMemory
from bkpy.bookie.connection.waiters import Waiters
from bkpy.protocol.wire.receive_buffer import ReceiveBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bkpy.bookie.metrics import BookieMetrics
    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.ledgers.metadata_probe import MetadataProbe
    from bkpy.runtime.interfaces import Runtime
    from bkpy.storage.engine import LedgerStorage


class BookieService:
    """`read_only`, `leaves` and `stopping` are looked at by all connections, and changed by the methods here only."""

    def __init__(
        self,
        settings: BookieSettings,
        storage: LedgerStorage,
        runtime: Runtime,
        metrics: BookieMetrics,
        metadata: MetadataProbe,
    ) -> None:
        self.settings = settings
        self.storage = storage
        self.metrics = metrics
        self.bookie_id = settings.bookie_id
        self.log = logging.getLogger("bkpy.bookie")
        # The memtable's two generations are what keeps most of them.
        self.chunks = BookieChunks(
            storage.memory,
            spares_max=2 * settings.memtable_bytes_max // settings.receive_chunk_bytes_max
            + settings.receive_spare_chunks,
            bytes_min=settings.receive_chunk_bytes_min,
            bytes_max=settings.receive_chunk_bytes_max,
            room_bytes_min=settings.receive_room_bytes_min,
        )
        self.receive_budget = ReceiveBudget(settings.receive_bytes_max)
        self.answers = Answers(
            settings.answers_at_once,
            settings.answers_bytes_max,
            storage.memory.part("answers", set_aside=settings.answers_bytes_max),
        )
        self.requests_in_flight = 0  # of all connections, not counting ADDs
        self.waiters = Waiters()
        self.read_only = False
        self.leaves = False  # the cluster: it takes no entry at all
        self.stopping = False
        self._runtime = runtime
        self.complain_of_frames = self.complaint()
        self.key_memory = KeyMemory(storage.memory, settings.presented_keys_bytes_max)
        self.key_authority = KeyAuthority(storage, metadata, settings, metrics.key_decided, self.complaint())

    def complaint(self) -> Complaint:
        """A new kind of warning that strangers can provoke."""
        return Complaint(self.log, self._runtime.clock, self.settings.complaint_interval_s)

    def refuse_entries(self) -> None:
        """Become read-only, from this call on."""
        self.read_only = True

    def take_entries(self) -> None:
        """Be read-only no longer."""
        self.read_only = False

    def leave(self) -> None:
        """Be read-only for recoveries as well, from this call on."""
        self.leaves = self.read_only = True

    def stay(self) -> None:
        """Take what recoveries write back again."""
        self.leaves = False

    def rest(self) -> bool:
        """Let go of memory that nobody needed since the last time, and flush what nothing was added to; whether any."""
        spares = self.chunks.rest()
        return self.storage.release_idle() or spares

    @property
    def idle(self) -> bool:
        """Whether there was no load between the last two rests, and little is left of it in memory."""
        return self.chunks.idle and self.storage.memory_bytes < self.settings.memtable_rest_bytes_min

    def wind_down(self) -> None:
        """Start nothing new from this call on, and let every long poll be answered with what there is."""
        self.stopping = True
        self.waiters.end_all()

    def spawn(self, coro: Coroutine[Any, Any, None], name: str, abort: Callable[[], None]) -> None:
        """Run a request. A defect in serving it costs its client the connection (`abort`), and harms no other."""

        def died(error: BaseException) -> None:
            self.log.error("%s failed", name, exc_info=error)
            abort()

        self._runtime.spawn(coro, name=name, on_death=died)
