"""Which ledgers are under-replicated, and which bookies they miss: one record a ledger, for workers to repair.

A record is a hint: a worker looks at the ledger's metadata again. But no record may get lost. A ledger's node has the
name of the one node below it that holds the value, and that no other node ever had: so a version of the value is one
state of one record, even if the record was removed and added again meanwhile.

Invariants: every `add` makes a new version, so the removal of a record by its version removes nothing that was added
later; records of one ledger merge; a merge forgets no bookie, and no reason that a bookie's return doesn't heal; the
record of a ledger that was created without a bookie is there as soon as the ledger is; fields that this version doesn't
know survive.
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

_RECORD: Final = StoredRecord("the under-replication record", version=1)
_SWITCH: Final = StoredRecord("the switch of re-replication", version=1)
_TOKEN_BYTES = 8
_DEFAULTS = RecoverySettings()


class LossReason(enum.StrEnum):
    """Why a bookie's copy counts as lost. The later ones outlast those before them.

    RETURNED is over when all of the copy was read on the bookie, LOST when the bookie comes back as it was, DRAINING
    when it stays after all: then it is RETURNED, unless the ledger was CLOSED before. No return ends ABSENT: it is over
    when the bookie has, or another one instead of it, what was written before the ledger's writer took it in.
    """

    ABSENT = "absent-at-creation"  # the ledger was created while the bookie was absent
    RETURNED = "returned"  # it is here, and the ledger may have been written without it
    LOST = "lost"  # the bookie is absent
    DRAINING = "draining"  # it is to leave
    REBUILDING = "rebuilding"  # it came back without what it had
    CHECK = "check"  # it is there, and a check has missed entries


_LASTING = tuple(LossReason)
_INCOMPLETE = (
    LossReason.ABSENT.value,
    LossReason.RETURNED.value,
    LossReason.REBUILDING.value,
    LossReason.CHECK.value,
)
_UNVERIFIED = (LossReason.ABSENT.value, LossReason.RETURNED.value)
_AWAY = (LossReason.ABSENT.value, LossReason.RETURNED.value, LossReason.LOST.value)


@dataclass(frozen=True, slots=True)
class LostBookie:
    """A bookie that a ledger misses, since `since_ms` (of the epoch), because of `reason`, a `LossReason`'s value.

    `instance` says which storage the bookie had, see `cookies.instance_of`; "" if that isn't known.

    `absent_at_creation` outlasts other reasons. `whole_from`: the first entry of the fragment with which the writer
    took such a bookie in; None until then.
    """

    since_ms: int
    reason: str = LossReason.LOST.value
    instance: str = ""
    absent_at_creation: bool = False
    whole_from: int | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)


@dataclass(frozen=True, slots=True)
class UnderreplicationRecord:
    """A ledger's record as it was read: `lost` by bookie id. The node `token` had the version `node_version`."""

    ledger_id: int
    lost: Mapping[str, LostBookie] = field(hash=False)
    node_version: int
    token: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    @property
    def incomplete(self) -> frozenset[str]:
        """The bookies that the record names because they miss entries, not because they are away or draining."""
        return frozenset(bookie_id for bookie_id, loss in self.lost.items() if loss.reason in _INCOMPLETE)

    @property
    def unverified(self) -> frozenset[str]:
        """The bookies that may have all of their copy, or miss what was written while they were away."""
        return frozenset(bookie_id for bookie_id, loss in self.lost.items() if loss.reason in _UNVERIFIED)

    @property
    def returned(self) -> frozenset[str]:
        """The bookies that were away, and may have missed entries of the ledger then."""
        return frozenset(bookie_id for bookie_id, loss in self.lost.items() if loss.reason == LossReason.RETURNED)

    @property
    def whole_from(self) -> Mapping[str, int]:
        """By bookie, the entry from which on the record says nothing of it: the writer has taken it in there."""
        return {
            bookie_id: loss.whole_from
            for bookie_id, loss in self.lost.items()
            if loss.reason == LossReason.ABSENT and loss.whole_from is not None
        }

    @property
    def absent(self) -> frozenset[str]:
        """The bookies that the record names because they were absent when it was written."""
        return frozenset(bookie_id for bookie_id, loss in self.lost.items() if loss.reason in _AWAY)


