"""Bookie ids that were given up: the cluster remembers them, so that no new bookie denies entries of a former one.

    retired/<bookie id>   the command that gave the id up, its storage, and the highest ledger id until then

The record counts only while the id has no cookie. `bkpy bookie decommission` and `bkpy bookie format` write it before
they delete the cookie. A record is replaced, and never deleted.

Invariants: an id without a cookie that any storage ever served under has a record; `limbo_to` never decreases; a record
that can't be read refuses each start under its id.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, assert_never

from bkpy.config.shared import MetadataSettings
from bkpy.errors import IdentityError, MetadataConflictError
from bkpy.metadata import paths
from bkpy.metadata.store.outcome import Changed, Done, Exists, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.metadata.store.resolve import create_certainly, ensure_path, put_certainly, read_certainly
from bkpy.metadata.store.store import Create, MetadataStore
from bkpy.metadata.stored_record import StoredRecord, take

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bkpy.runtime.interfaces import Clock

_RECORD: Final = StoredRecord(
    "the record of a bookie id that was given up",
    version=1,
    advice="; no bookie starts under that id. Choose another bookie_id",
)
_DEFAULTS = MetadataSettings()


class RetiredBy(enum.StrEnum):
    """The command that gave the id up."""

    DECOMMISSION = "decommission"  # `bkpy bookie init --again` makes the id usable again
    FORMAT = "format"  # the next start under the id takes it


@dataclass(frozen=True, slots=True)
class RetiredBookie:
    """A bookie id that was given up at `since_ms` (of the epoch).

    `limbo_to`: a new storage under the id denies no ledger up to this one; -1 for none. `instance`: the storage that
    the id had, see `instance_of`; "" if that is unknown.
    """

    bookie_id: str
    by: RetiredBy
    since_ms: int = 0
    limbo_to: int = -1
    instance: str = ""
    node_version: int = -1  # of the value; -1 if there is none
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    @property
    def decommissioned(self) -> bool:
        return self.by is RetiredBy.DECOMMISSION

    def check_usable(self) -> None:
        """`IdentityError` if no bookie may start under the id. For an id without a cookie."""
        if self.decommissioned:
            raise IdentityError(
                "the bookie was decommissioned, and its id must not come back unnoticed. For a new bookie under this "
                "id, empty its directories and run `bkpy bookie init --again`; else choose another bookie_id. If this "
                "bookie is back with all that it had, `bkpy bookie cookie update` makes it known again",
                bookie=self.bookie_id,
            )


async def read_retired(store: MetadataStore, root: str, bookie_id: str) -> RetiredBookie | None:
    """The record of the id, None if there certainly is none.

    Raises `CorruptDataError`, `UnsupportedVersionError`, `MetadataUnavailableError`.
    """
    path = paths.retired(root, bookie_id)
    found = await read_certainly(store, path)
    return None if found is None else _decode(bookie_id, path, *found)


async def retire(
    store: MetadataStore,
    root: str,
    bookie_id: str,
    by: RetiredBy,
    clock: Clock,
    *,
    instance: str = "",
    limbo_to: int = -1,
    attempts_max: int = _DEFAULTS.metadata_write_attempts_max,
) -> None:
    """Record that the id is given up, before its cookie is deleted. `limbo_to` only raises the former one.

    Raises `MetadataConflictError` if another call has changed the record meanwhile, and what `read_retired` raises.
    """
    former = await read_retired(store, root, bookie_id)
    now_ms = int(clock.time() * 1000)
    if former is None:
        value = _encode(RetiredBookie(bookie_id, by, now_ms, limbo_to, instance))
        await _create(store, root, bookie_id, value, attempts_max)
        return
    limbo_to = max(limbo_to, former.limbo_to)
    record = dataclasses.replace(former, by=by, since_ms=now_ms, limbo_to=limbo_to, instance=instance)
    path = paths.retired(root, bookie_id)
    outcome = await put_certainly(store, path, _encode(record), former.node_version, attempts_max=attempts_max)
    match outcome:
        case Done():
            return
        case Missing() | Changed() | Superseded():
            raise _conflict(bookie_id)
        case NotDone() | Unknown():
            raise to_error(outcome, bookie=bookie_id)
        case _:
            assert_never(outcome)


async def _create(store: MetadataStore, root: str, bookie_id: str, value: bytes, attempts_max: int) -> None:
    node = Create(paths.retired(root, bookie_id), value)
    outcome = await create_certainly(store, node, attempts_max=attempts_max)
    if isinstance(outcome, Missing):  # the first one of the cluster
        above = await ensure_path(store, f"{root}/{paths.RETIRED}", attempts_max=attempts_max)
        if isinstance(above, NotDone):
            raise to_error(above, bookie=bookie_id)
        outcome = await create_certainly(store, node, attempts_max=attempts_max)
    match outcome:
        case Done():
            return
        case Exists() | Superseded() | Missing():
            raise _conflict(bookie_id)
        case NotDone() | Unknown():
            raise to_error(outcome, bookie=bookie_id)
        case _:
            assert_never(outcome)


def _conflict(bookie_id: str) -> MetadataConflictError:
    return MetadataConflictError("another command changes the record of this bookie id: try again", bookie=bookie_id)


# --- the stored form --------------------------------------------------------------------------------------------------


def _encode(record: RetiredBookie) -> bytes:
    fields = {
        "by": record.by.value,
        "since_ms": record.since_ms,
        "limbo_to": record.limbo_to,
        "instance": record.instance,
    }
    return _RECORD.encode(fields, record.unknown)


def _decode(bookie_id: str, path: str, data: bytes, node_version: int) -> RetiredBookie:
    def made(fields: dict[str, Any]) -> RetiredBookie:
        by = RetiredBy(fields.pop("by"))
        since_ms, limbo_to = take(fields, "since_ms", int), take(fields, "limbo_to", int)
        return RetiredBookie(bookie_id, by, since_ms, limbo_to, take(fields, "instance", str), node_version, fields)

    return _RECORD.decode(data, made, bookie=bookie_id, path=path)
