"""The channels of a client to bookies: one `BookieChannel` for each, made at first use."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from bkpy.client.bookies.channel import BookieChannel
from bkpy.client.bookies.latency import ReadLatency
from bkpy.errors import ClientClosedError
from bkpy.protocol.wire.receive_buffer import ChunkPool
from bkpy.runtime.loop_guard import LoopGuard
from bkpy.runtime.slow_requests import SlowRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bkpy.client.bookies.channel import NewConnection
    from bkpy.client.bookies.dialling import Dialler
    from bkpy.config.client import ClientSettings
    from bkpy.metadata.bookies.registration import BookieDirectory
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.client")

_LINGER_PAUSE_S: Final = 0.001  # before the second look, and twice as long before each further one


class BookiePool:
    """Channels by bookie id, and the keys of the ledgers that this client writes."""

    def __init__(
        self,
        directory: BookieDirectory,
        dialler: Dialler,
        settings: ClientSettings,
        runtime: Runtime,
        *,
        instance_id: str,
        software: str,
        new_connection: NewConnection | None = None,
    ) -> None:
        self.guard = LoopGuard()  # of the client, and of all that it makes
        self._directory = directory
        self._settings = settings
        self._runtime = runtime
        self._instance_id = instance_id
        self._new_connection = new_connection
        self._channels: dict[str, BookieChannel] = {}
        self._keys: dict[int, bytes] = {}
        self._more_users: Counter[int] = Counter()  # a ledger may be written and recovered by the same client
        self._closed = False
        self._chunks = ChunkPool(settings.receive_chunks_max)
        self._dialler = dialler
        self.congested: set[BookieChannel] = set()
        self._on_relief: list[Callable[[], None]] = []
        self.latency = ReadLatency(settings)
        # One sequence for all connections: the same ADD frame, its correlation id included, goes to several bookies.
        self.next_id = itertools.count(1).__next__
        # Not drawn: a client's randomness is that of its decisions.
        began = f"{runtime.process} {runtime.clock.time()} {runtime.clock.monotonic()}"
        self.client_id = f"{crc32c(began.encode()):08x}"
        self._greeting = f"{software} {self.client_id}"
        self._slow = SlowRequests(log, runtime.clock, settings.slow_request_ms)
        self._observe: Callable[[BookieChannel], None] | None = None

    def channel(self, bookie_id: str) -> BookieChannel:
        if self._closed:
            raise ClientClosedError("the client is closed", bookie=bookie_id)
        channel = self._channels.get(bookie_id)
        if channel is None:
            channel = self._channels[bookie_id] = BookieChannel(
                bookie_id,
                self._directory.address_of,
                self._dialler,
                self._settings,
                self._runtime,
                instance_id=self._instance_id,
                software=self._greeting,
                key_of=self._keys.get,
                next_id=self.next_id,
                slow=self._slow,
                client_id=self.client_id,
                on_congestion=self._congestion,
                chunks=self._chunks,
                new_connection=self._new_connection,
            )
            if self._observe is not None:
                self._observe(channel)
        return channel

    @property
    def channels(self) -> list[BookieChannel]:
        """All that were used so far."""
        return list(self._channels.values())

    def observe(self, observe: Callable[[BookieChannel], None]) -> None:
        """Call `observe` with each channel, now or when it is made."""
        self._observe = observe
        for channel in self._channels.values():
            observe(channel)

    def _congestion(self, channel: BookieChannel, congested: bool) -> None:
        if congested:
            self.congested.add(channel)
        else:
            self.congested.discard(channel)
            for relieved in self._on_relief:
                relieved()

    def on_relief(self, relieved: Callable[[], None]) -> None:
        """Call `relieved` whenever a bookie stops being congested, by whichever writer it was.

        The futures of the appends that it has answered are done by then, but their waiters have not run yet.
        """
        self._on_relief.append(relieved)

    def add_key(self, ledger_id: int, key: bytes) -> None:
        """From now on the ledger's key can be presented to bookies."""
        if ledger_id in self._keys:
            self._more_users[ledger_id] += 1
        self._keys[ledger_id] = key

    def forget_key(self, ledger_id: int) -> None:
        """One of the callers of `add_key` doesn't need the ledger's key any more."""
        if ledger_id in self._more_users:
            self._more_users[ledger_id] -= 1
            if not self._more_users[ledger_id]:
                del self._more_users[ledger_id]
            return
        del self._keys[ledger_id]
        for channel in self._channels.values():
            channel.forget(ledger_id)

    async def linger(self, ledger_id: int, bookie_ids: Sequence[str]) -> list[str]:
        """Wait until these bookies have answered all appends to the ledger, for at most `close_linger_s`.

        A client that ends right after the ack quorum's answer would leave the rest of the write quorum incomplete.
        Returns the bookies that have not answered.
        """
        now, pause_s = self._runtime.clock.monotonic, _LINGER_PAUSE_S
        until = now() + self._settings.close_linger_s
        channels = {name: self._channels[name] for name in bookie_ids if name in self._channels}
        while True:
            silent = [name for name, channel in channels.items() if channel.has_unanswered_appends(ledger_id)]
            if not silent or self._closed or now() >= until:
                return silent
            await asyncio.sleep(min(pause_s, until - now()))
            pause_s *= 2

    async def close(self) -> None:
        self._closed = True
        for channel in self._channels.values():
            await channel.close()
