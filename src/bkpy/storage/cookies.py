"""`bkpy bookie cookie`: compares the cookies of all places, and rewrites them after a deliberate change.

Invariants: nothing is written before every directory was proven to be this bookie's, ledger directories by the uuid in
the index, journal directories by the numbers in their files and the marks that point into them, one that is given up by
its cookie as well; the number of journals changes only when none of them has anything to replay. After a crash at any
step the bookie starts or refuses to, and the same update, run again, finishes.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import CorruptDataError, IdentityError
from bkpy.storage.file_names import INDEX_NAME
from bkpy.storage.identity import COOKIE_NAME, Cookie, Directories, decode_cookie, locked, read_cookie
from bkpy.storage.index import index
from bkpy.storage.journal.format import START, file_id_of
from bkpy.storage.journal.reader import JournalReader
from bkpy.storage.wipe import Owner, belongings, is_owned, wipe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime, Files, OrderedStore
    from bkpy.storage.index.index import ShardRow
    from bkpy.storage.journal.format import Mark

METADATA = "the metadata store"


class FoundCookie(NamedTuple):
    """The cookie at a place, or the reason why there is none."""

    where: str
    cookie: Cookie | None
    problem: str = ""


def look_for_cookie(files: Files, directory: str) -> FoundCookie:
    """The directory's cookie. Damage is a result here, not an error."""
    if not files.exists(directory):
        return FoundCookie(directory, None, "there is no such directory")
    try:
        cookie = read_cookie(files, directory)
    except CorruptDataError as e:
        return FoundCookie(directory, None, e.message)
    return FoundCookie(directory, cookie, "" if cookie is not None else "no cookie")


def metadata_cookie(stored: bytes | None) -> FoundCookie:
    """The cookie that the metadata store has of the bookie's directories."""
    if stored is None:
        return FoundCookie(METADATA, None, "no cookie")
    try:
        return FoundCookie(METADATA, decode_cookie(stored, METADATA))
    except CorruptDataError as e:
        return FoundCookie(METADATA, None, e.message)


@dataclass(frozen=True)
class UpdatePlan:
    """The work of an update. `steps` describes it to people; if that is empty, there is nothing to do."""

    cookie: Cookie
    steps: list[str]
    marks: dict[str, tuple[Mark, ...]]  # by ledger directory, where they change
    given_up: tuple[str, ...]  # journal directories that the settings don't name any more
    stale: tuple[str, ...]  # directories that don't have the cookie


