"""Which bookies are lost, decided from what is seen of them: the decisions of the auditor.

A bookie that isn't registered, but has or had a cookie or is named by ledgers, is *absent*. Absent for longer than the
settle time, alone, it is lost after the recovery delay; two such are lost at once. The ledgers of a lost bookie get
under-replication records, which are dropped when the bookie comes back with the storage that it had.

    here --gone--> absent --settle time, delay--> due: begun --all ledgers recorded--> marked --none left--> worked off
          <------- back as it was: forgotten ----    back as it was: RETURNED, dropped from the records

A bookie in *limbo* (registered, but it has lost data) counts as absent, also if its storage is a new one: it copies
back the entries of the former one, and has as much time for that as an absent one has to come back. A bookie that is
here, reports no loss, and has another storage than before (*replaced*), is due at once: the former storage is gone.
One whose cookie was removed isn't expected back: absent, it is lost after the settle time alone, doesn't count among
the half below, and is forgotten once no record names it.

Invariants: a bookie that is here, with the storage that it had and not in limbo, is never due; while most of the
bookies that are expected are absent, or all that are known, nobody is due, and afterwards their clocks begin again;
what is due stays due for a later auditor, so does the time since when a bookie is absent.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


class Presence(enum.StrEnum):
    """What is seen of a bookie."""

    HERE = "here"  # registered: writable, read-only or draining
    LIMBO = "limbo"  # registered, but it has lost data
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """A bookie now. `instance` is its storage, by the UUIDs of its indexes, with spaces between; "" if not known.

    One without a cookie (`has_cookie`) was decommissioned, or somebody removed it, or only ledgers name it.
    """

    presence: Presence
    instance: str = ""
    has_cookie: bool = True


@dataclass(frozen=True, slots=True)
class Absence:
    """A bookie without its storage `instance` since `since_ms`. `replaced`: it has another storage now.

    `began_ms`: when it began, if `since_ms` has begun again since, for the time that it may take, or is ahead of the
    metadata store's clock. Ledgers may have been written without the bookie ever since it began.

    `begun`: its ledgers get under-replication records, some may have one. `marked`: all of them have or had. And
    `worked_off`: no record is left, or none of the ledgers with one can be repaired. Then its loss makes no other one
    more urgent.
    """

    since_ms: int
    instance: str
    replaced: bool = False
    begun: bool = False
    marked: bool = False
    worked_off: bool = False
    began_ms: int | None = None

    @property
    def missing_since_ms(self) -> int:
        """Since when the bookie may miss what was written."""
        return self.since_ms if self.began_ms is None else min(self.began_ms, self.since_ms)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """What an auditor leaves to the next: the storage that each bookie was last seen with, and who is absent."""

    instances: Mapping[str, str] = field(default_factory=dict)
    absences: Mapping[str, Absence] = field(default_factory=dict)
    suspended: bool = False
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bookies(self) -> set[str]:
        """The bookies to look at whether they have a cookie or not: without one, ledgers may name them all the same."""
        return {*self.instances, *self.absences}


@dataclass(frozen=True, slots=True)
class Findings:
    """What follows. The ledgers of `due` get records now; records drop `returned`, by the storage that they have.

    `look_at_ms`: when something is due that isn't yet, if nothing changes; None if that is never.
    """

    record: AuditRecord
    due: Mapping[str, Absence]
    returned: Mapping[str, str]
    look_at_ms: int | None


class AbsenceStep(enum.Enum):
    """What becomes of a bookie's absence."""

    NONE = enum.auto()  # there is none, or it is over
    BEGIN = enum.auto()  # another one than there was, if there was one
    KEEP = enum.auto()
    REPLACED = enum.auto()  # its entries are gone for good, and its ledgers have no records yet
    RETURN = enum.auto()  # it is over, and the records drop the bookie


class AbsenceBefore(enum.Enum):
    """A bookie's absence as it was."""

    NONE = enum.auto()
    UNMARKED = enum.auto()
    MARKED = enum.auto()  # or begun
    REPLACED = enum.auto()  # not marked yet
    REPLACED_MARKED = enum.auto()


