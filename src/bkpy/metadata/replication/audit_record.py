"""The record that an auditor leaves to the next: the absent bookies, since when, and which of them it has handled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import CorruptDataError
from bkpy.metadata import paths
from bkpy.metadata.replication.term_value import TermValue
from bkpy.metadata.stored_record import StoredRecord
from bkpy.protocol.repair.lost_bookies import Absence, AuditRecord

if TYPE_CHECKING:
    from bkpy.metadata.store.store import MetadataStore

_RECORD: Final = StoredRecord("the auditor's record", version=1)
_DEFAULTS = RecoverySettings()


class AuditRecords:
    """The record under `root`. Writes need the node `guard` to be there, that of the auditor's term."""

    def __init__(
        self, store: MetadataStore, root: str, *, guard: str = "", settings: RecoverySettings = _DEFAULTS
    ) -> None:
        attempts_max = settings.metadata_write_attempts_max
        self._value = TermValue(store, f"{root}/{paths.AUDIT}", guard=guard, attempts_max=attempts_max)

    async def read(self) -> AuditRecord:
        """The record; an empty one if there is none, or one that is damaged.

        Raises `UnsupportedVersionError` for one of a newer bkpy, `MetadataUnavailableError`.
        """
        found = await self._value.read()
        if found is None:
            return AuditRecord()
        try:
            return _RECORD.decode(found, _decode)
        except CorruptDataError:
            return AuditRecord()

    async def write(self, record: AuditRecord) -> None:
        """Replace the record that was read or written last.

        Raises `MetadataConflictError` when the term is over. After a `MetadataUnavailableError` it is to be read again.
        """
        await self._value.write(_encode(record))

    async def written_ms(self) -> int:
        """When it was written, by the metadata store's clock. Raises `MetadataConflictError` if it is gone."""
        return await self._value.written_ms()


def _encode(record: AuditRecord) -> bytes:
    fields = {
        "most_absent": record.suspended,
        "bookies": dict(sorted(record.instances.items())),
        "absent": {
            bookie: {
                "since_ms": absence.since_ms,
                "instance": absence.instance,
                "replaced": absence.replaced,
                "begun": absence.begun,
                "marked": absence.marked,
                "worked_off": absence.worked_off,
                **({} if absence.began_ms is None else {"began_ms": absence.began_ms}),
            }
            for bookie, absence in sorted(record.absences.items())
        },
    }
    return _RECORD.encode(fields, record.unknown)


def _decode(fields: dict[str, Any]) -> AuditRecord:
    suspended = bool(fields.pop("most_absent"))
    instances = {bookie: str(instance) for bookie, instance in fields.pop("bookies").items()}
    absences = {bookie: _absence(absence) for bookie, absence in fields.pop("absent").items()}
    return AuditRecord(instances, absences, suspended, fields)


def _absence(fields: dict[str, Any]) -> Absence:
    return Absence(
        int(fields["since_ms"]),
        str(fields["instance"]),
        bool(fields["replaced"]),
        bool(fields.get("begun", False)),  # bkpy 0.2.0 doesn't write it
        bool(fields["marked"]),
        bool(fields["worked_off"]),
        int(fields["began_ms"]) if "began_ms" in fields else None,
    )
