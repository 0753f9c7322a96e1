"""Removes what a bookie keeps in its directories: `bkpy bookie format`, and a journal directory that is given up.

Invariants: it removes only files that a bookie makes, and only in directories with the bookie's own cookie, checked
under the directory's lock; an operator may allow other directories (`format --force`), but never another bookie's. An
index goes first, so that from then on no start believes the rest; a directory's cookie goes last, so that a second call
recognizes an interrupted removal and finishes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import CorruptDataError, IdentityError
from bkpy.storage.entry_log.entry_log import log_id_of
from bkpy.storage.file_names import INDEX_NAME, SCRUB_NAME
from bkpy.storage.identity import COOKIE_NAME, read_cookie
from bkpy.storage.journal.format import file_id_of, is_broken_copy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from bkpy.runtime.interfaces import Files

# The third is of versions up to 0.2.0, which made a smaller copy beside the index's own file.
_INDEX_FILES = ("data.mdb", "lock.mdb", "data.mdb.new", "sound.pages", "sound.pages.new")


class OwnedFiles(NamedTuple):
    """A bookie's files in a directory, by kind, with paths, in the order of their removal."""

    indexes: list[str]
    journals: list[str]
    logs: list[str]
    scrubs: list[str]
    cookies: list[str]
    bytes: int

    @property
    def data(self) -> list[str]:
        return [*self.indexes, *self.journals, *self.logs]


def belongings(files: Files, directory: str) -> OwnedFiles:
    """Find a bookie's files in the directory. Blocks."""
    found = OwnedFiles([], [], [], [], [], 0)
    size = 0
    for kind, path in _ours(files, directory):
        getattr(found, kind).append(path)
        size += _size(files, path)
    return found._replace(bytes=size)


class Owner(NamedTuple):
    """The bookie that a directory's cookie has to name."""

    bookie_id: str
    instance_id: str  # of the cluster


def has_cookie(files: Files, directory: str, owner: Owner) -> bool:
    """Whether the directory has a sound cookie of the owner."""
    try:
        cookie = read_cookie(files, directory)
    except CorruptDataError:
        return False
    return cookie is not None and (cookie.bookie_id, cookie.instance_id) == owner


def is_owned(files: Files, directory: str, owner: Owner) -> bool:
    """Whether the directory's cookie names the owner. Without a cookie, only an empty directory counts as the owner's.

    Raises `IdentityError` for a directory of another bookie.
    """
    try:
        cookie = read_cookie(files, directory)
    except CorruptDataError:
        cookie = None
    if cookie is None:
        return not belongings(files, directory).data
    if cookie.bookie_id != owner.bookie_id:
        raise IdentityError(
            f"the directory is that of bookie {cookie.bookie_id}, and bookie_id is {owner.bookie_id}: nothing was "
            "deleted; correct one or the other",
            path=directory,
        )
    return cookie.instance_id == owner.instance_id or not belongings(files, directory).data


def wipe(files: Files, directories: Sequence[str], owner: Owner, *, allowed: Collection[str] = ()) -> None:
    """Remove the owner's files from all these directories, whose locks the caller holds. Blocks.

    Raises `IdentityError`, with nothing removed, for a directory that is not the owner's. A directory in `allowed` may
    have a cookie of another cluster, or none.
    """
    for directory in directories:
        if not is_owned(files, directory, owner) and directory not in allowed:
            raise IdentityError(
                "there are files of a bookie here, and no cookie that says that they are this one's, of this cluster; "
                "nothing was deleted",
                bookie=owner.bookie_id,
                path=directory,
            )
    found = {directory: belongings(files, directory) for directory in directories}
    for here in found.values():
        if here.indexes:
            for path in here.indexes:
                files.unlink(path)
            for index in dict.fromkeys(path.rpartition("/")[0] for path in here.indexes):
                files.sync_dir(index)
    for directory, here in found.items():
        others = (*here.journals, *here.logs, *here.scrubs)
        if others:
            for path in others:
                files.unlink(path)
            files.sync_dir(directory)
    for directory, here in found.items():
        if here.cookies:
            for path in here.cookies:
                files.unlink(path)
            files.sync_dir(directory)


def _ours(files: Files, directory: str) -> Iterator[tuple[str, str]]:
    """(kind, path) of the bookie's files."""
    if not files.exists(directory):
        return
    for name in files.listdir(directory):
        if file_id_of(name) is not None or is_broken_copy(name):
            yield "journals", f"{directory}/{name}"
        elif log_id_of(name) is not None:
            yield "logs", f"{directory}/{name}"
        elif name in (SCRUB_NAME, f"{SCRUB_NAME}.new"):
            yield "scrubs", f"{directory}/{name}"
        elif name in (COOKIE_NAME, f"{COOKIE_NAME}.new"):
            yield "cookies", f"{directory}/{name}"
        elif name == INDEX_NAME or name.startswith(f"{INDEX_NAME}."):  # or a new index, or a replaced one
            for file in _INDEX_FILES:
                if files.exists(f"{directory}/{name}/{file}"):
                    yield "indexes", f"{directory}/{name}/{file}"


def _size(files: Files, path: str) -> int:
    file = files.open(path, read_only=True)
    try:
        return file.size()
    finally:
        file.close()
