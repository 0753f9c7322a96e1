"""The keys of ledgers: those that one connection has presented, and whose a ledger is where two keys differ.

A key counts for what comes after it on the wire. ADD and PRESENT are decided one after the other, so a key is taken
when its turn comes (`take`). Requests that keep no order overtake those that wait: the key of such a request is looked
up when the request arrives, and may itself have arrived (`arrive`) and not been taken yet.

The first key that is presented for a ledger never seen opens it here, unproved: the metadata store is not asked about
each new ledger. So a key is refused by another one only when the metadata have shown which of the two is the ledger's
(`KeyAuthority`); a wrong one gives way as long as nothing is stored under it.

Invariants: what an ADD or another request relies on is never forgotten while it is being decided; UNAUTHORIZED is an
answer of the metadata, and never of the order in which keys have arrived.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.protocol.repair.collection import ProbeState
from bkpy.protocol.wire.messages import Present, Status

_FREE_KEYS: Final = 100  # of each connection, which count as a part of what it is
_KEY_MEMORY_BYTES: Final = 200  # of a ledger id, its key and their place in a dictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.bookie.connection.complaint import Complaint
    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.ledgers.metadata_probe import MetadataProbe
    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.memory_budget import MemoryBudget


class Claim(NamedTuple):
    """What a client has to show for a ledger."""

    key: bytes | None
    authorised: bool  # by a key that was presented before, and needs no more proof

    def check(self, known: bytes | None) -> Status:
        """Whether this opens the ledger, whose key here is `known` (None: never seen).

        UNAUTHORIZED only says that the two differ, see `KeyAuthority`.
        """
        if self.authorised:
            return Status.OK
        if self.key is None:
            return Status.KEY_REQUIRED
        if known == b"":
            return Status.UNKNOWN  # the key was lost with the index: nobody knows who may write
        return Status.OK if known is None or known == self.key else Status.UNAUTHORIZED


class Keys:
    """`authorised`: ledgers whose key this connection has shown. It stays the same set, so that others can keep it."""

    def __init__(self, ledgers_max: int, memory: KeyMemory) -> None:
        self.authorised: set[int] = set()
        self._ledgers_max = ledgers_max
        self._memory = memory
        self._taken: dict[int, bytes] = {}  # not authorised so far: of ledgers never seen, or wrong
        self._arrived: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.authorised) + len(self._taken) + len(self._arrived)

    def arrive(self, present: Present) -> None:
        """The keys have arrived, and will be `taken` in turn."""
        self._arrived.update(zip(present.ledger_ids, present.keys, strict=True))

    def take(self, present: Present) -> None:
        """It is the turn of these keys. All earlier ones are forgotten if these are too many beside them."""
        if len(self.authorised) + len(self._taken) + len(present.keys) > self._ledgers_max:
            self.forget()
        for ledger_id, key in zip(present.ledger_ids, present.keys, strict=True):
            self.authorised.discard(ledger_id)
            self._taken[ledger_id] = key
            if self._arrived.get(ledger_id) is key:
                del self._arrived[ledger_id]
        self._memory.taken(self)

    @property
    def kept(self) -> int:
        """How many may be forgotten at any time."""
        return len(self.authorised) + len(self._taken)

    def forget(self) -> None:
        """Forget all that were taken: the next ADD is answered KEY_REQUIRED, and the client presents again."""
        self.authorised.clear()
        self._taken.clear()

    def close(self) -> None:
        """The connection is gone."""
        self.forget()
        self._arrived.clear()
        self._memory.closed(self)

    def authorise(self, ledger_id: int) -> None:
        """The claim to this ledger was found good."""
        self.authorised.add(ledger_id)
        self._taken.pop(ledger_id, None)

    def withdraw(self, ledger_id: int) -> None:
        """The ledger was deleted, or has another key: the client has to present its key again."""
        self.authorised.discard(ledger_id)

    def claim_in_turn(self, ledger_id: int) -> Claim:
        """For what is decided in turn."""
        return Claim(self._taken.get(ledger_id), ledger_id in self.authorised)

    def claim_on_arrival(self, ledger_id: int) -> Claim:
        """For what is decided now, before others that came earlier."""
        if (key := self._arrived.get(ledger_id)) is not None:
            return Claim(key, False)
        return self.claim_in_turn(ledger_id)


class KeyMemory:
    """What the keys of all connections take of a bookie's memory, beyond a few for each connection.

    Invariant: that is at most `bytes_max`, and what the connection that presented last has given. At the bound the
    connections with the most keys forget theirs, and so they do when others need the memory.
    """

    def __init__(self, budget: MemoryBudget, bytes_max: int) -> None:
        self._part = budget.cache("presented keys", self._give_way)
        self._bytes_max = bytes_max
        self._held: dict[Keys, int] = {}  # bytes, of those connections that have more than a few

    def taken(self, keys: Keys) -> None:
        """A connection has presented some more."""
        self._hold(keys, _bytes_of(keys))
        if self._part.used > self._bytes_max:
            self._shrink(self._part.used - self._bytes_max // 2, sparing=keys)

    def closed(self, keys: Keys) -> None:
        self._hold(keys, 0)

    def _hold(self, keys: Keys, size: int) -> None:
        had = self._held.pop(keys, 0)
        if size:
            self._held[keys] = size
        self._part.change(size - had)

    def _give_way(self, excess: int) -> None:
        self._shrink(excess, sparing=None)

    def _shrink(self, excess: int, *, sparing: Keys | None) -> None:
        wanted = self._part.used - excess
        for keys in sorted(self._held, key=self._held.__getitem__, reverse=True):
            if self._part.used <= wanted:
                return
            if keys is not sparing:
                keys.forget()
                self._hold(keys, 0)


def _bytes_of(keys: Keys) -> int:
    return max(0, keys.kept - _FREE_KEYS) * _KEY_MEMORY_BYTES


class KeyAuthority:
    """Decides by the metadata which key is a ledger's, where a client presents another one than the ledger has here.

    `count` is called with the outcome of each such decision. At most `key_lookups_at_once` ledgers are looked up at the
    same time, each once for all requests that wait for it, and none of these waits longer than `key_lookup_timeout_s`.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        metadata: MetadataProbe,
        settings: BookieSettings,
        count: Callable[[Status], None],
        complain: Complaint,
    ) -> None:
        self._storage = storage
        self.metadata = metadata
        self._timeout_s = settings.key_lookup_timeout_s
        self._at_once = asyncio.Semaphore(settings.key_lookups_at_once)
        self._lookups: dict[int, asyncio.Future[bytes | None]] = {}
        self._count = count
        self._complain = complain

    async def decide(self, ledger_id: int, key: bytes) -> Status:
        """Whether `key` opens the ledger. After OK the caller looks at the ledger's state here once more.

        UNAUTHORIZED: the metadata have another key, or no such ledger. UNAVAILABLE: they can't be read now. UNKNOWN:
        the key is the ledger's, but entries are stored here under another one; then an operator decides.
        """
        status = await self._decide(ledger_id, key)
        self._count(status)
        if status is Status.UNKNOWN:
            self._complain(
                "ledger %d has entries here under a key that is not the one in its metadata: this bookie refuses its "
                "writers and recoveries; see 'entries under another key' in docs/reference/messages.md",
                ledger_id,
            )
        return status

    async def _decide(self, ledger_id: int, key: bytes) -> Status:
        info = await self._storage.looked_up(ledger_id)
        if info is None or info.key == key:
            return Status.OK
        proven = info.proven_key or await self._key_in_metadata(ledger_id)
        if proven is None:
            return Status.UNAVAILABLE
        if (info := await self._storage.looked_up(ledger_id)) is not None:
            info.proven_key = proven
        return Status.UNAUTHORIZED if proven != key else await self._storage.replace_key(ledger_id, key)

    async def _key_in_metadata(self, ledger_id: int) -> bytes | None:
        """The ledger's key, empty if there certainly is no such ledger; None if that can't be told now."""
        if (under_way := self._lookups.get(ledger_id)) is not None:
            return await asyncio.shield(under_way)
        lookup = self._lookups[ledger_id] = asyncio.get_running_loop().create_future()
        key = None
        try:
            async with asyncio.timeout(self._timeout_s), self._at_once:
                found = await self.metadata.look(ledger_id)
            key = found.ledger_key if found.ledger_key or found.state is ProbeState.NO_LEDGER else None
        except TimeoutError:
            pass
        finally:
            del self._lookups[ledger_id]
            lookup.set_result(key)
        return key
