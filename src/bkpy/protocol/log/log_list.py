"""The list of a named log: which ledgers it is made of, in order, and what all who write to it have to agree on.

A *segment* is a ledger of the log; its entry i has the position `first_position` + i. Positions ascend by one for each
entry of the log and are never used twice. Each change of the list is one conditional write of its node. The list itself
has the newest segments, and references to *pages* that have the older ones, see `bkpy.protocol.log.log_pages`.

    pages      references, of the highest level first
    segments   of each ledger, where it begins and ends, and its entries' stamps; the last two of them perhaps open
    producers  which numbers of its producers the sealed segments have (`log_producers`)
    doomed     pending delete: ledgers that were taken out of the list, which is written before any is deleted
    gaps       positions that have no entries, where the loss of some was accepted; also the one before `first_position`

Invariants: what pages and the list have ascends in position without other gaps, each segment but the last two is
*sealed* (known to be CLOSED, with
so many entries) and none but the last is empty; a segment that isn't the first is readable only if the one before it is
closed where it begins, or a gap is between them; `first_position` never goes back; a sealed segment never changes; what
is pending delete is no segment; a page that ends at or below `first_position` is pending delete, too, and so is each
segment of a page that does; a page that the list has referred to is never changed, nor is its number used again.
"""

from __future__ import annotations

import dataclasses
import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from bkpy.errors import ConfigError, CorruptDataError, UnsupportedVersionError
from bkpy.protocol.log.log_producers import Producers
from bkpy.protocol.wire.records import NUMBERED, PLAIN, STAMP_SIZES
from bkpy.stored_json import parsed

if TYPE_CHECKING:
    from collections.abc import Mapping

LIST_VERSION: Final = 2  # 1, up to 0.2.0, has no pages
OPEN_MAX: Final = 2  # segments that are not sealed
UNSEALED: Final = -1

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}")


def checked_name(name: str, what: str = "log") -> str:
    """The name if it can be that of a log, or of a consumer. Raises `ConfigError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} can't be the name of a {what}: letters, digits, '_', '-' and '.', at most 255")
    return name


@dataclass(frozen=True, slots=True)
class Segment:
    """A ledger of a log. Times are milliseconds since the epoch.

    No entry of it has an earlier time than `begun_ms`: readers take the later one of that and the entry's own. When it
    is sealed, it has `entries` entries, the ledger's `length` in bytes, and no time later than `last_ms`. `stamp` is
    the format of all its entries' stamps, PLAIN or NUMBERED.
    """

    ledger_id: int
    first_position: int
    begun_ms: int
    entries: int = UNSEALED
    length: int = 0
    last_ms: int = 0
    stamp: int = PLAIN

    @property
    def sealed(self) -> bool:
        """Whether the ledger is known to be CLOSED, and where."""
        return self.entries != UNSEALED

    @property
    def end_position(self) -> int:
        """The position behind its last entry. Only of a sealed one."""
        if not self.sealed:
            raise ConfigError("nobody knows yet where the segment ends", ledger_id=self.ledger_id)
        return self.first_position + self.entries

    @property
    def payload_bytes(self) -> int:
        """Bytes of the users' entries: the ledger's, without the stamps. Unknown, and 0, of one that isn't sealed."""
        return self.length - STAMP_SIZES[self.stamp] * self.entries if self.sealed else 0

    def seal(self, entries: int, length: int, last_ms: int) -> Segment:
        """The segment when its ledger is CLOSED."""
        return dataclasses.replace(self, entries=entries, length=length, last_ms=max(last_ms, self.begun_ms))

    def row(self) -> list[int]:
        """The stored form; plain stamps are not mentioned."""
        row = list(_SEGMENT_FIELDS(self))
        return row[:-1] if self.stamp == PLAIN else row

    @classmethod
    def of_row(cls, row: list[Any]) -> Segment:
        """The segment with this stored form. Raises `ValueError`, `TypeError`."""
        segment = cls(*(_of(int, number) for number in row))
        if segment.stamp not in (PLAIN, NUMBERED):
            raise ValueError(f"stamps of ledger {segment.ledger_id} have the unknown format {segment.stamp}")
        return segment


