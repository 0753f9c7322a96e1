"""Last add confirmed of a ledger's writer, and its publication to bookies while the writer pauses.

Each entry carries last add confirmed to the bookies. A writer that pauses publishes it explicitly, with few requests at
a time to each bookie: thousands of writers may pause at the same moment, and other requests to the same bookies go on
in between.

Invariants: at most `lac_writes_in_flight_max` requests and as many tasks exist for each bookie, and none for one that
no writer waits for; a writer waits once for each, and sends what is confirmed by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bkpy.client.write.replication import log
from bkpy.errors import BookKeeperError
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.client.write.interfaces import ReplicationParts
    from bkpy.client.write.replication import Replication
    from bkpy.config.client import ClientSettings
    from bkpy.protocol.wire.records import RecordCodec
    from bkpy.runtime.interfaces import Runtime


class ExplicitLac:
    """Of one writer: how far readers may read its ledger, and how far its bookies were sent that.

    `entry` is the highest id that is confirmed; where syncs are deferred, the highest one that was forced. `length`:
    payload bytes up to there. `sent`: the value that was last sent to bookies, by an entry or explicitly.

    A value that fewer than the ack quorum took is published again until they have it, for a reader may not come upon
    fewer; each time after twice as many rests, as far as `lac_rests_max`.
    """

    __slots__ = (
        "_codec",
        "_parts",
        "_publisher",
        "_replication",
        "_rests",
        "_rests_left",
        "_taken",
        "_waiting",
        "entry",
        "length",
        "sent",
    )

    def __init__(
        self, replication: Replication, codec: RecordCodec, publisher: Publisher, parts: ReplicationParts
    ) -> None:
        self._replication = replication
        self._codec = codec
        self._publisher = publisher
        self._parts = parts
        self.entry = -1
        self.length = 0
        self.sent = -1
        self._waiting = 0  # bookies that have yet to answer
        self._taken = 0  # that have what was published last
        self._rests = 1  # before it is published again
        self._rests_left = 0

    def forced(self, entry: int, length: int) -> None:
        """Where syncs are deferred: everything up to `entry` is durable."""
        if entry > self.entry:
            self.entry, self.length = entry, length
            self._parts.dispatcher.watch(self._replication)

    def on_rest(self) -> None:
        """Nothing was sent for a while."""
        if self._rests_left > 1 and self.sent < 0:
            self._rests_left -= 1
            self._parts.dispatcher.watch(self._replication)
        elif self._parts.settings.explicit_lac_interval_s > 0:
            self.publish()

    def publish(self) -> None:
        """Send it to the bookies, unless they were sent it before."""
        if self._replication.state.takes_entries and self.entry > self.sent:
            self.sent, self._taken = self.entry, 0
            self._waiting += self._publisher.publish(self, self._replication.ensemble)

    async def publish_to(self, bookie_id: str) -> None:
        """Send one bookie what is confirmed now."""
        published = self.entry
        taken = False
        try:
            taken = await self._send_to(bookie_id)
        finally:
            self._waiting -= 1
        if published < self.sent:
            return  # an entry carries a later one
        self._taken += taken
        if self._taken >= self._replication.metadata.ack_quorum:
            self._rests, self._rests_left = 1, 0
        elif not self._waiting and self._replication.state.takes_entries:
            self.sent = -1
            self._rests = self._rests_left = min(2 * self._rests, self._parts.settings.lac_rests_max)
            self._parts.dispatcher.watch(self._replication)

    async def _send_to(self, bookie_id: str) -> bool:
        """Whether the bookie has taken it."""
        replication, parts = self._replication, self._parts
        if not replication.state.takes_entries:
            return True  # nobody waits for it any more
        ledger_id = replication.ledger_id
        record = self._codec.explicit_lac(self.entry, self.length)
        try:
            reply = await parts.pool.channel(bookie_id).call_as_owner(
                Op.WRITE_LAC,
                m.pack([ledger_id]),
                (record,),
                ledger_id=ledger_id,
                timeout_s=parts.settings.add_timeout_s,
                again=False,
            )
            status = m.reply_status(reply.head)
        except BookKeeperError as e:
            log.debug("ledger %d: last add confirmed not published to %s: %s", ledger_id, bookie_id, e)
            return False
        if status in m.ENDS_WRITER:
            replication.failed(m.end_of_writer(status, ledger_id=ledger_id, bookie=bookie_id))
        return status == Status.OK


class Publishing(Protocol):
    """A writer with something to publish."""

    async def publish_to(self, bookie_id: str) -> None:
        """Send it to one bookie. Raises nothing."""


class _Waiting:
    """The writers that wait for one bookie, in order, and how many tasks work on them."""

    __slots__ = ("tasks", "writers")

    def __init__(self) -> None:
        self.writers: dict[Publishing, None] = {}
        self.tasks = 0


class Publisher:
    """Of one client: its writers that have something to publish."""

    def __init__(self, settings: ClientSettings, runtime: Runtime) -> None:
        self._in_flight_max = settings.lac_writes_in_flight_max
        self._runtime = runtime
        self._waiting: dict[str, _Waiting] = {}

    def publish(self, writer: Publishing, bookie_ids: Iterable[str]) -> int:
        """Have the writer publish to these bookies, soon; to how many it wasn't about to before."""
        more = 0
        for bookie_id in bookie_ids:
            waiting = self._waiting.setdefault(bookie_id, _Waiting())
            more += writer not in waiting.writers
            waiting.writers[writer] = None
            if waiting.tasks < self._in_flight_max:
                waiting.tasks += 1
                self._runtime.spawn(self._work_off(bookie_id, waiting), name=f"last add confirmed to {bookie_id}")
        return more

    async def _work_off(self, bookie_id: str, waiting: _Waiting) -> None:
        try:
            while waiting.writers:
                writer = next(iter(waiting.writers))
                del waiting.writers[writer]
                await writer.publish_to(bookie_id)
        finally:
            waiting.tasks -= 1
            if not waiting.tasks and not waiting.writers:
                self._waiting.pop(bookie_id, None)

    def close(self) -> None:
        """Forget all that waits."""
        for waiting in self._waiting.values():
            waiting.writers.clear()