# For a bookie with the storage that it was last seen with. With another one, see `_step`.
STEPS: Mapping[AbsenceBefore, Mapping[Presence, AbsenceStep]] = {
    AbsenceBefore.NONE: {
        Presence.HERE: AbsenceStep.NONE,
        Presence.LIMBO: AbsenceStep.BEGIN,
        Presence.ABSENT: AbsenceStep.BEGIN,
    },
    AbsenceBefore.UNMARKED: {
        Presence.HERE: AbsenceStep.NONE,
        Presence.LIMBO: AbsenceStep.KEEP,
        Presence.ABSENT: AbsenceStep.KEEP,
    },
    AbsenceBefore.MARKED: {
        Presence.HERE: AbsenceStep.RETURN,
        Presence.LIMBO: AbsenceStep.KEEP,
        Presence.ABSENT: AbsenceStep.KEEP,
    },
    AbsenceBefore.REPLACED: {
        Presence.HERE: AbsenceStep.KEEP,
        Presence.LIMBO: AbsenceStep.KEEP,
        Presence.ABSENT: AbsenceStep.KEEP,
    },
    # The records stay: they are of the former storage. But now the other one may be absent.
    AbsenceBefore.REPLACED_MARKED: {
        Presence.HERE: AbsenceStep.NONE,
        Presence.LIMBO: AbsenceStep.BEGIN,
        Presence.ABSENT: AbsenceStep.BEGIN,
    },
}


def covers(now: str, before: str) -> bool:
    """Whether the storage `now` has all of the one `before`: directories may have been added. Unknown ones may be."""
    return not now or not before or set(before.split()) <= set(now.split())


def audit(
    record: AuditRecord, seen: Mapping[str, BookieStatus], now_ms: int, *, settle_ms: int, delay_ms: int
) -> Findings:
    """What follows from a look at the bookies: `seen` has all that have a cookie, and `record.bookies`."""
    absences: dict[str, Absence] = {}
    returned: dict[str, str] = {}
    for bookie, is_ in sorted(seen.items()):
        was, before = record.absences.get(bookie), record.instances.get(bookie, "")
        match _step(was, is_, before):
            case AbsenceStep.BEGIN:
                # What it is absent with. Of one that is in limbo with a new storage, that is the former one.
                same = is_.instance if covers(is_.instance, before) else ""
                absences[bookie] = Absence(now_ms, same or before)
            case AbsenceStep.KEEP:
                assert was is not None
                absences[bookie] = _not_in_the_future(was, now_ms)
            case AbsenceStep.REPLACED:
                absences[bookie] = Absence(now_ms, before, replaced=True)
            case AbsenceStep.RETURN:
                returned[bookie] = is_.instance
            case AbsenceStep.NONE:
                pass
    instances = {bookie: _instance(record, bookie, is_) for bookie, is_ in seen.items()}
    # One whose cookie was removed isn't expected back. One that never had any says that metadata may not be whole.
    removed = {bookie for bookie, is_ in seen.items() if instances[bookie] and _is_gone(is_)}
    counted = {bookie: absence for bookie, absence in absences.items() if bookie not in removed}
    suspended = _most(counted, len(seen) - len(removed)) or (bool(removed) and len(removed) == len(seen))
    if record.suspended and not suspended:
        absences = {bookie: _begun_again(absence, now_ms) for bookie, absence in absences.items()}
    found = AuditRecord(instances, absences, suspended, record.unknown)
    if suspended:
        return Findings(found, {}, returned, None)
    due_at = _due_at(absences, removed, settle_ms, delay_ms)
    due = {bookie: absences[bookie] for bookie, at in due_at.items() if at <= now_ms}
    return Findings(found, due, returned, min((at for at in due_at.values() if at > now_ms), default=None))


def _is_gone(is_: BookieStatus) -> bool:
    return not is_.has_cookie and is_.presence is Presence.ABSENT


def _step(was: Absence | None, is_: BookieStatus, before: str) -> AbsenceStep:
    if was is not None and was.replaced and not was.marked:
        return AbsenceStep.KEEP  # first this one, then perhaps the next
    if not covers(is_.instance, before) and is_.presence is not Presence.HERE:
        # It has to copy back its entries: it has a new cookie before it is registered, and then it is in limbo.
        return AbsenceStep.BEGIN if was is None or was.replaced else AbsenceStep.KEEP
    if not covers(is_.instance, before):
        # If its ledgers were recorded while it was absent, all records are there: they just mustn't drop it.
        return AbsenceStep.REPLACED
    return STEPS[_was(was)][is_.presence]


def _instance(record: AuditRecord, bookie: str, is_: BookieStatus) -> str:
    """The storage that the next look is compared with: what it was here with, also while another is to be marked."""
    before = record.instances.get(bookie, "")
    was = record.absences.get(bookie)
    if not is_.instance or (before and is_.presence is Presence.ABSENT):
        return before
    if was is not None and was.replaced and not was.marked:
        return before
    return is_.instance


def _not_in_the_future(absence: Absence, now_ms: int) -> Absence:
    """By the clock of this auditor's machine; the one before may have had another."""
    return absence if absence.since_ms <= now_ms else dataclasses.replace(absence, since_ms=now_ms)


