"""Which ledgers are under-replicated, and which bookies they miss: one record a ledger, for workers to work off.

A mark is a hint: whoever works on its ledger looks at the metadata again. What must not happen is that one gets lost.
A ledger's node has the name of the one node below it that holds the value, and that no other node ever had: so a
version of the value is one state of one mark, even if the mark was removed and made anew meanwhile.

Invariants: every `add` makes a new version, so a mark that was removed by its version hides nothing that was added
later; marks of one ledger merge; what is merged forgets no bookie, and no reason that a bookie's return doesn't heal;
fields that this version doesn't know survive.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, assert_never

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import ClientClosedError, CorruptDataError, MetadataConflictError
from bkpy.metadata import paths
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.store.outcome import (
    Changed,
    CreateOutcome,
    DeleteOutcome,
    Done,
    Exists,
    Gone,
    Missing,
    NotDone,
    PutOutcome,
    Superseded,
    Unknown,
    escalate_unknown,
)
from bkpy.metadata.store.resolve import (
    Answer,
    attempt,
    children_if_there,
    create_certainly,
    delete_certainly,
    delete_together,
    ensure_path,
    put_certainly,
    read_certainly,
    read_if_there,
)
from bkpy.metadata.store.store import Check, Create, Delete, MetadataStore, StoreRefusal, Watch, parent_of
from bkpy.metadata.stored_record import StoredRecord, take

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

    from bkpy.metadata.replication.locks import LedgerLock
    from bkpy.runtime.interfaces import Runtime

_RECORD: Final = StoredRecord("the mark", version=1)
_SWITCH: Final = StoredRecord("the switch of re-replication", version=1)
_TOKEN_BYTES = 8
_DEFAULTS = RecoverySettings()


class LossReason(enum.StrEnum):
    """Why a bookie's copy counts as lost. The later ones outlast those before them.

    RETURNED is over when all of the copy was read on the bookie, LOST when the bookie comes back as it was, DRAINING
    when it stays after all: then it is RETURNED, unless the ledger was CLOSED before.
    """

    RETURNED = "returned"  # it is here, and the ledger may have been written without it
    LOST = "lost"  # the bookie is absent
    DRAINING = "draining"  # it is to leave
    REBUILDING = "rebuilding"  # it came back without what it had
    CHECK = "check"  # it is there, and a check has missed entries


_LASTING = tuple(LossReason)
_INCOMPLETE = (LossReason.RETURNED.value, LossReason.REBUILDING.value, LossReason.CHECK.value)
_ABSENT = (LossReason.RETURNED.value, LossReason.LOST.value)


@dataclass(frozen=True, slots=True)
class LostBookie:
    """A bookie that a ledger misses, since `since_ms` (of the epoch), because of `reason`, a `LossReason`'s value.

    `instance` says which storage the bookie had, see `cookies.instance_of`; "" if that isn't known.
    """

    since_ms: int
    reason: str = LossReason.LOST.value
    instance: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)


@dataclass(frozen=True, slots=True)
class UnderreplicationRecord:
    """A ledger's mark as it was read: `lost` by bookie id. The node `token` had the version `node_version`."""

    ledger_id: int
    lost: Mapping[str, LostBookie] = field(hash=False)
    node_version: int
    token: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    @property
    def incomplete(self) -> frozenset[str]:
        """The bookies that are marked for what they lack, not for being away or to leave."""
        return frozenset(bookie_id for bookie_id, loss in self.lost.items() if loss.reason in _INCOMPLETE)

    @property
    def unverified(self) -> frozenset[str]:
        """The bookies that may have all of their copy, or miss what was written while they were away."""
        return frozenset(bookie_id for bookie_id, loss in self.lost.items() if loss.reason == LossReason.RETURNED)

    @property
    def absent(self) -> frozenset[str]:
        """The bookies that the record names because they were absent when it was written."""
        return frozenset(bookie_id for bookie_id, loss in self.lost.items() if loss.reason in _ABSENT)


def missing_since_ms(record: UnderreplicationRecord, bookie_ids: Collection[str], settings: RecoverySettings) -> int:
    """Since when, at the earliest, the ledger may have been written without one of these marked bookies."""
    margin_s = settings.lost_bookie_settle_s  # the clocks of the store and of what marks ledgers may differ
    return min(record.lost[bookie_id].since_ms for bookie_id in bookie_ids) - int(margin_s * 1000)


AddOutcome = Done | Missing | NotDone | Unknown
RemoveOutcome = PutOutcome | DeleteOutcome


