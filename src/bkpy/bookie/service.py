"""The parts that all requests of a bookie share: its storage, their limits, and whether it takes entries.

Invariants: the memory that all connections receive into, and that of their answers, is bounded; so are the requests in
flight, half of whose places long polls never get; a read-only bookie stores only entries that a recovery writes back,
and a draining one stores none; a bookie that stops starts no new request and keeps no long poll waiting.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from bkpy.bookie.connection.answers import Answers
from bkpy.bookie.connection.chunks import BookieChunks
from bkpy.bookie.connection.complaint import Complaint
from bkpy.bookie.connection.keys import KeyAuthority, KeyMemory
from bkpy.bookie.connection.shaking_hands import ShakingHands
from bkpy.bookie.connection.waiters import Waiters
from bkpy.protocol.wire.receive_buffer import ReceiveBudget
from bkpy.runtime.slow_requests import SlowRequests
from bkpy.runtime.tls import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bkpy.bookie.metrics import BookieMetrics
    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.ledgers.metadata_probe import MetadataProbe
    from bkpy.runtime.interfaces import Runtime
    from bkpy.storage.engine import LedgerStorage


class BookieService:
    """All connections read `read_only`, `leaves` and `stopping`; only the methods here change them."""

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
        # The memtable's two generations keep most of them.
        self.chunks = BookieChunks(
            storage.memory,
            free_max=2 * settings.memtable_bytes_max // settings.receive_chunk_bytes_max
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
        self.request_end = asyncio.Event()  # set whenever a request or a connection ends while the bookie stops
        self._runtime = runtime
        self.complain_of_frames = self.complaint()
        self.complain_of_authentication = self.complaint()
        self.shaking_hands = ShakingHands(settings.tls_handshakes_max, metrics.connection_refused, self.complaint())
        # One each: a client that fails again and again for one reason must not hide one that fails for another.
        self._complain_of_tls = {failure: self.complaint() for failure in Failure}
        self.now = runtime.clock.monotonic
        self.slow = SlowRequests(self.log, runtime.clock, settings.slow_request_ms)
        self.key_memory = KeyMemory(storage.memory, settings.presented_keys_bytes_max)
        self.key_authority = KeyAuthority(storage, metadata, settings, metrics.key_decided, self.complaint())

    def complaint(self) -> Complaint:
        """A rate-limited warning, of a new kind, for what any client can provoke."""
        return Complaint(self.log, self._runtime.clock, self.settings.complaint_interval_s)

    def refused_by_tls(self, failure: Failure, address: str, reason: str) -> None:
        """Count and log a client whose handshake failed, or that speaks no TLS."""
        self.metrics.handshake_failed(failure)
        self._complain_of_tls[failure]("refused %s: %s", address, reason)

    def refuse_entries(self) -> None:
        """Become read-only, from this call on."""
        self.read_only = True

    def take_entries(self) -> None:
        """Be writable from this call on."""
        self.read_only = False

    def leave(self) -> None:
        """Be read-only for recoveries as well, from this call on."""
        self.leaves = self.read_only = True

    def stay(self) -> None:
        """Store what recoveries write back again."""
        self.leaves = False

    def release_idle(self) -> bool:
        """Release memory that was not needed since the last call, and flush idle memtables; whether there was any."""
        released = self.chunks.release_idle()
        return self.storage.release_idle() or released

    @property
    def idle(self) -> bool:
        """Whether there was no load between the last two calls of `release_idle`, and memory has few entries left."""
        return self.chunks.idle and self.storage.memory_bytes < self.settings.memtable_rest_bytes_min

    def wind_down(self) -> None:
        """Start no new request from this call on, and answer every long poll with what there is."""
        self.stopping = True
        self.waiters.end_all()

    def too_many_requests(self, *, long_poll: bool) -> bool:
        """Whether a further request, of whichever connection, is one too many.

        Long polls get half of the places: what waits for hours keeps no read, and no fence, from being served.
        """
        most = self.settings.requests_in_flight_total_max
        return self.requests_in_flight >= (most // 2 if long_poll else most)

    def request_ended(self) -> None:
        """A request was answered or dropped, or a connection is gone: a stop waits for the last of them."""
        if self.stopping:
            self.request_end.set()

    def spawn(self, coro: Coroutine[Any, Any, None], name: str, abort: Callable[[], None]) -> None:
        """Run a request. A defect in it costs its client the connection (`abort`), and harms no other client."""

        def died(error: BaseException) -> None:
            self.log.error("%s failed", name, exc_info=error)
            abort()

        self._runtime.spawn(coro, name=name, on_death=died)