@dataclass(frozen=True, slots=True)
class PageRef:
    """What is known of a page without reading it. Times are milliseconds since the epoch.

    A page of level 1 has segments, a page of a higher level has references to pages of the level below. `entries`,
    `payload_bytes` and `segments` are sums over all of them, `lowest_ledger` and `highest_ledger` bounds of their ids.
    The first segment began at `begun_ms`, and no entry is later than `last_ms`.
    """

    level: int
    number: int
    first_position: int
    end_position: int
    begun_ms: int
    last_ms: int
    payload_bytes: int
    entries: int
    segments: int
    lowest_ledger: int
    highest_ledger: int

    sealed: ClassVar[bool] = True

    def row(self) -> list[int]:
        """The stored form."""
        return list(_PAGE_REF_FIELDS(self))

    @classmethod
    def of_row(cls, row: list[Any]) -> PageRef:
        """The reference with this stored form. Raises `ValueError`, `TypeError`."""
        ref = cls(*(_of(int, number) for number in row))
        if ref.level < 1 or ref.number < 0 or ref.first_position >= ref.end_position:
            raise ValueError(f"{row} is no reference to a page")
        return ref


_SEGMENT_FIELDS, _PAGE_REF_FIELDS = (
    attrgetter(*(one.name for one in dataclasses.fields(kind))) for kind in (Segment, PageRef)
)