def _was(absence: Absence | None) -> AbsenceBefore:
    if absence is None:
        return AbsenceBefore.NONE
    if absence.replaced:
        return AbsenceBefore.REPLACED_MARKED if absence.marked else AbsenceBefore.REPLACED
    return AbsenceBefore.MARKED if absence.begun or absence.marked else AbsenceBefore.UNMARKED


def _most(absences: Mapping[str, Absence], bookies: int) -> bool:
    """Whether more than half of the bookies are absent. A bookie that no ledger misses any more doesn't count."""
    worked_off = sum(absence.worked_off for absence in absences.values())
    missing = sum(not absence.worked_off and not absence.replaced for absence in absences.values())
    return 2 * missing > bookies - worked_off


def _begun_again(absence: Absence, now_ms: int) -> Absence:
    if absence.marked or absence.replaced:
        return absence
    return dataclasses.replace(absence, since_ms=now_ms, began_ms=absence.missing_since_ms)


def _due_at(absences: Mapping[str, Absence], removed: Collection[str], settle_ms: int, delay_ms: int) -> dict[str, int]:
    """When each bookie that isn't marked is due, if nothing changes until then; in the past: it is due.

    One whose cookie was `removed` only has to settle: there is nothing to wait for.
    """
    settled_at = sorted(absence.since_ms + settle_ms for absence in absences.values() if not absence.worked_off)
    found = {}
    for bookie, absence in absences.items():
        if absence.marked:
            continue
        if absence.replaced:
            found[bookie] = absence.since_ms
            continue
        alone = absence.since_ms + (settle_ms if bookie in removed else max(settle_ms, delay_ms))
        if len(settled_at) < 2:
            found[bookie] = alone
        else:
            # Together with the other one that settles first, and not before this one has settled itself.
            own = absence.since_ms + settle_ms
            others = settled_at.copy()
            others.remove(own)
            found[bookie] = min(alone, max(own, others[0]))
    return found


def begun_since(before: AuditRecord, record: AuditRecord) -> frozenset[str]:
    """The bookies with an absence in `record` that began after `before`."""
    return frozenset(
        bookie
        for bookie, absence in record.absences.items()
        if (was := before.absences.get(bookie)) is None or was.missing_since_ms != absence.missing_since_ms
    )


def with_stored(record: AuditRecord, bookies: Collection[str], stored_ms: int) -> AuditRecord:
    """The audit record, in which absences of these bookies were stored then, by the metadata store's clock.

    They began no later. That clock tells what was written since, and the auditor's may be ahead of it.
    """
    later = {bookie for bookie in bookies if record.absences[bookie].missing_since_ms > stored_ms}
    return _changed(record, later, lambda absence: dataclasses.replace(absence, began_ms=stored_ms))


def with_begun(record: AuditRecord, bookies: Collection[str]) -> AuditRecord:
    """The audit record before ledgers of these bookies get under-replication records."""
    return _changed(record, bookies, lambda absence: dataclasses.replace(absence, begun=True))


def with_marked(record: AuditRecord, bookies: Collection[str]) -> AuditRecord:
    """The audit record when all ledgers of these bookies have under-replication records."""
    return _changed(record, bookies, lambda absence: dataclasses.replace(absence, marked=True))


def _changed(record: AuditRecord, bookies: Collection[str], change: Callable[[Absence], Absence]) -> AuditRecord:
    changed = {bookie: change(absence) for bookie, absence in record.absences.items() if bookie in bookies}
    return dataclasses.replace(record, absences={**record.absences, **changed})


def without_gone(record: AuditRecord, seen: Mapping[str, BookieStatus], *, but: Collection[str]) -> AuditRecord:
    """The audit record without bookies that are gone with their cookies. Under-replication records name only `but`."""
    gone = {
        bookie
        for bookie, absence in record.absences.items()
        if absence.worked_off and bookie not in but and bookie in seen and _is_gone(seen[bookie])
    }
    return dataclasses.replace(
        record,
        instances={bookie: instance for bookie, instance in record.instances.items() if bookie not in gone},
        absences={bookie: absence for bookie, absence in record.absences.items() if bookie not in gone},
    )


def with_worked_off(record: AuditRecord, *, but: Collection[str] = ()) -> AuditRecord:
    """The audit record when under-replication records name only the bookies `but`."""
    done = {
        bookie: dataclasses.replace(absence, worked_off=True)
        for bookie, absence in record.absences.items()
        if absence.marked and bookie not in but
    }
    return dataclasses.replace(record, absences={**record.absences, **done})
