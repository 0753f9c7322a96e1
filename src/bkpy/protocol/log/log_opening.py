"""Who writes a log, and where it goes on: what is decided when a log is opened, and when it rolls, as pure functions.

    opening   read the list -> recover what isn't sealed -> `settled` -> a new ledger -> `begun` -> write the list
    rolling   a new ledger -> appends wait -> `begun` -> write the list -> appends go on; the former is closed behind

A write of the list that was refused, or whose outcome is unknown, may be followed by a look at the list: the tables
`AFTER_OPENING` and `AFTER_ROLLING` say what is done, whatever is found.

Invariants: nothing is served before the list names the new ledger and its writer; what survives of a writer is a prefix
of what it appended, since a segment that begins behind the end of the one before it is dropped; appends go to the
former ledger again only if it is certain that the list will never name the next one.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from bkpy.errors import CorruptDataError
from bkpy.protocol.ledger.ledger_metadata import LEDGER_ID_MAX
from bkpy.protocol.log.log_list import OPEN_MAX, LogList, Segment
from bkpy.protocol.log.log_producers import RUNS_MAX
from bkpy.protocol.wire.records import NUMBERED, PLAIN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bkpy.protocol.log.log_producers import Numbering, Producers

LEDGER_ENTRIES_MAX: Final = 10**12  # more than anybody has ever appended to one ledger of a log
TOKEN_CHARS: Final = 32
LABEL_CHARS_MAX: Final = 160  # a host, a process and the client's name
NUMBERS_CHARS_MAX: Final = 80  # what the list gets to say of a producer when a ledger with its numbers is sealed
LENGTH_MAX: Final = 2**63 - 1  # bytes of a ledger
TIME_MAX_MS: Final = 10**15  # later than any clock's time


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """Where the ledger of a segment was closed: its entries and length, and the time of the last one (0 for none).

    `lost`: somebody has accepted that there may have been more. `numbering`: of entries that have numbers.
    """

    entries: int
    length: int
    last_ms: int
    lost: bool = False
    numbering: Numbering | None = None


def settled(log_list: LogList, ends: Mapping[int, SegmentEnd], runs_max: int = RUNS_MAX) -> LogList:
    """The list when all of its ledgers are CLOSED; `ends` has every open segment's, by ledger.

    The producers' state gets the numbers of what is kept.

    Segments without entries are dropped, and so is one that begins behind the end of the one before: of what its
    ledger holds nothing was ever acknowledged or shown to a reader. Unless the loss of the former's end was accepted:
    then there is a gap up to where it begins, or behind the last ledger one that is longer than any ledger, and the log
    goes on behind that. Gaps that touch become one. If all that is left lies below the first position, nothing is left.
    Raises `CorruptDataError` if a ledger holds more than lies before the next segment, which no writer brings about.
    """
    kept = list(log_list.segments[:-OPEN_MAX])
    dropped: list[int] = []
    gaps = list(log_list.gaps)
    producers = log_list.producers
    end = (
        log_list.behind(kept[-1].end_position) if kept else log_list.first_position
    )  # of what is kept, and the gap behind it
    following = end if kept else None  # where a segment has to begin
    lost = False  # and may begin later
    for segment in log_list.segments[-OPEN_MAX:]:
        if following is not None and segment.first_position < following:
            raise CorruptDataError(
                f"the ledger begins at position {segment.first_position} of the log, and the one before it ends behind "
                f"that, at {following}",
                ledger_id=segment.ledger_id,
            )
        if following is not None and segment.first_position > following and not lost:
            dropped.append(segment.ledger_id)
            continue
        closed = ends.get(segment.ledger_id) or SegmentEnd(segment.entries, segment.length, segment.last_ms)
        following = log_list.behind(segment.first_position + closed.entries)
        if closed.entries:
            _add_gap(gaps, end, segment.first_position)
            kept.append(segment.seal(closed.entries, closed.length, closed.last_ms))
            if not segment.sealed:
                producers = _with_numbers(producers, kept[-1], closed.numbering, runs_max)
            end = following
        else:
            dropped.append(segment.ledger_id)
        lost = closed.lost
        if lost and segment is log_list.segments[-1]:
            following = segment.first_position + LEDGER_ENTRIES_MAX
    following = max(log_list.first_position, end if following is None else following)
    if kept and end < log_list.first_position:
        # What was truncated up to there was lost with its bookies: what is appended next must not be below that, too.
        dropped += [segment.ledger_id for segment in kept]
        kept, end = [], log_list.first_position
    _add_gap(gaps, end, following)
    begin = (
        log_list.pages[0].first_position if kept and log_list.pages else kept[0].first_position if kept else following
    )
    first = max(log_list.first_position, begin)
    pending_delete = log_list.pending_delete + tuple(dropped)
    gaps = [gap for gap in gaps if gap[1] >= begin]  # also one between segments that are truncated, but not yet deleted
    return dataclasses.replace(
        log_list,
        segments=tuple(kept),
        pending_delete=pending_delete,
        gaps=tuple(gaps),
        first_position=first,
        producers=producers,
    )


def without_deleted(log_list: LogList, deleted: Collection[int]) -> LogList:
    """The list of a backup without its open segments from the first one on whose ledger was deleted since it was read.

    That segment was empty, or was truncated once it was sealed. Where later ones begin is not known then.
    """
    for number, segment in enumerate(log_list.segments):
        if not segment.sealed and segment.ledger_id in deleted:
            return dataclasses.replace(log_list, segments=log_list.segments[:number])
    return log_list


def with_lost_end(log_list: LogList) -> LogList:
    """The list of a log that may have had later segments, which are lost: none of their positions is given out again.

    Behind open segments that is so once their ledgers' loss is accepted, see `settled`.
    """
    if log_list.deleted or log_list.open_segments:
        return log_list
    gaps = list(log_list.gaps)
    _add_gap(gaps, log_list.sealed_end, log_list.sealed_end + LEDGER_ENTRIES_MAX)
    first = log_list.first_position if log_list.rows else gaps[-1][1]
    return dataclasses.replace(log_list, gaps=tuple(gaps), first_position=first)


def _with_numbers(producers: Producers, segment: Segment, numbering: Numbering | None, runs_max: int) -> Producers:
    """The producers' state with the entries of a segment that is sealed now."""
    if numbering is None or not segment.entries:
        return producers
    return producers.with_segment(
        segment.ledger_id, numbering, segment.first_position, segment.entries, segment.last_ms, runs_max
    )


