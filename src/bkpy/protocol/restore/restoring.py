"""What a cluster whose metadata were restored from a backup may do, and when it is like any other again.

    WRITING --> RESTORED --> CLOSED --> CONFIRMED
    nodes       bookies      every      every bookie has the entries
    are made    join         ledger     that the metadata want of it
                  ^------------' when an operator gives up other bookies

The restored metadata are older than the bookies' entries: since then ledgers may have been closed, moved, deleted or
created. So the restored cluster is a new generation, with an instance id of its own. A bookie of the *former* instance
joins it by putting all its ledgers in limbo first: from then on it denies nothing, whatever the metadata say. So may
bookies that have joined another restored cluster meanwhile, which an operator gives up and names (`also_from`).

    event after the backup    the restored metadata say           what keeps every acknowledged entry
    ------------------------  ----------------------------------  -----------------------------------------------
    copies moved              bookies that may have nothing       these copy from any bookie (`widened`)
    ensemble changed          an open ledger, the old ensemble    the recovery reads from every bookie (`widened`)
    closed                    an open ledger                      the same: the end lies behind every copy found
    deleted                   a ledger without entries            it reads as unknown, until somebody deletes it again
    bookies lost for good     them                                others take their places, and copy (`relocated`)
    created                   nothing                             its entries stay, and are not collected (`is_kept`)

Invariants: before CONFIRMED nothing is collected, deleted for retention or re-replicated, and no limbo ends; an open
ledger is closed only once every bookie with a cookie has answered, except bookies that an operator gives up by name; a
ledger that may have been created after the backup keeps its entries until an operator decides; all functions are total.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.ledger.accepted_loss import AcceptedLoss
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

SEQUENCE_BITS = 31
# Highs of the long layout that a restore skips, and another one for each second since the backup: two milliards of ids
# each, which nobody draws in between, and two clusters that are restored from one backup don't draw the same ones.
HIGHS_SKIPPED = 1024


class RestoreState(enum.StrEnum):
    """How far the restore of a cluster has come."""

    WRITING = "writing"  # its nodes are being made: no client or bookie finds a cluster yet
    RESTORED = "restored"  # bookies join, in limbo
    CLOSED = "closed"  # every ledger is CLOSED, or an operator has decided to go on without that; bookies copy
    CONFIRMED = "confirmed"


# What comes next. Only `with_fewer` goes back.
FOLLOWING: Mapping[RestoreState, RestoreState | None] = {
    RestoreState.WRITING: RestoreState.RESTORED,
    RestoreState.RESTORED: RestoreState.CLOSED,
    RestoreState.CLOSED: RestoreState.CONFIRMED,
    RestoreState.CONFIRMED: None,
}


@dataclass(frozen=True, slots=True)
class Restore:
    """The restore that a cluster comes from.

    `instance_id` is the cluster's, `former` that of the cluster in the backup. `checksum` names the backup. Ledgers
    from `kept_from` to `kept_to` may have been created after the backup. `was_disabled`: re-replication was off then.
    `given_up`: the bookies that it was closed without, sorted; others have taken their places. `also_from`: clusters
    that were restored before, sorted, whose bookies may join as those of the former one.
    """

    state: RestoreState
    instance_id: str
    former: str
    checksum: str
    kept_from: int
    kept_to: int
    was_disabled: bool = False
    collects_later: bool = False  # an operator has decided that ledgers created after the backup may go
    given_up: tuple[str, ...] = ()
    also_from: tuple[str, ...] = ()

    def joined_from(self, instances: Collection[str]) -> Restore:
        """With bookies of these clusters joining, too."""
        more = {*self.also_from, *instances} - {self.instance_id, self.former}
        return dataclasses.replace(self, also_from=tuple(sorted(more)))

    def advanced(self) -> Restore:
        """The next state. `ValueError` behind CONFIRMED."""
        following = FOLLOWING[self.state]
        if following is None:
            raise ValueError("a confirmed restore doesn't go on")
        return dataclasses.replace(self, state=following)

    def with_fewer(self) -> Restore:
        """RESTORED again, from CLOSED: an operator gives up other bookies, whose places others are to take.

        What bookies have reported, and report meanwhile, doesn't count any more: it may be of other places.
        """
        if self.state is not RestoreState.CLOSED:
            raise ValueError(f"a restore that is {self.state} doesn't go back")
        return dataclasses.replace(self, state=RestoreState.RESTORED)


def is_confirmed(restore: Restore | None) -> bool:
    """Whether a cluster may collect, re-replicate, and end limbo; None: it was never restored."""
    return restore is None or restore.state is RestoreState.CONFIRMED


def is_kept(restore: Restore | None, ledger_id: int) -> bool:
    """Whether a bookie keeps a ledger that the metadata don't have: it may have been created after the backup."""
    if restore is None or restore.collects_later:
        return False
    return restore.kept_from <= ledger_id <= restore.kept_to


def copies_here(restore: Restore | None) -> bool:
    """Whether a bookie copies to itself what the restored metadata want of it, from any bookie, and reports."""
    return restore is not None and restore.state is RestoreState.CLOSED


class IdRange(NamedTuple):
    """The first new high of the long layout, and the ids that are kept, see `Restore`."""

    high: int
    kept_from: int
    kept_to: int


