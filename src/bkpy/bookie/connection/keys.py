"""The keys of ledgers: which keys a connection has presented, and which of two different keys is the ledger's.

A key counts for the requests after it on the wire. The bookie decides ADD and PRESENT one after the other, so it takes
a key when its turn comes (`take`). Unordered requests overtake waiting ones: such a request finds its key when it
arrives, among keys that have arrived (`arrive`) and may still wait for their turn.

The first key that a client presents for an unknown ledger opens it here, unproved: the bookie doesn't ask the metadata
store about each new ledger. So where two keys differ, it refuses one only after the metadata have shown which is the
ledger's (`KeyAuthority`); a wrong key is replaced as long as nothing is stored under it.

Invariants: a key that a request relies on is never forgotten while the request is being decided; UNAUTHORIZED is an
answer of the metadata, and never of the order in which keys have arrived.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from bkpy.protocol.repair.garbage_collection import ProbeState
from bkpy.protocol.wire.messages import Present, Status

_FREE_KEYS: Final = 100  # of each connection, which count as a part of what it is
_KEY_MEMORY_BYTES: Final = 200  # of a ledger id, its key and their place in a dictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.bookie.connection.complaint import Complaint
    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.ledgers.metadata_probe import MetadataProbe
    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.ledgers.info import LedgerInfo
    from bkpy.storage.memory_budget import MemoryBudget


class Claim(NamedTuple):
    """A client's claim to a ledger."""

    key: bytes | None
    authorised: bool  # by a key that the client presented before, without further proof

    def check(self, known: bytes | None) -> Status:
        """Whether this opens the ledger, whose key here is `known` (None: never seen).

        UNAUTHORIZED only means that the keys differ: see `KeyAuthority`.
        """
        if self.authorised:
            return Status.OK
        if self.key is None:
            return Status.KEY_REQUIRED
        if known == b"":
            return Status.UNKNOWN  # the key was lost with the index: nobody knows who may write
        return Status.OK if known is None or known == self.key else Status.UNAUTHORIZED


class Keys:
    """`authorised`: ledgers whose key this connection has shown. It stays the same set object, for others to keep."""

    def __init__(self, ledgers_max: int, memory: KeyMemory) -> None:
        self.authorised: set[int] = set()
        self._ledgers_max = ledgers_max
        self._memory = memory
        self._taken: dict[int, bytes] = {}  # not authorised so far: keys of unknown ledgers, or wrong ones
        self._arrived: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.authorised) + len(self._taken) + len(self._arrived)

    def arrive(self, present: Present) -> None:
        """The keys have arrived; `take` follows in turn."""
        self._arrived.update(zip(present.ledger_ids, present.keys, strict=True))

    def take(self, present: Present) -> None:
        """It is the turn of these keys. Forgets all earlier ones if there would be too many."""
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
        """How many keys may be forgotten at any time."""
        return len(self.authorised) + len(self._taken)

    def forget(self) -> None:
        """Forget all keys that were taken: the next ADD gets KEY_REQUIRED, and the client presents again."""
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
        """For a request that is decided in its turn."""
        return Claim(self._taken.get(ledger_id), ledger_id in self.authorised)

    def claim_on_arrival(self, ledger_id: int) -> Claim:
        """For a request that is decided now, before earlier ones."""
        if (key := self._arrived.get(ledger_id)) is not None:
            return Claim(key, False)
        return self.claim_in_turn(ledger_id)


class HeldKeys(Protocol):
    """The keys of one connection. `kept`: how many of them may be forgotten at any time."""

    @property
    def kept(self) -> int: ...

    def forget(self) -> None: ...


class KeyMemory:
    """The memory of the keys of all connections, beyond a few for each connection.

    Invariant: it is at most `bytes_max` and the keys of the connection that presented last. At the bound, and
    when other parts need the memory, the connections with the most keys forget theirs.
    """

    def __init__(self, budget: MemoryBudget, bytes_max: int) -> None:
        self._part = budget.cache("presented keys", self._give_way)
        self._bytes_max = bytes_max
        self._held: dict[HeldKeys, int] = {}  # bytes of each connection with more than a few keys

    def taken(self, keys: HeldKeys) -> None:
        """A connection has presented some more."""
        self._hold(keys, _bytes_of(keys))
        if self._part.used > self._bytes_max:
            self._shrink(self._part.used - self._bytes_max // 2, sparing=keys)

    def closed(self, keys: HeldKeys) -> None:
        self._hold(keys, 0)

    def _hold(self, keys: HeldKeys, size: int) -> None:
        had = self._held.pop(keys, 0)
        if size:
            self._held[keys] = size
        self._part.change(size - had)

    def _give_way(self, excess: int) -> None:
        self._shrink(excess, sparing=None)

    def _shrink(self, excess: int, *, sparing: HeldKeys | None) -> None:
        wanted = self._part.used - excess
        for keys in sorted(self._held, key=self._held.__getitem__, reverse=True):
            if self._part.used <= wanted:
                return
            if keys is not sparing:
                keys.forget()
                self._hold(keys, 0)


def _bytes_of(keys: HeldKeys) -> int:
    return max(0, keys.kept - _FREE_KEYS) * _KEY_MEMORY_BYTES


class KeyAuthority:
    """Decides by the metadata which key is a ledger's, when a client presents another one than the ledger has here.

    It calls `count` with the outcome of each decision. It looks up at most `key_lookups_at_once` ledgers at the same
    time, each once for all requests that wait for it, and none of these waits longer than `key_lookup_timeout_s`.
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
        """Whether `key` opens the ledger. After OK the caller reads the ledger's state here once more.

        UNAUTHORIZED: the metadata have another key, or no such ledger. UNAVAILABLE: the metadata are unreadable now.
        UNKNOWN: the key is the ledger's, but entries are stored here under another one; then an operator decides.
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
        status = await self._prove(info, key)
        return await self._storage.replace_key(ledger_id, key) if status is Status.OK else status

    async def prove(self, ledger_id: int, key: bytes) -> Status:
        """Whether the metadata have this key of a ledger whose own was lost here: OK, or as of `decide`."""
        info = await self._storage.looked_up(ledger_id)
        status = Status.UNAVAILABLE if info is None else await self._prove(info, key)
        self._count(status)
        return status

    async def _prove(self, info: LedgerInfo, key: bytes) -> Status:
        proven = info.proven_key or await self._key_in_metadata(info.ledger_id)
        if proven is None:
            return Status.UNAVAILABLE
        if (known := await self._storage.looked_up(info.ledger_id)) is not None:
            known.proven_key = proven
        return Status.OK if proven == key else Status.UNAUTHORIZED

    async def _key_in_metadata(self, ledger_id: int) -> bytes | None:
        """The ledger's key, empty if there certainly is no such ledger; None if the metadata are unreadable now."""
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