def _add_gap(gaps: list[tuple[int, int]], begin: int, end: int) -> None:
    """Append the gap begin..end, unless it is empty. It becomes one with a former gap that ends at `begin` or later."""
    if begin >= end:
        return
    if gaps and gaps[-1][1] >= begin:
        begin = min(gaps.pop()[0], begin)
    gaps.append((begin, end))


def longest(log_list: LogList) -> LogList:
    """The longest list that `settled` can return, whatever the ends of the open ledgers turn out to be.

    A row of a segment takes more than a gap in its place; a row and a gap behind it take most.
    """
    ends, numbers = {}, ""
    for segment, following in zip_longest(log_list.open_segments, log_list.open_segments[1:]):
        entries = LEDGER_ENTRIES_MAX if following is None else following.first_position - segment.first_position
        lost = entries > 1
        ends[segment.ledger_id] = SegmentEnd(entries - lost, LENGTH_MAX, TIME_MAX_MS, lost)
        numbers += "x" * NUMBERS_CHARS_MAX * (segment.stamp == NUMBERED)
    found = settled(log_list, ends)
    return dataclasses.replace(found, unknown={**found.unknown, "": numbers}) if numbers else found


def begun(
    log_list: LogList, ledger_id: int, position: int, now_ms: int, token: str, label: str, *, numbered: bool = False
) -> LogList:
    """The list with one more segment, which its writer appends to from now on; all before the last must be sealed.

    The format of its entries' stamps is fixed here: with `numbered`, its writer has a producer.
    """
    begun_ms = max(now_ms, log_list.last_ms)
    segment = Segment(ledger_id, position, begun_ms, stamp=NUMBERED if numbered else PLAIN)
    since_ms = log_list.writer_since_ms if log_list.writer == token else now_ms
    return dataclasses.replace(
        log_list,
        segments=(*log_list.segments, segment),
        writer=token,
        writer_label=label,
        writer_since_ms=since_ms,
    )