class CookieUpdate:
    """One update, while all directories are locked. Everything here blocks."""

    def __init__(self, settings: BookieSettings, runtime: DiskRuntime, instance_id: str) -> None:
        self._settings = settings
        self._runtime = runtime
        self._files = runtime.files
        self._directories = Directories(settings, runtime.files, instance_id)
        self._owner = Owner(settings.bookie_id, instance_id)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the locks of the directories; `IdentityError` if the bookie runs, or one isn't there."""
        with contextlib.ExitStack() as held:
            for path in self._directories.all:
                if not self._files.exists(path):
                    raise IdentityError("there is no such directory: mount its disk", path=path)
                held.enter_context(locked(self._files, path))
            yield

    def plan(self, expected: bytes | None) -> UpdatePlan:
        """Plan the update; `IdentityError` if the directories can't be proven to be this bookie's."""
        found = [look_for_cookie(self._files, path) for path in self._directories.all]
        stored = metadata_cookie(expected)
        known = [place for place in (*found, stored) if place.cookie is not None]
        if not known:
            raise IdentityError(
                "neither a directory nor the metadata store has a cookie of this bookie: `bkpy bookie init` makes "
                "that of a new one",
                path=self._directories.all[0],
            )
        cookies: list[Cookie] = []
        for place in known:
            assert place.cookie is not None
            self._directories.check_owner(place.cookie, place.where)
            cookies.append(place.cookie)
        newest, rows = self._proven(cookies)
        # A change of their number that was interrupted has left it in some cookies already.
        others = [c.journal_directories for c in cookies if len(c.journal_directories) != self._journals]
        self._check_copies(cookies)
        given_up = self._check_journals(rows, others[0] if others else newest.journal_directories, found)
        cookie = self._directories.cookie([row.uuid.hex() for row in rows])
        marks = {
            path: wanted
            for path, row in zip(self._directories.ledgers, rows, strict=False)
            if (wanted := self._marks(rows, row)) != row.marks
        }
        # Ledger directories that are to be added get theirs at the next start.
        stale = tuple(p.where for p in found if p.cookie != cookie and (p.cookie or p.where in cookie.paths))
        steps = [f"write the marks of {self._journals} journals into the index of {path}" for path in marks]
        steps += [f"empty {path}, which is no journal directory any more" for path in given_up]
        if stored.cookie != cookie:
            steps.append(f"write the cookie to {METADATA} ({stored.problem or 'it has another'})")
        problems = {place.where: place.problem for place in found}
        steps += [f"write the cookie to {path} ({problems[path] or 'it has another'})" for path in stale]
        return UpdatePlan(cookie, steps, marks, given_up, stale)

    async def carry_out(self, plan: UpdatePlan, store: Callable[[bytes], Awaitable[None]]) -> None:
        """Carry out the plan. `store` writes the cookie to the metadata store, which comes before the directories."""
        with contextlib.ExitStack() as held:
            for path in plan.given_up:  # they may have changed hands since the plan was made
                held.enter_context(locked(self._files, path))
                self._check_own(path)
            for path, marks in plan.marks.items():
                with self._index(path) as opened:
                    row = index.load_shard(opened)
                    assert row is not None
                    index.put_shard(opened, row._replace(marks=marks))
            wipe(self._files, plan.given_up, self._owner)
        await store(plan.cookie.encode())
        for path in plan.cookie.paths:
            if path in plan.stale:
                self._directories.write_to(path, plan.cookie)

    @property
    def _journals(self) -> int:
        return len(self._directories.journals)

    # --- ledger directories -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _index(self, directory: str) -> Iterator[OrderedStore]:
        settings = self._settings
        opened = self._runtime.store.open(
            f"{directory}/{INDEX_NAME}", bytes_max=settings.index_bytes_max, readers_max=settings.index_readers_max
        )
        try:
            yield opened
        finally:
            opened.close()

    def _proven(self, cookies: Sequence[Cookie]) -> tuple[Cookie, list[ShardRow]]:
        """The cookie of the most directories whose indexes are where the settings say, and their rows."""
        refusals = []
        for cookie in sorted(dict.fromkeys(cookies), key=lambda c: (-len(c.ledger_directories), -cookies.count(c))):
            try:
                return cookie, self._rows(cookie)
            except IdentityError as e:
                refusals.append(e)
        raise refusals[0]

    def _rows(self, newest: Cookie) -> list[ShardRow]:
        """The rows of the indexes of the directories that the cookie names, each found where the settings say."""
        paths, known = self._directories.ledgers, newest.ledger_directories
        if len(paths) < len(known):
            self._directories.check_ledgers([d.path for d in known], METADATA)
        rows = []
        for path, directory in zip(paths, known, strict=False):
            row = self._row(path)
            if row is None:
                raise IdentityError(
                    "this directory's index is gone; restore it, or start a new bookie under a new bookie_id "
                    "(`bkpy bookie format` empties these directories)",
                    path=path,
                )
            if row.uuid.hex() != directory.uuid:
                raise IdentityError(
                    f"the index isn't that of {directory.path}, which stands in this place: list ledger_directories "
                    "in their order, new ones at the end, or restore the right one",
                    path=path,
                )
            rows.append(row)
        for path in paths[len(known) :]:
            self._directories.check_no_data(path)
        return rows

    def _row(self, directory: str) -> ShardRow | None:
        try:
            with self._index(directory) as opened:
                return index.load_shard(opened)
        except FileNotFoundError:
            return None

    def _check_copies(self, cookies: Sequence[Cookie]) -> None:
        """`IdentityError` if a directory that was moved is still there at its old path."""
        here = set(self._directories.all)
        for cookie in cookies:
            pairs = (
                *zip(cookie.journal_directories, self._directories.journals, strict=False),
                *zip((d.path for d in cookie.ledger_directories), self._directories.ledgers, strict=False),
            )
            for old, new in pairs:
                if old != new and old not in here and self._files.exists(f"{old}/{COOKIE_NAME}"):
                    raise IdentityError(
                        f"this seems to be a copy of {old}, which is still there and may be newer; name that one, or "
                        f"remove it if {new} is its latest state",
                        path=new,
                    )

    # --- journals -----------------------------------------------------------------------------------------------------

    def _check_journals(
        self, rows: Sequence[ShardRow], before: Sequence[str], found: Sequence[FoundCookie]
    ) -> tuple[str, ...]:
        """See that each journal directory is the one in its place; returns those of `before` that are given up."""
        changing = len(before) != self._journals or any(len(row.marks) != self._journals for row in rows)
        certain = {
            (number, place.where)
            for place in found
            if place.cookie is not None
            for number, path in enumerate(place.cookie.journal_directories)
            if path == place.where
        }
        for number, path in enumerate(self._directories.journals):
            mark = _lowest(rows, number)
            if mark == START and number >= len(before):
                self._directories.check_no_data(path)
            elif changing or (number, path) not in certain:
                self._check_journal(path, number, mark, clean=changing)
        given_up = []
        for number, path in enumerate(before[self._journals :], start=self._journals):
            if path in self._directories.all:
                continue
            if not self._files.exists(path):
                raise IdentityError("this journal directory is to be given up, and isn't there: mount it", path=path)
            if any(len(row.marks) > number for row in rows):
                with locked(self._files, path):
                    self._check_own(path)
                    self._check_journal(path, number, _lowest(rows, number), clean=True)
                given_up.append(path)
            elif self._is_left(path):  # an update that was interrupted behind the marks has yet to empty it
                given_up.append(path)
        return tuple(given_up)

    def _check_own(self, path: str) -> None:
        """`IdentityError` if there is data in a journal directory to give up, and not this bookie's cookie."""
        if not is_owned(self._files, path, self._owner):
            raise IdentityError(
                "this journal directory is to be given up, and its cookie doesn't say that it is this bookie's: "
                "mount the right disk. If the cookie alone is lost, restore journal_directories, let `bkpy bookie "
                "cookie update` write it anew, and then give the directory up",
                path=path,
            )

    def _is_left(self, path: str) -> bool:
        """Whether a directory that the index relies on no more still has this bookie's files: it may be another's."""
        try:
            owned = is_owned(self._files, path, self._owner)
        except IdentityError:
            return False
        here = belongings(self._files, path)
        return owned and bool(here.data or here.scrubs or here.cookies)

    def _check_journal(self, path: str, number: int, mark: Mark, *, clean: bool) -> None:
        """`IdentityError` if that isn't the journal which the mark is of, or, with `clean`, has anything to replay."""
        journal = JournalReader(self._files, path, number, mark, read_bytes=self._settings.journal_read_bytes)
        records = sum(frame.records for frame in journal)
        if journal.damages:
            raise IdentityError(
                f"the journal here isn't what the index relies on: {journal.damages[0].what}; mount the right disk. "
                "If it is lost, start a new bookie under another --bookie_id",
                path=path,
            )
        if clean and (records or journal.torn is not None or not self._ended(path, mark, journal)):
            raise IdentityError(
                "the number of journals changes only after a clean stop, and this journal has something to replay: "
                "restore journal_directories, start the bookie, and stop it with SIGTERM",
                path=path,
            )

    def _ended(self, path: str, mark: Mark, journal: JournalReader) -> bool:
        """Whether the journal was never written to, or ends with the frame of a clean stop."""
        if mark == START:
            return not any(file_id_of(name) is not None for name in self._files.listdir(path))
        return journal.clean_stop

    def _marks(self, rows: Sequence[ShardRow], row: ShardRow) -> tuple[Mark, ...]:
        """The row's marks for as many journals as there are to be."""
        missing = range(len(row.marks), self._journals)
        return (*row.marks[: self._journals], *(_lowest(rows, number) for number in missing))


def _lowest(rows: Sequence[ShardRow], number: int) -> Mark:
    """The lowest mark of a journal; that of a new journal if no row has one."""
    return min((row.marks[number] for row in rows if number < len(row.marks)), key=_sequence, default=START)


def _sequence(mark: Mark) -> int:
    return mark.sequence
