"""The reports of replication workers in the metadata: an ephemeral node for each, and for each bookie that rebuilds.

Invariants: a worker has one node, whose name nobody else's ever has, and which goes with its session; nothing depends
on what is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, assert_never

from bkpy.metadata import paths
from bkpy.metadata.store.outcome import Changed, Done, Exists, Missing, NotDone, Superseded, Unknown
from bkpy.metadata.store.resolve import children_if_there, create_certainly, ensure_path, put_certainly, read_if_there
from bkpy.metadata.store.store import Create, MetadataStore
from bkpy.metadata.stored_record import StoredRecord, fields_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.store.outcome import CreateOutcome, PutOutcome

_RECORD: Final = StoredRecord("a worker's report", version=1)
REBUILDING = "rebuilding"  # the field of a bookie that copies back what it lost, in place of a worker's fields
_TOKEN_BYTES = 8
_NO_WORKER: Final = "rebuilding-"  # begins the name of a node that is no worker's: it stays for the session
_NUMBERS: Final = ("queued", "postponed", "stuck", "ledgers_done", "bytes_copied", "bytes_per_s", "ledgers_per_s")


class WorkerNode:
    """The node of one worker under `root`, or, as `rebuilding`, that of a bookie that copies back what it lost."""

    def __init__(
        self, store: MetadataStore, root: str, settings: RecoverySettings, *, rebuilding: bool = False
    ) -> None:
        token = store.runtime.rng.randbytes(_TOKEN_BYTES).hex()
        self._name = f"{_NO_WORKER}{token}" if rebuilding else token
        self._store = store
        self._folder = f"{root}/{paths.WORKERS}"
        self._path = f"{self._folder}/{self._name}"
        self._attempts_max = settings.metadata_write_attempts_max
        self._version: int | None = None
        self._stored = b""

    async def tell(self, fields: Mapping[str, Any]) -> None:
        """Have the node say this. If that isn't done now, the next call does it. Raises `MetadataUnavailableError`."""
        value = _RECORD.encode(fields)
        if self._version is not None and value == self._stored and await self._store.exists(self._path):
            return
        outcome: CreateOutcome | PutOutcome
        if self._version is None:
            outcome = await self._create(value)
        else:
            outcome = await put_certainly(
                self._store, self._path, value, self._version, attempts_max=self._attempts_max
            )
        match outcome:
            case Done():
                self._version, self._stored = outcome.version, value
            case Missing():
                self._version = None  # it has gone with its session
            case Exists() | Changed() | Superseded() | NotDone() | Unknown():
                found = await read_if_there(self._store, self._path)
                self._version, self._stored = (None, b"") if found is None else (found[1], found[0])
            case _:
                assert_never(outcome)

    async def place(self) -> tuple[int, int]:
        """The worker's place among all workers, in the order of their nodes, and how many there are.

        As the server knows them, which may lag behind. A worker that has not reported yet is missing.
        """
        children = await children_if_there(self._store, self._folder)
        names = {self._name, *(name for name in children if not name.startswith(_NO_WORKER))}
        return sorted(names).index(self._name), len(names)

    async def _create(self, value: bytes) -> CreateOutcome:
        create = Create(self._path, value, ephemeral=True)
        outcome = await create_certainly(self._store, create, attempts_max=self._attempts_max)
        if not isinstance(outcome, Missing):
            return outcome
        above = await ensure_path(self._store, self._folder, attempts_max=self._attempts_max)
        if isinstance(above, NotDone):
            return above
        return await create_certainly(self._store, create, attempts_max=self._attempts_max)


def _is_known_shape(fields: Mapping[str, Any]) -> bool:
    """Whether what readers use of a report is what they take it for. Fields may be missing."""
    stuck, rebuilding = fields.get("stuck_ledgers", {}), fields.get(REBUILDING, {})
    if not isinstance(fields.get("working_on", {}), dict) or not isinstance(stuck, dict):
        return False
    if not all(ledger_id.isdecimal() for ledger_id in stuck) or not isinstance(rebuilding, dict):
        return False
    counts = [fields.get(name, 0) for name in _NUMBERS]
    counts += [0 if name == "ledgers" and count is None else count for name, count in rebuilding.items()]
    return all(type(count) in (int, float) for count in counts)


async def worker_reports(store: MetadataStore, root: str) -> list[dict[str, Any]]:
    """What the workers said last. One of a newer bkpy may say more, or less; what can't be read is left out."""
    folder = f"{root}/{paths.WORKERS}"
    found = []
    for name in await children_if_there(store, folder):
        value = await read_if_there(store, f"{folder}/{name}")
        fields = {} if value is None else fields_of(value[0])
        if "name" in fields and _is_known_shape(fields):
            found.append(fields)
    return sorted(found, key=lambda fields: str(fields["name"]))