def with_room(log_list: LogList, position: int, now_ms: int, token: str, label: str, *, numbered: bool) -> LogList:
    """What `begun` returns for a ledger that does not exist yet, or a longer list: the id has as many digits as any."""
    return begun(log_list, LEDGER_ID_MAX - len(log_list.segments), position, now_ms, token, label, numbered=numbered)


def longest_opened(log_list: LogList, now_ms: int) -> LogList:
    """The longest list that the next opener may have to store.

    An opener checks its length before it fences anybody. A list that is stored by a roll or by a sink leaves room for
    it: only openers may use that room.
    """
    settled_list = longest(log_list)
    token, label = "f" * TOKEN_CHARS, "x" * LABEL_CHARS_MAX
    return with_room(settled_list, settled_list.sealed_end, now_ms, token, label, numbered=True)


def sealed(log_list: LogList, ledger_id: int, end: SegmentEnd, runs_max: int = RUNS_MAX) -> LogList:
    """The list when this ledger of it is known to be CLOSED there; the same if it is sealed, or no segment."""
    segments, producers = list(log_list.segments), log_list.producers
    for index, segment in enumerate(segments):
        if segment.ledger_id == ledger_id and not segment.sealed:
            segments[index] = segment.seal(end.entries, end.length, end.last_ms)
            producers = _with_numbers(producers, segments[index], end.numbering, runs_max)
    return dataclasses.replace(log_list, segments=tuple(segments), producers=producers)


def ended(log_list: LogList, ledger_id: int) -> LogList:
    """The list when its writer has closed it; the last ledger, if it is this one and has no entries, is dropped.

    Not if all before it has been truncated: then nothing but when it began tells how late those entries were.
    """
    log_list = dataclasses.replace(log_list, writer="", writer_label="", writer_since_ms=0)
    if not log_list.segments or log_list.segments[-1].ledger_id != ledger_id or log_list.segments[-1].entries:
        return log_list
    if len(log_list.segments) == 1 and log_list.first_position:
        return log_list
    return dataclasses.replace(
        log_list, segments=log_list.segments[:-1], pending_delete=(*log_list.pending_delete, ledger_id)
    )


# --- writers that take turns -----------------------------------------------------------------------------------------

TURNS_SAID: Final = 3  # times in a row that a writer is fenced early: then it is no coincidence


def fenced_again(count: int, served_s: float, early_s: float, forgotten_s: float) -> int:
    """How many times in a row a client's writer was fenced early, when it is fenced after so many seconds."""
    if served_s < early_s:
        return count + 1
    return count if served_s < forgotten_s else 0


def turn_pause_s(count: int, pause_min_s: float, pause_max_s: float, draw: float) -> float:
    """How long that client waits before it opens the log again; `draw` is from 0 to 1."""
    if not count:
        return 0.0
    return min(pause_min_s * 2.0 ** min(count - 1, 60), pause_max_s) * (1 + draw) / 2


# --- after a write of the list ---------------------------------------------------------------------------------------


class ListWrite(enum.Enum):
    """The outcome of a write that adds a segment."""

    DONE = "it is there"
    CHANGED = "the list had changed: this write is not there"
    SUPERSEDED = "the list has changed, before this write or after it"
    LEDGER_GONE = "nothing was written: another client has taken the new ledger for an orphan, and deleted it"
    LOG_GONE = "the log was deleted"
    NOT_DONE = "nothing was written, and nothing will be"
    UNKNOWN = "it may be there, now or later"


