"""A cluster in memory with a log whose ledgers are only metadata, for tests of what is taken out of logs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tests.in_process import runtime_here
from tests.unit.metadata.store.troubled import OpeningStep, Troubled

from bkpy.config.client import ClientSettings
from bkpy.config.shared import MetadataSettings
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.ledgers.catalog import Created, LedgerCatalog
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.logs.catalog import LogStore
from bkpy.metadata.logs.consumers import LogConsumers
from bkpy.metadata.logs.deletions import LogDeletions
from bkpy.metadata.logs.maintenance import LOG_NAME, LOG_UID, LogMaintenance
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.outcome import Done
from bkpy.metadata.store.store import Create, Delete, Put
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.log.log_list import LogList, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.runtime.interfaces import Runtime

ROOT = "/ledgers"
NAME = "orders"
LIST = f"{ROOT}/logs/{NAME}"
UID, OLD_UID = "1" * 32, "0" * 32


class Clock:
    """Stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


class LogWorld:
    """The log has positions 0 to 39: three sealed ledgers of ten each, and an open one."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.runtime: Runtime = dataclasses.replace(runtime_here(), clock=self.clock)
        self.tree = MemoryStore(self.runtime)
        self.store = self.tree.session()
        self.troubled = Troubled(self.tree)  # the session of who was opened last
        self.catalog, self.logs = self._parts(self.store, {})
        self.maintenance = LogMaintenance(self.logs, self.catalog)
        self.segments: list[int] = []
        self.fenced: list[int] = []

    def _parts(self, store: Any, given: dict[str, Any]) -> tuple[LedgerCatalog, LogStore]:
        shared = {"metadata_write_attempts_max": 2, "log_conflicts_max": 3, **given}
        catalog = LedgerCatalog(store, ROOT, LONG_HIERARCHICAL, self.runtime, ClientSettings(**shared))
        return catalog, LogStore(store, ROOT, LONG_HIERARCHICAL, self.runtime, MetadataSettings(**shared))

    def opened(self, script: Iterable[str | OpeningStep | None] = (), **given: Any) -> LogMaintenance:
        """Another client's, whose calls go wrong as the script says."""
        self.troubled = Troubled(self.tree, script)
        catalog, logs = self._parts(self.troubled, given)
        return LogMaintenance(logs, catalog)

    @property
    def now_ms(self) -> int:
        return int(self.clock.now * 1000)

    async def begin(self, **fields: Any) -> LogWorld:
        await init_cluster(self.store, ROOT)
        self.segments = [await self.ledger() for _ in range(4)]
        sealed = [
            Segment(ledger_id, n * 10, self.now_ms).seal(10, 180, self.now_ms + n * 1000)
            for n, ledger_id in enumerate(self.segments[:3])
        ]
        log_list = LogList(
            UID, 3, 3, 2, "crc32c", bytes(32), writer="w",
            segments=(*sealed, Segment(self.segments[3], 30, self.now_ms + 3000)), **fields,
        )  # fmt: skip
        assert isinstance(await self.logs.create(NAME, log_list), Done)
        return self

    async def ledger(self, uid: str | None = UID, name: str = NAME) -> int:
        """A ledger of the log, as yet in no list."""
        custom = {} if uid is None else {LOG_NAME: name.encode(), LOG_UID: uid.encode()}
        created = await self.catalog.create(
            lambda ledger_id: LedgerMetadata(
                ledger_id=ledger_id,
                state=LedgerState.OPEN,
                ensemble_size=3,
                write_quorum=3,
                ack_quorum=2,
                digest="crc32c",
                ledger_key=bytes(32),
                fragments=(Fragment(0, ("a", "b", "c")),),
                created_ms=self.now_ms,
                owner_token=self.logs.new_token(),
                custom_metadata=custom,
            )
        )
        assert isinstance(created, Created)
        return created.metadata.ledger_id

    async def fence(self, ledger_id: int) -> None:
        await self.metadata(ledger_id)
        self.fenced.append(ledger_id)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return (await self.catalog.read(ledger_id))[0]

    async def consumer(self, name: str, position: int | None) -> None:
        await LogConsumers(self.logs, NAME, UID).register(name, position)

    async def note_deletion(self, uid: str) -> str:
        """That the log with this uid was deleted; the node."""
        await LogDeletions(self.logs).note(NAME, uid)
        return f"{ROOT}/logs-deleted/{uid}"

    # --- what there is ------------------------------------------------------------------------------------------

    def log_list(self) -> LogList | None:
        if LIST not in self.tree.paths:
            return None
        return LogList.decode(NAME, self.tree.node(LIST).data)

    def ledgers(self) -> set[int]:
        """Those that there are."""
        return {ledger_id for ledger_id in range(100) if self.catalog.path_of(ledger_id) in self.tree.paths}

    def check(self) -> None:
        """Nothing that the list names is missing, and nothing that was taken out of it is forgotten."""
        self.tree.check_invariants()
        log_list = self.log_list()
        named = set() if log_list is None else {segment.ledger_id for segment in log_list.segments}
        assert named <= self.ledgers(), "a ledger that the list names was deleted"
        pending_delete = set() if log_list is None else set(log_list.pending_delete)
        gone = set(self.segments) - named - pending_delete
        assert not gone & self.ledgers(), "a ledger was forgotten that is there"

    # --- what others do, at once --------------------------------------------------------------------------------

    def rolls(self, ledger_id: int) -> None:
        """The log's writer closes its ledger with ten entries and goes on in this one; nothing if it can't."""
        log_list = self.log_list()
        path = self.catalog.path_of(ledger_id)
        if log_list is None or log_list.deleted or path not in self.tree.paths or log_list.open_segments == ():
            return
        *others, last = log_list.segments
        if last.ledger_id == ledger_id:
            return
        segments = (*others, last.seal(10, 180, last.begun_ms), Segment(ledger_id, last.first_position + 10, 0))
        changed = dataclasses.replace(log_list, segments=segments, write_token=self.logs.new_token())
        self.tree.apply(Put(LIST, changed.encode(), self.tree.node(LIST).version), 0)
        self.segments.append(ledger_id)

    def loses_list(self) -> list[Create]:
        """Somebody removes the log's nodes by hand; what puts them back."""
        nodes = sorted(path for path in self.tree.paths if path == LIST or path.startswith(f"{LIST}/"))
        back = [Create(path, self.tree.node(path).data) for path in nodes]
        for path in reversed(nodes):
            self.tree.apply(Delete(path), 0)
        return back

    def registers(self, position: int) -> None:
        """A consumer comes, or steps back to the position; nothing if it can't."""
        log_list = self.log_list()
        folder = f"{LIST}/{UID}/consumers"
        if log_list is None or log_list.deleted or position < log_list.first_position or folder not in self.tree.paths:
            return
        value = b'{"version":1,"position":%d,"since_ms":0,"token":"t"}' % position
        node = f"{folder}/late"
        operation = Put(node, value, self.tree.node(node).version) if node in self.tree.paths else Create(node, value)
        self.tree.apply_all([Put(folder, b"t", self.tree.node(folder).version), operation], 0)
