"""The cookie: which bookie, cluster and directories belong together, kept in every directory and in the metadata store.

Invariants: a cookie is believed only if its checksum is right; directories are used only if cookie, settings and the
uuid inside each index agree; data is never created anew where a cookie says that there was some.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from crc32c import crc32c

from bkpy.errors import CorruptDataError, IdentityError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bkpy.runtime.interfaces import Files

COOKIE_NAME: Final = "cookie.json"
VERSION: Final = 1
_COOKIE_BYTES_MAX: Final = 1 << 20


class LedgerDirectory(NamedTuple):
    path: str
    uuid: str  # of the index in it, 32 hexadecimal digits


class Cookie(NamedTuple):
    """What is agreed upon. Compared as a whole; only ledger directories may be added at the end."""

    bookie_id: str
    instance_id: str  # of the cluster
    journal_directories: tuple[str, ...]
    ledger_directories: tuple[LedgerDirectory, ...]

    def encode(self) -> bytes:
        content = {
            "version": VERSION,
            "bookie_id": self.bookie_id,
            "instance_id": self.instance_id,
            "journal_directories": list(self.journal_directories),
            "ledger_directories": [{"path": d.path, "index_uuid": d.uuid} for d in self.ledger_directories],
        }
        content["crc32c"] = _checksum(content)
        return json.dumps(content, indent=2).encode() + b"\n"

    def extends(self, older: Cookie) -> bool:
        """Whether this is `older`, perhaps with ledger directories added."""
        n = len(older.ledger_directories)
        return self._replace(ledger_directories=self.ledger_directories[:n]) == older

    @property
    def paths(self) -> list[str]:
        return [*self.journal_directories, *(directory.path for directory in self.ledger_directories)]

    def moved(self, moves: Mapping[str, str]) -> Cookie:
        """This, with directories at new paths."""
        return self._replace(
            journal_directories=tuple(moves.get(path, path) for path in self.journal_directories),
            ledger_directories=tuple(d._replace(path=moves.get(d.path, d.path)) for d in self.ledger_directories),
        )


def _checksum(content: dict[str, Any]) -> int:
    return crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def decode_cookie(data: bytes, where: str) -> Cookie:
    """The cookie; `CorruptDataError` naming `where` it is from if it isn't a sound one."""
    try:
        content = json.loads(data)
        stored = content.pop("crc32c")
        if stored != _checksum(content):
            raise ValueError("its checksum is wrong")
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']} is not supported")
        return Cookie(
            content["bookie_id"],
            content["instance_id"],
            tuple(content["journal_directories"]),
            tuple(LedgerDirectory(d["path"], d["index_uuid"]) for d in content["ledger_directories"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptDataError(f"the cookie can't be read: {e}; copy it from another directory", path=where) from None


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
    path = f"{directory}/{COOKIE_NAME}"
    temporary = f"{path}.new"
    if files.exists(temporary):
        files.unlink(temporary)
    file = files.open(temporary, create=True)
    try:
        file.pwritev([cookie.encode()], 0)
        file.fdatasync()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_dir(directory)


def check(
    cookie: Cookie,
    where: str,
    *,
    bookie_id: str,
    instance_id: str,
    journal_directories: Sequence[str],
    ledger_directories: Sequence[str],
) -> None:
    """`IdentityError` saying what to do if the cookie found at `where` is not this bookie's, or the settings miss a
    directory of it."""
    if cookie.instance_id != instance_id:
        raise IdentityError(
            f"this bookie belongs to cluster {cookie.instance_id}, but the metadata store is cluster {instance_id}'s; "
            "correct metadata_uri, or use empty directories to join the other cluster",
            path=where,
        )
    if cookie.bookie_id != bookie_id:
        raise IdentityError(
            f"the directories are those of bookie {cookie.bookie_id}, but bookie_id is {bookie_id}; correct one or "
            "the other",
            path=where,
        )
    if cookie.journal_directories != tuple(journal_directories):
        raise IdentityError(
            f"the bookie was created with journal_directories {', '.join(cookie.journal_directories)}, and they are "
            f"now {', '.join(journal_directories)}; restore the setting, or move the directories there with all that "
            "is in them",
            path=where,
        )
    known = [d.path for d in cookie.ledger_directories]
    missing = [path for path in known if path not in ledger_directories]
    if missing:
        raise IdentityError(
            f"the bookie has data in {', '.join(missing)}, which ledger_directories no longer names; add it again, "
            "and mount its disk, or move it with all that is in it to the path that stands in its place",
            path=where,
        )
    if list(ledger_directories[: len(known)]) != known:
        raise IdentityError(
            f"ledger_directories must begin with {', '.join(known)}, in this order; new ones are added at the end",
            path=where,
        )