class ListState(enum.Enum):
    """What the list says after the write."""

    NOTHING = "nobody has looked"
    OURS = "this one is the writer, and the new segment is there"
    WITHOUT = "this one is the writer, and the new segment is not there"
    OTHERS = "another client is the writer, or none is"
    GONE = "there is no such log any more"


class OpeningStep(enum.Enum):
    """What is done next."""

    SERVE = "append to the new ledger"
    LOOK = "look at the list"
    AGAIN = "write the list again, as it is now, with the same ledger"
    RESTART = "restart, with another ledger"
    BACK = "append to the former ledger as before, and roll later, with another ledger"
    WAIT = "append nothing until the same write has an outcome"
    FAIL = "raise the error"
    FENCED = "another client writes the log: end"
    NO_LOG = "the log was deleted: end"


def list_state(log_list: LogList, token: str, ledger_id: int) -> ListState:
    """What the list, which is a log's and not deleted, says to the writer with this token about its new ledger."""
    if log_list.writer != token:
        return ListState.OTHERS
    return ListState.OURS if any(segment.ledger_id == ledger_id for segment in log_list.segments) else ListState.WITHOUT


# Opening: until the list was written nobody knows the token, so that WITHOUT can't be; the same ledger can be used
# again while it is certain that no list has named it.
AFTER_OPENING: Final[Mapping[tuple[ListWrite, ListState], OpeningStep]] = {
    (ListWrite.DONE, ListState.NOTHING): OpeningStep.SERVE,
    (ListWrite.CHANGED, ListState.NOTHING): OpeningStep.AGAIN,
    (ListWrite.SUPERSEDED, ListState.NOTHING): OpeningStep.LOOK,
    (ListWrite.SUPERSEDED, ListState.OURS): OpeningStep.SERVE,
    (ListWrite.SUPERSEDED, ListState.WITHOUT): OpeningStep.RESTART,
    (ListWrite.SUPERSEDED, ListState.OTHERS): OpeningStep.RESTART,
    (ListWrite.SUPERSEDED, ListState.GONE): OpeningStep.NO_LOG,
    (ListWrite.LEDGER_GONE, ListState.NOTHING): OpeningStep.RESTART,
    (ListWrite.LOG_GONE, ListState.NOTHING): OpeningStep.NO_LOG,
    (ListWrite.NOT_DONE, ListState.NOTHING): OpeningStep.FAIL,
    (ListWrite.UNKNOWN, ListState.NOTHING): OpeningStep.FAIL,
}

# Rolling: the same value is written again after an unknown outcome, so that a refusal says nothing of the writes before
# it. Nobody takes the writer's last segment out of the list but the next writer, who puts in another token.
_ROLLING_REFUSED: Final[Mapping[ListState, OpeningStep]] = {
    ListState.NOTHING: OpeningStep.LOOK,
    ListState.OURS: OpeningStep.SERVE,
    ListState.WITHOUT: OpeningStep.AGAIN,
    ListState.OTHERS: OpeningStep.FENCED,
    ListState.GONE: OpeningStep.NO_LOG,
}
AFTER_ROLLING: Final[Mapping[tuple[ListWrite, ListState], OpeningStep]] = {
    (ListWrite.DONE, ListState.NOTHING): OpeningStep.SERVE,
    **{(ListWrite.CHANGED, seen): act for seen, act in _ROLLING_REFUSED.items()},
    **{(ListWrite.SUPERSEDED, seen): act for seen, act in _ROLLING_REFUSED.items()},
    (ListWrite.LEDGER_GONE, ListState.NOTHING): OpeningStep.BACK,
    (ListWrite.LOG_GONE, ListState.NOTHING): OpeningStep.NO_LOG,
    (ListWrite.NOT_DONE, ListState.NOTHING): OpeningStep.BACK,
    (ListWrite.UNKNOWN, ListState.NOTHING): OpeningStep.WAIT,
}
