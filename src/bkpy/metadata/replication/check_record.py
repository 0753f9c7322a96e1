"""When the periodic checks last ran, and the progress of running ones: an auditor stores it for the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import CorruptDataError
from bkpy.metadata import paths
from bkpy.metadata.replication.term_value import TermValue
from bkpy.metadata.stored_record import StoredRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bkpy.metadata.store.store import MetadataStore

_RECORD: Final = StoredRecord("the record of checks", version=1)
_DEFAULTS = RecoverySettings()


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One kind of check. Times are milliseconds since 1970, 0 for never.

    It runs from `began_ms` on, and has looked at the ledgers up to `after`; when it is at the end, `ended_ms` is later
    than `began_ms`. `ledgers` counts the ledgers of this run, or of the last one, and `marked` the
    under-replicated ones of these.
    """

    began_ms: int = 0
    ended_ms: int = 0
    after: int = -1
    ledgers: int = 0
    marked: int = 0


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """All kinds, by name. Fields that this version doesn't know survive."""

    runs: Mapping[str, CheckRun] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)


class CheckRecords:
    """The record under `root`. Writes need the node `guard` to be there, that of the auditor's term."""

    def __init__(
        self, store: MetadataStore, root: str, *, guard: str = "", settings: RecoverySettings = _DEFAULTS
    ) -> None:
        attempts_max = settings.metadata_write_attempts_max
        self._value = TermValue(store, f"{root}/{paths.CHECKS}", guard=guard, attempts_max=attempts_max)

    async def read(self) -> CheckRecord:
        """The record; an empty one if there is none, or one that is damaged: then all checks are due.

        Raises `UnsupportedVersionError` for one of a newer bkpy, `MetadataUnavailableError`.
        """
        found = await self._value.read()
        if found is None:
            return CheckRecord()
        try:
            return _RECORD.decode(found, _decode)
        except CorruptDataError:
            return CheckRecord()

    async def write(self, record: CheckRecord) -> None:
        """Replace the record that was read or written last.

        Raises `MetadataConflictError` when the term is over. After a `MetadataUnavailableError` it is to be read again.
        """
        await self._value.write(_encode(record))


def _encode(record: CheckRecord) -> bytes:
    runs = {
        name: {
            "began_ms": run.began_ms,
            "ended_ms": run.ended_ms,
            "after": run.after,
            "ledgers": run.ledgers,
            "marked": run.marked,
        }
        for name, run in sorted(record.runs.items())
    }
    return _RECORD.encode({"checks": runs}, record.unknown)


def _decode(fields: dict[str, Any]) -> CheckRecord:
    return CheckRecord({name: _run(run) for name, run in fields.pop("checks").items()}, fields)


def _run(fields: dict[str, Any]) -> CheckRun:
    return CheckRun(*(int(fields[name]) for name in ("began_ms", "ended_ms", "after", "ledgers", "marked")))