class UnderreplicationQueue:
    """The marks under `root`. Reads raise `MetadataUnavailableError`.

    With a `guard`, a node that is never changed, `add` and `remove` write nothing once that node is gone.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        runtime: Runtime,
        settings: RecoverySettings = _DEFAULTS,
        *,
        guard: str | None = None,
    ) -> None:
        self._store = store
        self._root = root
        self._base = f"{root}/{paths.MARKS}"
        self._runtime = runtime
        self._settings = settings
        self._attempts_max = settings.metadata_write_attempts_max
        self._guard = guard
        self._checks = () if guard is None else (Check(guard, 0),)
        self._news: Watch | None = None
        self._thinned: set[str] = set()  # partitions, each of 10,000 ids

    def refused(self, outcome: AddOutcome | RemoveOutcome) -> bool:
        """Whether that was not done because the guard's node is gone."""
        return isinstance(outcome, Missing) and outcome.node == self._guard

    def returned_now(self, bookie_ids: Collection[str]) -> dict[str, LostBookie]:
        """What to add for bookies that are here, and of which a ledger may have been written without them until now."""
        now_ms = int(self._runtime.clock.time() * 1000)
        return {bookie_id: LostBookie(now_ms, LossReason.RETURNED.value) for bookie_id in bookie_ids}

    # --- one mark -------------------------------------------------------------------------------------------------

    async def add(self, ledger_id: int, lost: Mapping[str, LostBookie]) -> AddOutcome:
        """Record the ledger, or merge `lost` into its record. `Missing` names the guard's node, which is gone.

        Unless it is `Done`, the ledger may be marked or not.
        """
        doubt = False
        for _ in range(self._attempts_max):
            outcome = await self._add_once(ledger_id, lost)
            match outcome:
                case Done():
                    return outcome
                case Missing() if self.refused(outcome):
                    return outcome
                case Exists() | Changed() | Missing():
                    pass
                case Superseded():
                    doubt = True
                case NotDone() | Unknown():
                    return escalate_unknown(outcome, doubt)
                case _:
                    assert_never(outcome)
        return escalate_unknown(
            NotDone(MetadataConflictError("others write its mark all the time", ledger_id=ledger_id)), doubt
        )

    async def add_new(self, ledger_ids: Sequence[int], lost: Mapping[str, LostBookie]) -> bool:
        """Mark these ledgers in one transaction, if none of them has a mark; whether that was certainly done.

        If not, all of them may be marked so, or none: `add` marks each, and says what is in its way.
        """
        first, *others = (node for ledger_id in ledger_ids for node in self._new(self._path(ledger_id), lost))
        made = await create_certainly(self._store, first, *others, *self._checks, attempts_max=1)
        return isinstance(made, Done)

    async def _add_once(self, ledger_id: int, lost: Mapping[str, LostBookie]) -> CreateOutcome | PutOutcome:
        path = self._path(ledger_id)
        made = await self._make(path, lost)
        if isinstance(made, Missing) and not made.index:  # the first mark of its partition
            above = await ensure_path(self._store, parent_of(path), attempts_max=self._attempts_max)
            return above if isinstance(above, NotDone) else await self._make(path, lost)
        if not isinstance(made, Exists):
            return made
        found = await attempt(self._find(ledger_id))
        match found:
            case Answer():
                record = found.value
                if record is None:
                    return Changed()  # it was removed meanwhile
                value = _encode(merged(record.lost, lost), record.unknown)
                node = f"{path}/{record.token}"
                return await put_certainly(
                    self._store, node, value, record.node_version, *self._checks, attempts_max=self._attempts_max
                )
            case NotDone() | Unknown():
                return NotDone(found.error)
            case _:
                raise found  # a look is never refused

    async def _make(self, path: str, lost: Mapping[str, LostBookie]) -> CreateOutcome:
        top, value = self._new(path, lost)
        return await create_certainly(self._store, top, value, *self._checks, attempts_max=self._attempts_max)

    def _new(self, path: str, lost: Mapping[str, LostBookie]) -> tuple[Create, Create]:
        """The nodes of a new mark."""
        token = self._runtime.rng.randbytes(_TOKEN_BYTES).hex()
        return Create(path, token.encode()), Create(f"{path}/{token}", _encode(lost, {}))

    async def read(self, ledger_id: int) -> UnderreplicationRecord | None:
        """The ledger's mark; None if it certainly has none. One that can't be read names no bookie.

        Raises `UnsupportedVersionError` for a mark of a newer bkpy, `CorruptDataError` for one without a value.
        """
        return await self._find(ledger_id)

    async def seen(self, ledger_id: int) -> bool:
        """Whether it has a mark, as far as this session knows. Where it knew of one and there is none, that is gone."""
        return await self._store.exists(self._path(ledger_id))

    async def _find(self, ledger_id: int) -> UnderreplicationRecord | None:
        path = self._path(ledger_id)
        missing = ""
        while True:
            top = await read_certainly(self._store, path)
            if top is None:
                return None
            token = paths.token_in(top[0])
            found = await read_if_there(self._store, f"{path}/{token}") if token else None
            if found is not None:
                return _decode(ledger_id, found[0], found[1], token)
            if token == missing:
                raise CorruptDataError("the mark has no value: delete its node", ledger_id=ledger_id, path=path)
            missing = token  # it was removed, and perhaps made anew, between the two reads
            await self._store.sync(path)

    async def return_bookies(self, record: UnderreplicationRecord, bookie_ids: Collection[str]) -> PutOutcome:
        """Record that these bookies are back, and have yet to be verified, if the mark is still as it was read."""
        node = f"{self._path(record.ledger_id)}/{record.token}"
        back = LossReason.RETURNED.value
        lost = {
            b: dataclasses.replace(loss, reason=back) if b in bookie_ids else loss for b, loss in record.lost.items()
        }
        value = _encode(lost, record.unknown)
        return await put_certainly(
            self._store, node, value, record.node_version, *self._checks, attempts_max=self._attempts_max
        )

    async def remove(self, record: UnderreplicationRecord, bookie_ids: Collection[str]) -> RemoveOutcome:
        """Take these bookies off the mark, and with the last one the mark, if it is still as it was read."""
        path = self._path(record.ledger_id)
        node = f"{path}/{record.token}"
        rest = {bookie: loss for bookie, loss in record.lost.items() if bookie not in bookie_ids}
        if rest:
            value = _encode(rest, record.unknown)
            return await put_certainly(
                self._store, node, value, record.node_version, *self._checks, attempts_max=self._attempts_max
            )
        gone = await delete_together(
            self._store,
            Delete(node, record.node_version),
            Delete(path),
            *self._checks,
            attempts_max=self._attempts_max,
        )
        if isinstance(gone, Gone):
            self._thinned.add(parent_of(path))
        return gone

    async def remove_with(self, record: UnderreplicationRecord, lock: LedgerLock) -> bool:
        """Remove the mark and give the ledger's lock back, in one transaction; whether that was certainly done.

        If not, both may be there still, or neither: `remove` and `release` find out.
        """
        path = self._path(record.ledger_id)
        node = Delete(f"{path}/{record.token}", record.node_version)
        gone = await delete_together(self._store, node, Delete(path), *lock.nodes, *self._checks, attempts_max=1)
        if not isinstance(gone, Gone):
            return False
        self._thinned.add(parent_of(path))
        return True

    async def tidy(self) -> None:
        """Remove the partitions in which no mark was left when this object removed one."""
        while self._thinned:
            await self._remove_empty(self._thinned.pop())

    async def _remove_empty(self, partition: str) -> None:
        """Remove a partition without marks, and those above it, so that old ones don't add up. Who adds makes them."""
        while partition != self._base:
            # One that was made anew meanwhile is empty as well, or isn't removed.
            if not isinstance(await delete_certainly(self._store, partition, attempts_max=1), Gone):
                return
            partition = parent_of(partition)

    def _path(self, ledger_id: int) -> str:
        return LONG_HIERARCHICAL.path_of(self._base, ledger_id)

    # --- all of them ----------------------------------------------------------------------------------------------

    async def list(self) -> AsyncGenerator[int, None]:
        """The ids of the ledgers that are marked, ascending, read partition by partition.

        A mark that is there during the whole listing is in it.
        """
        await self._store.sync(self._base)
        async for partition in LONG_HIERARCHICAL.partitions(self._store, self._base):
            for ledger_id in partition:
                yield ledger_id

    async def changed(self) -> None:
        """Return when there may be new marks: they were announced since the last call, or an interval has passed.

        The first call returns at once. For one caller at a time. Raises `ClientClosedError` when the store is closed.
        """
        if self._news is None:
            self._news = self._store.watch(f"{self._root}/{paths.MARKS_NEWS}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.marks_look_interval_s):
                try:
                    await anext(self._news)
                except StopAsyncIteration:
                    raise ClientClosedError("the metadata store was closed") from None

    def close(self) -> None:
        """End the watch of `changed`."""
        if self._news is not None:
            self._news.close()

    async def announce(self) -> Done | NotDone | Unknown:
        """Wake those who wait in `changed`. If it fails, they look by themselves, an interval later.

        `Done` has the version of this announcement, or -1 if another one, at the same time, has woken them.
        """
        path = f"{self._root}/{paths.MARKS_NEWS}"
        token = self._runtime.rng.randbytes(_TOKEN_BYTES).hex().encode()
        found = await attempt(read_certainly(self._store, path))
        if isinstance(found, StoreRefusal):
            raise found  # a look is never refused
        if not isinstance(found, Answer):
            return NotDone(found.error)
        outcome = await self._write(path, token, found.value)
        match outcome:
            case Done():
                return outcome
            case Exists() | Changed() | Superseded() | Missing():
                return Done(-1)  # somebody else has woken them, after the marks were there
            case NotDone() | Unknown():
                return outcome
            case _:
                assert_never(outcome)

    async def announced(self) -> int:
        """The version of the last announcement; -1 if there was none. Each is one more than the one before."""
        found = await read_certainly(self._store, f"{self._root}/{paths.MARKS_NEWS}")
        return -1 if found is None else found[1]

    async def has_manual_moves(self) -> bool:
        """Whether copies are moved without marks now, as the server knows it: see `by_hand.py`."""
        return bool(await children_if_there(self._store, f"{self._root}/{paths.MANUAL_MOVES}"))

    # --- the switch -----------------------------------------------------------------------------------------------

    async def enabled(self) -> bool:
        """Whether ledgers are to be marked and worked off, as the server knows it: it may lag behind."""
        return not await self._store.exists(f"{self._root}/{paths.DISABLED}")

    async def switched(self) -> AsyncGenerator[bool, None]:
        """The same, at once and whenever it may have changed, until the store is closed."""
        watch = self._store.watch(f"{self._root}/{paths.DISABLED}")
        try:
            async for _ in watch:
                yield await self.enabled()
        finally:
            watch.close()

    async def set_enabled(self, enabled: bool) -> Done | NotDone | Unknown:
        """Switch marking and working off on or off, for the whole cluster."""
        path = f"{self._root}/{paths.DISABLED}"
        outcome: CreateOutcome | DeleteOutcome
        if enabled:
            outcome = await delete_certainly(self._store, path, attempts_max=self._attempts_max)
        else:
            fields = {"since_ms": int(self._runtime.clock.time() * 1000)}
            outcome = await self._write(path, _SWITCH.encode(fields), None)
        match outcome:
            case Done() | Gone() | Exists() | Missing() | Changed() | Superseded():
                return await self.announce()
            case NotDone() | Unknown():
                return outcome
            case _:
                assert_never(outcome)

    async def _write(self, path: str, value: bytes, found: tuple[bytes, int] | None) -> CreateOutcome | PutOutcome:
        """Replace what was found. Where there was nothing, there may be nothing above it either."""
        if found is not None:
            return await put_certainly(self._store, path, value, found[1], attempts_max=self._attempts_max)
        above = await ensure_path(self._store, parent_of(path), attempts_max=self._attempts_max)
        if isinstance(above, NotDone):
            return above
        return await create_certainly(self._store, Create(path, value), attempts_max=self._attempts_max)


def merged(old: Mapping[str, LostBookie], new: Mapping[str, LostBookie]) -> dict[str, LostBookie]:
    """What misses what both say. Nothing of it is less lost than before."""
    return {
        **old,
        **{bookie: _worse(old[bookie], loss) if bookie in old else loss for bookie, loss in new.items()},
    }


def _worse(old: LostBookie, new: LostBookie) -> LostBookie:
    """One bookie that was lost twice."""
    reason = max(old.reason, new.reason, key=_lasts)
    if reason == LossReason.LOST and old.instance and new.instance and old.instance != new.instance:
        reason = LossReason.REBUILDING.value  # it came back meanwhile, with another storage, which was lost as well
    return LostBookie(
        since_ms=min(old.since_ms, new.since_ms),
        reason=reason,
        instance=new.instance or old.instance,
        unknown={**old.unknown, **new.unknown},
    )


def _lasts(reason: str) -> int:
    """The higher, the fewer things make up for it. What a newer bkpy calls it, this one can't tell."""
    return _LASTING.index(reason) if reason in _LASTING else len(_LASTING)


# --- the stored form ----------------------------------------------------------------------------------------------


def _encode(lost: Mapping[str, LostBookie], unknown: Mapping[str, Any]) -> bytes:
    fields = {
        "lost": {
            bookie: {"since_ms": loss.since_ms, "reason": loss.reason, "instance": loss.instance, **loss.unknown}
            for bookie, loss in sorted(lost.items())
        },
    }
    return _RECORD.encode(fields, unknown)


def _decode(ledger_id: int, data: bytes, node_version: int, token: str) -> UnderreplicationRecord:
    """The mark. One that is damaged names no bookie, and says still that the ledger is to be looked at."""

    def made(fields: dict[str, Any]) -> UnderreplicationRecord:
        lost = {bookie: _decode_loss(loss) for bookie, loss in fields.pop("lost").items()}
        return UnderreplicationRecord(ledger_id, lost, node_version, token, fields)

    try:
        return _RECORD.decode(data, made, ledger_id=ledger_id)
    except CorruptDataError:
        return UnderreplicationRecord(ledger_id, {}, node_version, token)


def _decode_loss(fields: dict[str, Any]) -> LostBookie:
    since_ms, reason = take(fields, "since_ms", int), take(fields, "reason", str)
    return LostBookie(since_ms, reason, take(fields, "instance", str), fields)