def ids_after(newest_high: int, kept_from: int, age_s: float) -> IdRange:
    """Where ids go on behind all that were drawn after a backup. `ValueError` if there are none left.

    `newest_high`: at the end of the backup; `kept_from`: the lowest id whose ledger it may have missed; `age_s`: of the
    backup.
    """
    high = newest_high + HIGHS_SKIPPED + max(0, int(age_s))
    if high >= 1 << (63 - SEQUENCE_BITS):
        raise ValueError("the cluster has no ledger ids left")
    return IdRange(high, kept_from, (high << SEQUENCE_BITS) - 1)


class Adoption(enum.Enum):
    """What a bookie's directories have to do with a restored cluster."""

    MEMBER = "they belong to it already"
    JOIN = "they belong to the cluster in the backup, or one also named: all their ledgers go into limbo first"
    STRANGER = "they are new, or another cluster's"


def adoption_of(instances: Collection[str], restore: Restore | None) -> Adoption:
    """By the instance ids in the directories' cookies. Some may be new already, after a start that was interrupted."""
    if (
        restore is None
        or not instances
        or not {restore.instance_id, restore.former, *restore.also_from}.issuperset(instances)
    ):
        return Adoption.STRANGER
    return Adoption.MEMBER if set(instances) == {restore.instance_id} else Adoption.JOIN


def widened(metadata: LedgerMetadata, bookies: Sequence[str]) -> LedgerMetadata:
    """The metadata as if each entry were to be on every one of these bookies: to find any copy that there is.

    With an ack quorum of one, an entry is missing only if every bookie answers without a copy, and a ledger is fenced
    only where every bookie is.
    """
    fragments = tuple(Fragment(fragment.first_entry, tuple(bookies)) for fragment in metadata.fragments)
    return dataclasses.replace(
        metadata, ensemble_size=len(bookies), write_quorum=len(bookies), ack_quorum=1, fragments=fragments
    )


def with_later_loss(metadata: LedgerMetadata, at_ms: int) -> LedgerMetadata:
    """A closed ledger behind which its log may have had more: the log leaves a gap, so no position is used twice."""
    if metadata.state is not LedgerState.CLOSED or metadata.accepted_loss is not None:
        return metadata
    last = metadata.last_entry
    return dataclasses.replace(metadata, accepted_loss=AcceptedLoss(at_ms, last, last, {}))


def relocated(metadata: LedgerMetadata, gone: Collection[str], present: Collection[str]) -> LedgerMetadata:
    """A closed ledger with present bookies in the places of the ones that are gone, as far as there are free ones.

    All bookies are in limbo, so a new one denies nothing until it has copied its share from whatever bookie has it.
    Otherwise a copy that no ensemble names would be collected, though all bookies that are named are gone.
    """
    for number, fragment in enumerate(metadata.fragments):
        if metadata.is_hole(number):
            continue
        free = sorted(set(present) - set(fragment.bookies))
        turn = metadata.ledger_id % max(1, len(free))
        free = free[turn:] + free[:turn]
        for place, name in enumerate(fragment.bookies):
            if name in gone and free:
                metadata = metadata.replace_bookie(number, place, free.pop())
    return metadata


def written_back_to(named: Sequence[str], answering: Collection[str]) -> tuple[str, ...] | None:
    """The ensemble that gets the entries of an open ledger's last fragment: the one named, others for those missing.

    None if too few bookies answer.
    """
    free = iter(sorted(set(answering) - set(named)))
    ensemble = [name if name in answering else next(free, None) for name in named]
    return None if None in ensemble else tuple(name for name in ensemble if name is not None)


class BookieReport(NamedTuple):
    """What a bookie misses of what the restored metadata want of it: entries of so many ledgers.

    `retried`: ledgers among them that it tries again, because a bookie that was asked failed. `asked`: the bookies that
    it could ask; None if that is unknown.
    """

    left: int
    examples: tuple[int, ...] = ()
    retried: int = 0
    asked: frozenset[str] | None = None

    def is_final(self, expected: Collection[str]) -> bool:
        """Whether what is missing is on none of the `expected` bookies, as far as they can tell."""
        return not self.left or (not self.retried and (self.asked is None or self.asked.issuperset(expected)))


def obstacles(
    cookies: Collection[str],
    registered: Collection[str],
    without: Collection[str],
    reports: Mapping[str, BookieReport] | None = None,
) -> list[str]:
    """What keeps a restore from going on, one line each.

    Every bookie with a cookie has to be here, except bookies that an operator goes on `without`; and, with `reports`,
    to have reported that it misses nothing.
    """
    found = []
    for bookie_id in sorted(set(without) - set(cookies)):
        found.append(f"bookie {bookie_id}: the cluster knows no such bookie")
    for bookie_id in sorted(set(without) & set(registered)):
        found.append(f"bookie {bookie_id} is here: it can't be given up")
    expected = sorted(set(cookies) - set(without))
    for bookie_id in expected:
        if bookie_id not in registered:
            found.append(f"bookie {bookie_id} isn't here: start it, or go on without it")
        elif reports is not None and bookie_id not in reports:
            found.append(f"bookie {bookie_id} has not reported yet: it looks for what it misses")
        elif reports is not None and (report := reports[bookie_id]).left:
            some = ", ".join(map(str, report.examples)) + (", ..." if report.left > len(report.examples) else "")
            again = f"; it tries {report.retried} of them again" if report.retried else ""
            found.append(f"bookie {bookie_id} can't get all entries of {report.left} ledgers: {some}{again}")
    if not expected:
        found.append("there is no bookie to ask")
    return found