def missing_since_ms(record: UnderreplicationRecord, bookie_ids: Collection[str], settings: RecoverySettings) -> int:
    """Since when, at the earliest, the ledger may have been written without one of these bookies of the record."""
    margin_s = settings.lost_bookie_settle_s  # the clocks of the store and of the auditor may differ
    return min(record.lost[bookie_id].since_ms for bookie_id in bookie_ids) - int(margin_s * 1000)


AddOutcome = Done | Missing | NotDone | Unknown
RemoveOutcome = PutOutcome | DeleteOutcome


class UnderreplicationQueue:
    """The records under `root`. Reads raise `MetadataUnavailableError`.

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

    def returned(self, bookie_ids: Collection[str], closed_ms: int) -> dict[str, LostBookie]:
        """What to add for bookies that are here, and without which a ledger may have been written until it was closed.

        That was at `closed_ms` by the metadata store's clock, and this client's may be ahead. Were it later, a loss and
        a return of the bookie would drop it: the ledger was CLOSED before.
        """
        since_ms = min(closed_ms, int(self._runtime.clock.time() * 1000))
        return {bookie_id: LostBookie(since_ms, LossReason.RETURNED.value) for bookie_id in bookie_ids}

    def absent_now(self, instances: Mapping[str, str]) -> dict[str, LostBookie]:
        """The record of a ledger that is created without these bookies, each with the storage that it has."""
        now_ms = int(self._runtime.clock.time() * 1000)
        return {
            bookie_id: LostBookie(now_ms, LossReason.ABSENT.value, instance, absent_at_creation=True)
            for bookie_id, instance in instances.items()
        }

    # --- one record -----------------------------------------------------------------------------------------------

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
            NotDone(
                MetadataConflictError(
                    "other clients write its under-replication record all the time", ledger_id=ledger_id
                )
            ),
            doubt,
        )

    async def add_new(self, ledger_ids: Sequence[int], lost: Mapping[str, LostBookie]) -> bool:
        """Add records of these ledgers in one transaction, if none has one; whether that was certainly done.

        If not, all of these records may be there, or none: `add` adds each, and returns what is in its way.
        """
        first, *others = (node for ledger_id in ledger_ids for node in self.nodes_of(ledger_id, lost))
        made = await create_certainly(self._store, first, *others, *self._checks, attempts_max=1)
        return isinstance(made, Done)

    async def _add_once(self, ledger_id: int, lost: Mapping[str, LostBookie]) -> CreateOutcome | PutOutcome:
        path = self._path(ledger_id)
        made = await self._make(path, lost)
        if isinstance(made, Missing) and not made.index:  # the first record of its partition
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
        top, value = self._nodes(path, lost)
        return await create_certainly(self._store, top, value, *self._checks, attempts_max=self._attempts_max)

    def nodes_of(self, ledger_id: int, lost: Mapping[str, LostBookie]) -> tuple[Create, Create]:
        """The nodes of a new record, for a transaction of the caller's. The first of them needs its partition."""
        return self._nodes(self._path(ledger_id), lost)

    def _nodes(self, path: str, lost: Mapping[str, LostBookie]) -> tuple[Create, Create]:
        token = self._runtime.rng.randbytes(_TOKEN_BYTES).hex()
        return Create(path, token.encode()), Create(f"{path}/{token}", _encode(lost, {}))

    async def read(self, ledger_id: int) -> UnderreplicationRecord | None:
        """The ledger's record; None if it certainly has none. A damaged one names no bookie.

        Raises `UnsupportedVersionError` for a record of a newer bkpy, `CorruptDataError` for one without a value.
        """
        return await self._find(ledger_id)

    async def seen(self, ledger_id: int) -> bool:
        """Whether it has a record, as far as this session knows. A record that the session knew of may be gone."""
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
                raise CorruptDataError(
                    "the under-replication record has no value: delete its node", ledger_id=ledger_id, path=path
                )
            missing = token  # it was removed, and perhaps added again, between the two reads
            await self._store.sync(path)

    async def return_bookies(self, record: UnderreplicationRecord, bookie_ids: Collection[str]) -> PutOutcome:
        """Record that these bookies are back, and have yet to be verified, if the record is still as it was read."""
        back = LossReason.RETURNED.value
        return await self._put(
            record,
            {b: dataclasses.replace(loss, reason=back) if b in bookie_ids else loss for b, loss in record.lost.items()},
        )

    async def _put(self, record: UnderreplicationRecord, lost: Mapping[str, LostBookie]) -> PutOutcome:
        node, value = f"{self._path(record.ledger_id)}/{record.token}", _encode(lost, record.unknown)
        return await put_certainly(
            self._store, node, value, record.node_version, *self._checks, attempts_max=self._attempts_max
        )

    async def end_absence(self, record: UnderreplicationRecord, bookie_ids: Collection[str]) -> RemoveOutcome:
        """Drop these bookies, which are back as they were, as `remove` does.

        The ones that were absent when the ledger was created stay for that reason: they never had all of it.
        """
        never_had = {b for b in bookie_ids if b in record.lost and record.lost[b].absent_at_creation}
        if not never_had:
            return await self.remove(record, bookie_ids)
        absent = LossReason.ABSENT.value
        return await self._put(
            record,
            {
                b: dataclasses.replace(loss, reason=absent) if b in never_had else loss
                for b, loss in record.lost.items()
                if b in never_had or b not in bookie_ids
            },
        )

    async def taken_in(self, ledger_id: int, bookie_ids: Collection[str], first_entry: int) -> AddOutcome:
        """Record that the ledger's writer has begun a fragment with these bookies, which take all entries from it on.

        They were absent when the ledger was created. What an absence before has made them miss is older than that, and
        remains for that reason. `Missing`: the ledger has no record any more.
        """
        doubt = False
        for _ in range(self._attempts_max):
            found = await attempt(self._find(ledger_id))
            match found:
                case Answer():
                    record = found.value
                case NotDone() | Unknown():
                    return escalate_unknown(NotDone(found.error), doubt)
                case _:
                    raise found  # a look is never refused
            if record is None:
                return Missing(self._path(ledger_id))
            outcome = await self._put(
                record,
                {b: _whole_from(loss, first_entry) if b in bookie_ids else loss for b, loss in record.lost.items()},
            )
            match outcome:
                case Done() | NotDone() | Unknown():
                    return outcome if isinstance(outcome, Done) else escalate_unknown(outcome, doubt)
                case Missing() | Changed():
                    pass
                case Superseded():
                    doubt = True
                case _:
                    assert_never(outcome)
        why = "other clients write its under-replication record all the time"
        return escalate_unknown(NotDone(MetadataConflictError(why, ledger_id=ledger_id)), doubt)

    async def remove(self, record: UnderreplicationRecord, bookie_ids: Collection[str]) -> RemoveOutcome:
        """Drop these bookies, and with the last one the record, if it is still as it was read."""
        path = self._path(record.ledger_id)
        node = f"{path}/{record.token}"
        rest = {bookie: loss for bookie, loss in record.lost.items() if bookie not in bookie_ids}
        if rest:
            return await self._put(record, rest)
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
        """Remove the record and the ledger's lock in one transaction; whether that was certainly done.

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
        """Remove the partitions in which no record was left when this object removed one."""
        while self._thinned:
            await self._remove_empty(self._thinned.pop())

    async def _remove_empty(self, partition: str) -> None:
        """Remove a partition without records, and empty ones above it. `add` makes them again."""
        while partition != self._base:
            # A partition that another client has made again meanwhile is empty as well, or isn't removed.
            if not isinstance(await delete_certainly(self._store, partition, attempts_max=1), Gone):
                return
            partition = parent_of(partition)

    async def make_partition(self, ledger_id: int) -> Done | NotDone:
        """Make the nodes above the ledger's record, for `nodes_of`. Where they were empty, they may be removed."""
        return await ensure_path(self._store, self.partition_of(ledger_id), attempts_max=self._attempts_max)

    def partition_of(self, ledger_id: int) -> str:
        """The node that a record of the ledger lies below."""
        return parent_of(self._path(ledger_id))

    def _path(self, ledger_id: int) -> str:
        return LONG_HIERARCHICAL.path_of(self._base, ledger_id)

    # --- all of them ----------------------------------------------------------------------------------------------

    async def list(self) -> AsyncGenerator[int, None]:
        """The ids of the ledgers with records, ascending, read partition by partition.

        A record that is there during the whole listing is in it.
        """
        await self._store.sync(self._base)
        async for partition in LONG_HIERARCHICAL.partitions(self._store, self._base):
            for ledger_id in partition:
                yield ledger_id

    async def changed(self) -> bool:
        """Return when there may be new records: true if they were announced, false if an interval has passed.

        The first call returns at once. For one caller at a time. Raises `ClientClosedError` when the store is closed.
        """
        if self._news is None:
            self._news = self._store.watch(f"{self._root}/{paths.MARKS_NEWS}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.marks_look_interval_s):
                try:
                    await anext(self._news)
                    return True
                except StopAsyncIteration:
                    raise ClientClosedError("the metadata store was closed") from None
        return False

    def close(self) -> None:
        """End the watch of `changed`."""
        if self._news is not None:
            self._news.close()

    async def announce(self) -> Done | NotDone | Unknown:
        """Wake the callers of `changed`. If that fails, they look by themselves, an interval later.

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
                return Done(-1)  # another client has woken them, after the records were there
            case NotDone() | Unknown():
                return outcome
            case _:
                assert_never(outcome)

    async def announced(self) -> int:
        """The version of the last announcement; -1 if there was none. Each is one more than the one before."""
        found = await read_certainly(self._store, f"{self._root}/{paths.MARKS_NEWS}")
        return -1 if found is None else found[1]

    async def has_manual_moves(self) -> bool:
        """Whether copies are moved without records now, as the server knows it: see `manual.py`."""
        return bool(await children_if_there(self._store, f"{self._root}/{paths.MANUAL_MOVES}"))

    # --- the switch -----------------------------------------------------------------------------------------------

    async def enabled(self) -> bool:
        """Whether re-replication is enabled, as the server knows it: it may lag behind."""
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
        """Enable or disable re-replication for the whole cluster."""
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
        absent_at_creation=old.absent_at_creation or new.absent_at_creation,
        whole_from=new.whole_from if old.whole_from is None else old.whole_from,
        unknown={**old.unknown, **new.unknown},
    )


def _whole_from(loss: LostBookie, first_entry: int) -> LostBookie:
    """A bookie that its ledger's writer has taken in. One that lost data, is to leave or failed a check stays so."""
    if not loss.absent_at_creation or loss.reason not in _AWAY:
        return loss
    return dataclasses.replace(loss, reason=LossReason.ABSENT.value, whole_from=first_entry)


def _lasts(reason: str) -> int:
    """The higher, the fewer things make up for it. What a newer bkpy calls it, this one can't tell."""
    return _LASTING.index(reason) if reason in _LASTING else len(_LASTING)


# --- the stored form ----------------------------------------------------------------------------------------------


def _encode(lost: Mapping[str, LostBookie], unknown: Mapping[str, Any]) -> bytes:
    fields = {
        "lost": {
            bookie: {"since_ms": loss.since_ms, "reason": loss.reason, "instance": loss.instance, **_optional(loss)}
            for bookie, loss in sorted(lost.items())
        },
    }
    return _RECORD.encode(fields, unknown)


def _optional(loss: LostBookie) -> dict[str, Any]:
    absent = {"absent_at_creation": True} if loss.absent_at_creation else {}
    whole = {} if loss.whole_from is None else {"whole_from": loss.whole_from}
    return {**absent, **whole, **loss.unknown}


def _decode(ledger_id: int, data: bytes, node_version: int, token: str) -> UnderreplicationRecord:
    """The record. A damaged one names no bookie, and its ledger is still looked at."""

    def made(fields: dict[str, Any]) -> UnderreplicationRecord:
        lost = {bookie: _decode_loss(loss) for bookie, loss in fields.pop("lost").items()}
        return UnderreplicationRecord(ledger_id, lost, node_version, token, fields)

    try:
        return _RECORD.decode(data, made, ledger_id=ledger_id)
    except CorruptDataError:
        return UnderreplicationRecord(ledger_id, {}, node_version, token)


def _decode_loss(fields: dict[str, Any]) -> LostBookie:
    since_ms, reason = take(fields, "since_ms", int), take(fields, "reason", str)
    instance = take(fields, "instance", str)
    absent = take(fields, "absent_at_creation", bool) if "absent_at_creation" in fields else False
    whole_from = take(fields, "whole_from", int) if "whole_from" in fields else None
    return LostBookie(since_ms, reason, instance, absent, whole_from, fields)
