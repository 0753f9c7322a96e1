"""When the periodic checks last ran, and how far those are that run: left by an auditor to the next."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import MetadataConflictError
from bkpy.metadata import paths
from bkpy.metadata.outcome import Changed, Done, Exists, Missing, NotDone, Overtaken, Unknown, told
from bkpy.metadata.resolve import create_certainly, put_certainly, read_certainly
from bkpy.metadata.store import Check, Create, MetadataStore
from bkpy.protocol.ledger_metadata import UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bkpy.metadata.outcome import CreateOutcome, PutOutcome

RECORD_VERSION = 1
_DEFAULTS = RecoverySettings()


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One kind of check. Times are milliseconds since 1970, 0 for never.

    It runs from `began_ms` on, and has looked at the ledgers up to `after`; when it is at the end, `ended_ms` is later
    than `began_ms`. `ledgers` were looked at in this run, or in the last one, and `marked` were found to fall short.
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
        self._store = store
        self._path = f"{root}/{paths.CHECKS}"
        self._guard = guard
        self._attempts_max = settings.metadata_write_attempts_max
        self._version: int | None = None

    async def read(self) -> CheckRecord:
        """The record; an empty one if there is none, or one that is damaged: then all checks are due.

        Raises `UnsupportedVersionError` for one of a newer bkpy, `MetadataUnavailableError`.
        """
        found = await read_certainly(self._store, self._path)
        self._version = None if found is None else found[1]
        return CheckRecord() if found is None else _decode(found[0])

    async def write(self, record: CheckRecord) -> None:
        """Replace the record that was read or written last.

        Raises `MetadataConflictError` when the term is over. After a `MetadataUnavailableError` it is to be read again.
        """
        check = Check(self._guard, 0)
        outcome: CreateOutcome | PutOutcome
        if self._version is None:
            create = Create(self._path, _encode(record))
            outcome = await create_certainly(self._store, create, check, attempts_max=self._attempts_max)
        else:
            outcome = await put_certainly(
                self._store, self._path, _encode(record), self._version, check, attempts_max=self._attempts_max
            )
        match outcome:
            case Done():
                self._version = outcome.version
            case Missing() | Exists() | Changed() | Overtaken():
                raise MetadataConflictError(
                    "there is another auditor", outcome_unknown=isinstance(outcome, Overtaken), retriable=False
                )
            case NotDone() | Unknown():
                raise told(outcome)
            case _:
                assert_never(outcome)


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
    return json.dumps({"version": RECORD_VERSION, "checks": runs, **record.unknown}).encode()


def _decode(data: bytes) -> CheckRecord:
    try:
        fields = json.loads(data)
        version = fields.pop("version")
        if isinstance(version, int) and version > RECORD_VERSION:
            raise UnsupportedVersionError(
                f"the record of checks has format version {version}, this bkpy reads up to {RECORD_VERSION}: upgrade it"
            )
        return CheckRecord({name: _run(run) for name, run in fields.pop("checks").items()}, fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return CheckRecord()


def _run(fields: dict[str, Any]) -> CheckRun:
    return CheckRun(*(int(fields[name]) for name in ("began_ms", "ended_ms", "after", "ledgers", "marked")))