@dataclass(frozen=True, slots=True)
class LogList:
    """What is stored about a log.

    `uid` is unlike that of any other log, also of a deleted one of the same name. `writer` is the token of the one who
    may add segments, "" for nobody; `writer_label` says who that is, for people, and `writer_since_ms` since when (0:
    unknown). `write_token` is unlike that of any other write. Entries below `first_position` are gone. Ledgers of pages
    that end at or below `reclaimed` have been deleted. The next page gets the number `next_page`. Retention keeps for
    `retention_s` seconds and `retention_bytes` bytes; None is for ever. A consumer holds entries back for at most
    `consumer_lag_max_s` seconds beyond that, and until it has been idle for `consumer_expiry_s` seconds; None is for
    ever. Of each of the `gaps`, the first position and the one behind the last.
    """

    uid: str
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest: str
    ledger_key: bytes = field(repr=False)
    created_ms: int = 0
    write_token: str = ""
    writer: str = ""
    writer_label: str = ""
    writer_since_ms: int = 0
    first_position: int = 0
    reclaimed: int = 0
    pages: tuple[PageRef, ...] = ()
    next_page: int = 0
    segments: tuple[Segment, ...] = ()
    pending_delete: tuple[int, ...] = ()
    deleted: bool = False  # all of its ledgers are pending delete
    retention_s: float | None = None
    retention_bytes: int | None = None
    consumer_lag_max_s: float | None = None
    consumer_expiry_s: float | None = None
    producers: Producers = field(default_factory=Producers)
    gaps: tuple[tuple[int, int], ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    def __post_init__(self) -> None:
        if self.first_position < 0:
            raise ConfigError(f"a log can't begin at position {self.first_position}")
        for before, after in pairwise(self.segments):
            if after.first_position < before.first_position or (
                before.sealed and self.behind(before.end_position) != after.first_position
            ):
                raise ConfigError(
                    f"the segment can't begin at position {after.first_position}", ledger_id=after.ledger_id
                )
        bounds = [bound for gap in self.gaps for bound in gap]
        if any(before >= after for before, after in pairwise(bounds)):
            raise ConfigError(f"there can't be gaps at {self.gaps}")
        if any(not segment.sealed for segment in self.segments[:-OPEN_MAX]):
            raise ConfigError(f"more than {OPEN_MAX} segments are open")
        self._check_pages()
        if any(self.first_position < row.first_position for row in self.rows[:1]):
            raise ConfigError(f"there is no segment for position {self.first_position}")
        ids = {segment.ledger_id for segment in self.segments}
        if len(ids) != len(self.segments) or ids & set(self.pending_delete):
            raise ConfigError("a ledger is in the list twice")

    def _check_pages(self) -> None:
        for before, after in pairwise(self.pages):
            if after.level > before.level or after.first_position < before.end_position:
                raise ConfigError(f"page {after.number} can't follow page {before.number}")
        if any(page.number >= self.next_page for page in self.pages):
            raise ConfigError(f"there can't be a page with a number from {self.next_page} on")
        if not self.pages or self.deleted:
            return
        end = self.pages[-1].end_position
        following = [segment.first_position for segment in self.segments[:1]]
        if any(begin < end for begin in following) or (end > self.first_position and following != [self.behind(end)]):
            raise ConfigError(f"no segment begins at position {end}, behind page {self.pages[-1].number}")

    # --- what it says -----------------------------------------------------------------------------------------------

    @property
    def open_segments(self) -> tuple[Segment, ...]:
        """The segments that aren't sealed: at most two, the last ones."""
        return tuple(segment for segment in self.segments[-OPEN_MAX:] if not segment.sealed)

    @property
    def sealed_end(self) -> int:
        """The position behind the last sealed segment, and behind the gap if one begins there.

        Whatever is below it, not truncated and in no gap, can be read.
        """
        sealed = [segment for segment in self.segments[-OPEN_MAX - 1 :] if segment.sealed]
        if sealed:
            return self.behind(sealed[-1].end_position)
        return self.segments[0].first_position if self.segments else self.first_position

    @property
    def last_ms(self) -> int:
        """A time that no entry of a sealed segment is later than."""
        last: tuple[PageRef | Segment, ...] = self.pages[-1:] + self.segments[-OPEN_MAX - 1 :]
        return max((row.last_ms or row.begun_ms for row in last), default=0)

    @property
    def rows(self) -> tuple[PageRef | Segment, ...]:
        """The references to pages and the segments, in order."""
        return self.pages + self.segments

    @property
    def ledgers(self) -> int:
        """How many segments there are, with those of pages."""
        return sum(page.segments for page in self.pages) + len(self.segments)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the users' entries in all sealed segments."""
        return sum(row.payload_bytes for row in self.rows)

    @property
    def pending_end(self) -> int:
        """Segments of pages are pending delete if they end at or below this position."""
        return self.pages[-1].end_position if self.deleted and self.pages else self.first_position

    @property
    def pages_pending(self) -> bool:
        """Whether segments of pages may be pending delete."""
        return bool(self.pages) and max(self.reclaimed, self.pages[0].first_position) < min(
            self.pending_end, self.pages[-1].end_position
        )

    def index_of(self, position: int) -> int:
        """The index of the segment of the list itself that `position` lies in, or would lie in; -1 if below all."""
        return bisect_right(self.segments, position, key=lambda segment: segment.first_position) - 1

    def behind(self, position: int) -> int:
        """The same position, or if it lies in a gap the one behind that.

        A reader that has read all below `position` needs nothing below what this returns.
        """
        for begin, end in self.gaps:
            if begin <= position < end:
                return end
        return position

    # --- changes ----------------------------------------------------------------------------------------------------

    def truncated(self, before: int) -> LogList:
        """Without what lies below `before`: whole sealed segments become pending delete, the last one never does.

        A position below the present first one changes nothing. At that one, segments go that weren't sealed, or were
        the last one, when it became the first. Raises `ConfigError` for one past `sealed_end` that no open segment
        holds.
        """
        if before < self.first_position:
            return self
        if before > max(self.sealed_end, self.first_position) and not self.open_segments:
            raise ConfigError(f"position {before} is past the end of the log, {self.sealed_end}")
        gone = 0
        while gone < len(self.segments) - 1 and self.segments[gone].sealed:
            if self.segments[gone].end_position > before:
                break
            gone += 1
        pending_delete = self.pending_delete + tuple(segment.ledger_id for segment in self.segments[:gone])
        left = self.segments[gone:]
        if left and self.behind(before) <= left[-1].first_position:
            before = self.behind(before)
        gaps = tuple(gap for gap in self.gaps if gap[1] >= before)
        return dataclasses.replace(self, first_position=before, segments=left, pending_delete=pending_delete, gaps=gaps)

    def is_pending(self, segment: Segment) -> bool:
        """Whether the segment, one of the list or of a page, is pending delete."""
        return (
            bool(self.pages)
            and segment.sealed
            and segment.end_position <= min(self.pending_end, self.pages[-1].end_position)
        )

    def without_pending_pages(self) -> LogList:
        """When the segments of pages that were pending have been deleted, with the pages that had no others."""
        end = self.pending_end
        left = tuple(page for page in self.pages if page.end_position > end)
        return dataclasses.replace(self, pages=left, reclaimed=max(self.reclaimed, end))

    def without_pending_delete(self, ledger_ids: tuple[int, ...]) -> LogList:
        """When these have been deleted."""
        return dataclasses.replace(self, pending_delete=tuple(i for i in self.pending_delete if i not in ledger_ids))

    # --- the stored form --------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The stored value: JSON, equal bytes for equal values."""
        known: dict[str, Any] = {
            "version": LIST_VERSION,
            "uid": self.uid,
            "ensemble_size": self.ensemble_size,
            "write_quorum": self.write_quorum,
            "ack_quorum": self.ack_quorum,
            "digest": self.digest,
            "ledger_key": self.ledger_key.hex(),
            "created_ms": self.created_ms,
            "write_token": self.write_token,
            "writer": self.writer,
            "writer_label": self.writer_label,
            "first_position": self.first_position,
            "reclaimed": self.reclaimed,
            "deleted": self.deleted,
            "retention_s": _stored_seconds(self.retention_s),
            "retention_bytes": self.retention_bytes,
            "consumer_lag_max_s": _stored_seconds(self.consumer_lag_max_s),
            "producers": self.producers.stored(),
            "pages": [page.row() for page in self.pages],
            "next_page": self.next_page,
            "segments": [segment.row() for segment in self.segments],
            "doomed": list(self.pending_delete),
        }
        if self.gaps:
            known["gaps"] = [list(gap) for gap in self.gaps]
        if self.writer_since_ms:
            known["writer_since_ms"] = self.writer_since_ms
        if self.consumer_expiry_s is not None:
            known["consumer_expiry_s"] = float(self.consumer_expiry_s)
        others = {key: self.unknown[key] for key in sorted(self.unknown)}
        return json.dumps(known | others, separators=(",", ":"), ensure_ascii=False).encode("utf-8")

    @classmethod
    def decode(cls, name: str, data: bytes) -> LogList:
        """The value stored for the log `name`.

        Raises `UnsupportedVersionError` for a newer format and `CorruptDataError` for anything that isn't one.
        """
        try:
            fields = parsed(data)
            version = fields.pop("version")
            if type(version) is not int or version < 1:
                raise ValueError(f"{version!r} is no format version")
            if version > LIST_VERSION:
                raise UnsupportedVersionError(
                    f"the list of log {name} has format version {version}, this bkpy reads up to {LIST_VERSION}: "
                    "upgrade it"
                )
            if version == 1:
                known = {writer: {"batch": batch} for writer, batch in fields.pop("sinks").items()}
                fields.update(reclaimed=0, pages=[], next_page=0, producers={"known": known})
            return cls._from_fields(fields)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptDataError(f"the list of log {name} is unreadable: {error!r}") from error

    @classmethod
    def _from_fields(cls, fields: dict[str, Any]) -> LogList:
        take = fields.pop
        texts = {key: _of(str, take(key)) for key in ("uid", "digest", "write_token", "writer", "writer_label")}
        numbers = {
            key: _of(int, take(key))
            for key in (
                "ensemble_size",
                "write_quorum",
                "ack_quorum",
                "created_ms",
                "first_position",
                "reclaimed",
                "next_page",
            )
        }
        retention_bytes = take("retention_bytes")
        return cls(
            **texts,
            **numbers,
            ledger_key=bytes.fromhex(take("ledger_key")),
            retention_s=_seconds(take("retention_s")),
            consumer_lag_max_s=_seconds(take("consumer_lag_max_s")),
            consumer_expiry_s=_seconds(take("consumer_expiry_s", None)),
            writer_since_ms=_of(int, take("writer_since_ms", 0)),
            deleted=_of(bool, take("deleted")),
            retention_bytes=None if retention_bytes is None else _of(int, retention_bytes),
            producers=Producers.of(take("producers")),
            pages=tuple(PageRef.of_row(row) for row in take("pages")),
            segments=tuple(Segment.of_row(row) for row in take("segments")),
            pending_delete=tuple(_of(int, ledger_id) for ledger_id in take("doomed")),
            gaps=tuple((_of(int, begin), _of(int, end)) for begin, end in take("gaps", ())),
            unknown=fields,
        )


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:  # True is an int to isinstance
        raise ValueError(f"expected {kind.__name__}, found {value!r}")
    return value


def _seconds(value: Any) -> float | None:
    return None if value is None else float(_of(float if isinstance(value, float) else int, value))


def _stored_seconds(value: float | None) -> float | None:
    return None if value is None else float(value)  # 60 and 60.0 are equal, and so are their bytes
