"""Which bookie, cluster and directories belong together: the cookie, in every directory and in the metadata store.

Invariants: a cookie is believed only if its checksum is right; directories are used only if cookie, settings and the
uuid inside each index agree; data is never created anew where a cookie says that there was some.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.errors import CorruptDataError, IdentityError
from bkpy.storage.entry_log.entry_log import log_id_of
from bkpy.storage.file_names import LOCK_NAME
from bkpy.storage.journal.format import file_id_of
from bkpy.storage.sealed_json import replace_file, seal_json, unseal_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import Files

COOKIE_NAME: Final = "cookie.json"
OWN_PROTOCOL: Final = "bkpy"
VERSION: Final = 1
_COOKIE_BYTES_MAX: Final = 1 << 20


class LedgerDirectory(NamedTuple):
    path: str
    uuid: str  # of the index in it, 32 hexadecimal digits


class Cookie(NamedTuple):
    """What directories, settings and metadata agree on, compared whole; only ledger directories may be added, last."""

    bookie_id: str
    instance_id: str  # of the cluster
    journal_directories: tuple[str, ...]
    ledger_directories: tuple[LedgerDirectory, ...]
    protocol: str = OWN_PROTOCOL  # what the bookie's clients speak

    def encode(self) -> bytes:
        content: dict[str, object] = {
            "version": VERSION,
            "bookie_id": self.bookie_id,
            "instance_id": self.instance_id,
            "journal_directories": list(self.journal_directories),
            "ledger_directories": [{"path": d.path, "index_uuid": d.uuid} for d in self.ledger_directories],
        }
        if self.protocol != OWN_PROTOCOL:
            content["protocol"] = self.protocol
        return seal_json(content)

    def extends(self, older: Cookie) -> bool:
        """Whether this is `older`, perhaps with ledger directories added."""
        n = len(older.ledger_directories)
        return self._replace(ledger_directories=self.ledger_directories[:n]) == older

    @property
    def paths(self) -> list[str]:
        return [*self.journal_directories, *(directory.path for directory in self.ledger_directories)]

    def with_indexes_of(self, other: Cookie) -> Cookie:
        """This, with the indexes that `other` has at the same paths."""
        uuids = {directory.path: directory.uuid for directory in other.ledger_directories}
        return self._replace(
            ledger_directories=tuple(d._replace(uuid=uuids.get(d.path, d.uuid)) for d in self.ledger_directories)
        )

    def moved(self, moves: Mapping[str, str]) -> Cookie:
        """This, with directories at new paths."""
        return self._replace(
            journal_directories=tuple(moves.get(path, path) for path in self.journal_directories),
            ledger_directories=tuple(d._replace(path=moves.get(d.path, d.path)) for d in self.ledger_directories),
        )


def decode_cookie(data: bytes, where: str) -> Cookie:
    """The cookie; `CorruptDataError` naming `where` it is from if it isn't a sound one."""
    try:
        content = unseal_json(data)
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']} is not supported")
        return Cookie(
            content["bookie_id"],
            content["instance_id"],
            tuple(content["journal_directories"]),
            tuple(LedgerDirectory(d["path"], d["index_uuid"]) for d in content["ledger_directories"]),
            content.get("protocol", OWN_PROTOCOL),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptDataError(
            f"the cookie can't be read: {e}; `bkpy bookie cookie update` writes it anew if the other places agree",
            path=where,
        ) from None


def read_cookie(files: Files, directory: str) -> Cookie | None:
    """The directory's cookie, None if it has none."""
    path = f"{directory}/{COOKIE_NAME}"
    if not files.exists(path):
        return None
    file = files.open(path, read_only=True)
    try:
        return decode_cookie(file.pread(_COOKIE_BYTES_MAX, 0), path)
    finally:
        file.close()


def write_cookie(files: Files, directory: str, cookie: Cookie) -> None:
    """Replace the directory's cookie atomically and durably."""
    replace_file(files, directory, COOKIE_NAME, cookie.encode())


@contextlib.contextmanager
def locked(files: Files, directory: str) -> Iterator[None]:
    """Hold the directory's lock; `IdentityError` if another process uses the directory."""
    lock = files.lock(f"{directory}/{LOCK_NAME}")
    try:
        lock.__enter__()
    except BlockingIOError:
        raise IdentityError("another process uses this directory; stop it first", path=directory) from None
    with contextlib.ExitStack() as held:
        held.push(lock)
        yield


class Identity(NamedTuple):
    """The result of comparing cookies. `known`: directories of an earlier start; `new`: the ones that this one adds."""

    known: tuple[LedgerDirectory, ...]
    new: tuple[str, ...]
    moved: bool  # some are at other paths than at the earlier start
    must_be_empty: bool  # the cluster does not know this bookie: there may be leftovers of a first start, but no data


class Directories:
    """The directories that the settings name, and the cookies in them."""

    def __init__(self, settings: BookieSettings, files: Files, instance_id: str) -> None:
        self.journals = tuple(map(_trim, settings.journal_directories))
        self.ledgers = tuple(map(_trim, settings.ledger_directories))
        self.all = (*self.journals, *self.ledgers)
        self._bookie_id = settings.bookie_id
        self._protocol = settings.protocol
        self._instance_id = instance_id
        self._files = files

    def identify(self, expected_cookie: bytes | None, *, any_index: bool = False) -> Identity:
        """Compare cookies, settings and what the metadata store has; `IdentityError` on any disagreement.

        `any_index`: for a rebuild of indexes; an earlier one may have stored the new ones' uuids only in some places.
        """
        found = {path: cookie for path in self.all if (cookie := read_cookie(self._files, path)) is not None}
        expected = None if expected_cookie is None else decode_cookie(expected_cookie, "the metadata store")
        newest = max(found.values(), key=lambda cookie: len(cookie.ledger_directories), default=expected)
        if newest is None:
            for path in self.all:
                self.check_no_data(path)
            return Identity((), self.ledgers, False, True)
        if expected is not None and not found:
            self._check_not_elsewhere(expected)
        if any_index:
            found = {path: cookie.with_indexes_of(newest) for path, cookie in found.items()}
            expected = expected and expected.with_indexes_of(newest)
        moves = self._moves(found)
        if moves:
            found = {path: cookie.moved(moves) for path, cookie in found.items()}
            expected = expected and expected.moved(moves)
            newest = newest.moved(moves)
        where = next((path for path, cookie in found.items() if cookie == newest), "the metadata store")
        for path, cookie in (*found.items(), *([("the metadata store", expected)] if expected else [])):
            self._check_cookie(cookie, path)
            if not newest.extends(cookie):
                raise IdentityError(
                    f"the cookies of {path} and {where} disagree: `bkpy bookie cookie show` tells in what; restore the "
                    "directory that is wrong, let `bkpy bookie cookie update` write them anew, or, if `bkpy bookie "
                    "rebuild-index` was interrupted, run that again",
                    path=path,
                )
        self._check_cookie(newest, where)
        needed = set() if expected is None else set(expected.paths)
        for path in self.all:
            if path in needed and path not in found:
                raise IdentityError(
                    f"this directory has no cookie, but bookie {self._bookie_id} has data in it: mount its "
                    "disk; if the cookie alone is lost, `bkpy bookie cookie update` writes it anew; if the disk is "
                    "lost, empty the bookie's other directories (`bkpy bookie format --force`) and start it with "
                    "--rebuild, which copies what it had from other bookies; if this is to be another bookie, give it "
                    "another --bookie_id",
                    path=path,
                )
            if path not in found:
                self.check_no_data(path)
        known = newest.ledger_directories
        new = self.ledgers[len(known) :]
        if moves and new:
            raise IdentityError(
                "directories were moved and others added; start the bookie once with the former alone, or run "
                "`bkpy bookie cookie update` first",
                path=new[0],
            )
        return Identity(known, new, bool(moves), expected is None)

    def _moves(self, found: Mapping[str, Cookie]) -> dict[str, str]:
        """Old and new paths of directories that were moved since they were used last, with the cookies in them.

        A move is written to the metadata store first, so only cookies in directories can have the old paths.
        Directories that disagree with the metadata store are an old copy, and are refused later.
        """
        moves: dict[str, str] = {}
        for cookie in found.values():
            ledgers = [directory.path for directory in cookie.ledger_directories]
            if len(cookie.journal_directories) != len(self.journals):
                continue
            for old, new in (
                *zip(cookie.journal_directories, self.journals, strict=True),
                *zip(ledgers, self.ledgers, strict=False),
            ):
                if new != old and new in found and new not in cookie.paths:
                    moves[old] = new
        for old, new in moves.items():
            # Bookies of before kept relative paths as they were given, which say nothing of where that was.
            if old.startswith("/") and self._files.exists(f"{old}/{COOKIE_NAME}"):
                raise IdentityError(
                    f"this seems to be a copy of {old}, which is still there and may be newer; name that one, or "
                    f"remove it if {new} is its latest state",
                    path=new,
                )
        return moves

    def check_owner(self, cookie: Cookie, where: str) -> None:
        """`IdentityError` saying what to do if the cookie found at `where` is not this bookie's."""
        if cookie.protocol != self._protocol:
            raise IdentityError(
                f"the directories are those of a bookie with protocol = {cookie.protocol}, which it has for life, and "
                f"the setting is {self._protocol}; correct the setting, or use empty directories",
                path=where,
            )
        if cookie.instance_id != self._instance_id:
            raise IdentityError(
                f"this bookie belongs to cluster {cookie.instance_id}, but the metadata store is cluster "
                f"{self._instance_id}'s; correct metadata_uri, or use empty directories to join the other cluster "
                "(`bkpy bookie format --force` empties these)",
                path=where,
            )
        if cookie.bookie_id != self._bookie_id:
            raise IdentityError(
                f"the directories are those of bookie {cookie.bookie_id}, but bookie_id is {self._bookie_id}; correct "
                "one or the other. If the bookie was moved to another address, and had the id that its former address "
                f"gave it: keep that, with bookie_id = {cookie.bookie_id!r}",
                path=where,
            )

    def _check_cookie(self, cookie: Cookie, where: str) -> None:
        """`IdentityError` saying what to do if the cookie is not this bookie's, or the settings miss a directory."""
        self.check_owner(cookie, where)
        if cookie.journal_directories != self.journals:
            raise IdentityError(
                f"the bookie was created with journal_directories {', '.join(cookie.journal_directories)}, and they "
                f"are now {', '.join(self.journals)}; restore the setting, or move the directories there with all that "
                "is in them; after a clean stop `bkpy bookie cookie update` changes their number",
                path=where,
            )
        self.check_ledgers([d.path for d in cookie.ledger_directories], where)

    def check_ledgers(self, known: Sequence[str], where: str) -> None:
        """`IdentityError` if the settings miss one of these ledger directories, or have them in another order."""
        missing = [path for path in known if path not in self.ledgers]
        if missing:
            raise IdentityError(
                f"the bookie has data in {', '.join(missing)}, which ledger_directories no longer names; add it again, "
                "and mount its disk, or move it with all that is in it to the path that stands in its place; if the "
                "disk is lost, start a new bookie under another --bookie_id",
                path=where,
            )
        if list(self.ledgers[: len(known)]) != list(known):
            raise IdentityError(
                f"ledger_directories must begin with {', '.join(known)}, in this order; new ones are added at the end",
                path=where,
            )

    def check_no_data(self, path: str) -> None:
        """`IdentityError` if there are journals or entry logs in the directory."""
        for name in self._files.listdir(path):
            if file_id_of(name) is not None or log_id_of(name) is not None:
                raise IdentityError(
                    f"this directory holds data ({name}), but no {COOKIE_NAME}: it is another bookie's or was damaged; "
                    "use an empty directory (`bkpy bookie format --force` empties this one)",
                    path=path,
                )

    def _check_not_elsewhere(self, expected: Cookie) -> None:
        if set(self.all).isdisjoint(expected.paths):
            raise IdentityError(
                f"bookie_id {self._bookie_id} is in use with other directories ({', '.join(expected.paths)}): "
                "give this bookie another --bookie_id, or, if it is that one, name its directories",
                path=self.all[0],
            )

    def restart(self, expected_cookie: bytes) -> bool:
        """Whether directories have to be made for a bookie that has lost its own: some have no cookie, none has data.

        `IdentityError` if some have no cookie, and data is left in any: of what is only half there nobody can tell what
        is missing.
        """
        expected = decode_cookie(expected_cookie, "the metadata store")
        bare = {path for path in self.all if not self._files.exists(f"{path}/{COOKIE_NAME}")}
        if len(bare) < len(self.all) and bare.isdisjoint(expected.paths):
            return False  # directories without a cookie are added by this start
        self.check_owner(expected, "the metadata store")
        self._check_not_elsewhere(expected)
        for path in self.all:
            with contextlib.suppress(CorruptDataError):
                cookie = read_cookie(self._files, path)
                if cookie is not None:  # another bookie's, say, that has stored nothing yet
                    self.check_owner(cookie, path)
            for name in self._files.listdir(path):
                if file_id_of(name) is not None or log_id_of(name) is not None:
                    raise IdentityError(
                        f"this directory holds data ({name}), and there is no cookie in {', '.join(sorted(bare))}: "
                        "--rebuild wants all directories empty. Mount the missing disk; if a cookie alone is lost, "
                        "`bkpy bookie cookie update` writes it anew; if the disk is lost, `bkpy bookie format --force` "
                        "empties what is left, and --rebuild copies everything from other bookies",
                        path=path,
                    )
        return True

    def check_no_journal(self, path: str) -> None:
        """`IdentityError` if a start has begun a journal here already."""
        if any(file_id_of(name) is not None for name in self._files.listdir(path)):
            raise IdentityError(
                "a bookie was started here already, and did not get as far as the metadata store; `bkpy bookie run` "
                "finishes that",
                path=path,
            )

    def cookie(self, uuids: Sequence[str]) -> Cookie:
        """What is true from now on, given the indexes' uuids."""
        ledger_directories = tuple(map(LedgerDirectory, self.ledgers, uuids))
        return Cookie(self._bookie_id, self._instance_id, self.journals, ledger_directories, self._protocol)

    def write(self, cookie: Cookie) -> None:
        """Put the cookie into every directory that doesn't have it; durable on return in all of them.

        Even where it was there before: the process that stored it may have died before it synced the name.
        """
        for directory in self.all:
            if read_cookie(self._files, directory) != cookie:
                write_cookie(self._files, directory, cookie)
            else:
                self._files.sync_dir(directory)

    def write_to(self, directory: str, cookie: Cookie) -> None:
        """Put the cookie into one directory, whatever is there."""
        write_cookie(self._files, directory, cookie)


def _trim(path: str) -> str:
    return path.rstrip("/") or "/"
