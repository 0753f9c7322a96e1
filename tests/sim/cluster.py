"""Real bookies and a real client in a world, and a record of what the client was promised.

The oracle is simple: whatever happened to the bookies meanwhile, what the client was told to be durable is read back
byte for byte, and what a bookie has acknowledged is on that bookie.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from unittest.mock import patch

from bkpy.bookie.bookkeeper import ledger_keys, reads
from bkpy.bookie.node import BookieNode
from bkpy.client.client import Client, open_client
from bkpy.config.base import KIB
from bkpy.config.bookie import BookieSettings
from bkpy.config.client import client_settings
from bkpy.errors import BookKeeperError, WouldBlock
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.store.store import NoNode
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
from bkpy.protocol.repair.garbage_collection import ProbeState, probe_state_of
from bkpy.protocol.wire.messages import AddColumns, Flags, Op, Status, decode_read_reply, error_of, pack, reply_status
from bkpy.protocol.wire.records import HEADER_BYTES, walk
from bkpy.replication.integrity import IntegrityCheck
from bkpy.storage import open as opening
from bkpy.storage.checkpoint import flush
from bkpy.storage.engine import LedgerStorage
from bkpy.storage.space.deletion import HiddenLedger
from tests.hooks import pool_of, settings_of, storage_of

from .buggify import bookie_bounds, client_bounds
from .coverage_marks import (
    COLLECTED,
    DIRECTORY_ADDED,
    FENCE_OF_UNSEEN,
    FENCE_RACED_ADD,
    INSPECTED,
    SEVERAL_LEDGERS,
    SPARE_COLLECTED,
    WINDOW_OF_ONE,
    observed,
)
from .store import SimStores
from .world import Host, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
    from random import Random

    from prometheus_client import CollectorRegistry

    from bkpy.bookie.service import BookieService
    from bkpy.buffers import Bytes
    from bkpy.client.read.reader import LedgerReader
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.metadata.ledgers.layout import Layout
    from bkpy.storage.losses import Losses

    from .earlier import EarlierBookies
    from .metadata import SimSession
    from .store import SimStore

T = TypeVar("T")

ROOT = "/ledgers"


class Tree(NamedTuple):
    """Where the metadata store has a cluster's ledgers, and how."""

    root: str
    layout: Layout
    codec: type[LedgerMetadata]
    of_bookkeeper: bool = False

    def path_of(self, ledger_id: int) -> str:
        return self.layout.path_of(self.root, ledger_id)

    def name_of(self, ledger_id: int) -> str:
        """What a trace calls the ledger: another cluster may have one of the same id."""
        return f"{ledger_id}@bookkeeper" if self.of_bookkeeper else f"{ledger_id}"


NATIVE = Tree(ROOT, LONG_HIERARCHICAL, LedgerMetadata)
PORT = 3181
DIRECTORIES_MAX = 4
GROWS = 0.15
COLLECTED_WITHIN_S = 500.0  # with a look a second, and many ledgers to look at
HIDDEN_MAX = 100  # looks at a ledger that is hidden

# The bookie that runs. Inherited by all that it does.
_RUNNING: contextvars.ContextVar[Bookie] = contextvars.ContextVar("bookie")
_RECOVERY = int(Flags.RECOVERY)


@contextlib.contextmanager
def watched(storage: type[LedgerStorage], hidden: type[HiddenLedger]) -> Iterator[None]:
    """Meanwhile bookies whose storage is of these classes, of one version, note what they promise."""
    add, fence, delete = storage.add, storage.fence, hidden.delete

    def watched_add(
        storage: LedgerStorage, columns: AddColumns, head: Bytes, body: Bytes, on_durable: Callable[[], None]
    ) -> None:
        """Noting what the bookie is told to be durable, and appends to what it said is fenced."""
        bookie = _RUNNING.get()
        promises = bookie.promises
        late = [] if columns.flags & _RECOVERY else [i for i in columns.ledger_ids if i in bookie.fenced]

        def durable() -> None:
            for i, ledger_id in enumerate(columns.ledger_ids):
                stride = columns.strides if isinstance(columns.strides, int) else columns.strides[i]
                first, count = columns.first_ids[i], columns.counts[i]
                promises[ledger_id].update(range(first, first + count * stride, stride))
            bookie.taken_late.update(late)
            bookie.pending.subtract(columns.ledger_ids)
            on_durable()

        bookie.pending.update(columns.ledger_ids)
        bookie.world.marks[SEVERAL_LEDGERS] += len(set(columns.ledger_ids)) > 1

        add(storage, columns, head, body, durable)

    async def watched_fence(storage: LedgerStorage, ledger_id: int, key: bytes) -> bool:
        """Noting that the bookie may now say that the ledger is fenced."""
        bookie = _RUNNING.get()
        bookie.world.marks[FENCE_RACED_ADD] += bookie.pending[ledger_id] > 0
        bookie.world.marks[FENCE_OF_UNSEEN] += not bookie.promises[ledger_id]
        fenced = await fence(storage, ledger_id, key)
        if fenced:
            bookie.says_fenced(ledger_id, key)
        return fenced

    async def watched_delete(hidden: HiddenLedger) -> bool:
        """Of what nobody needs: then the bookie has promised nothing any more, but its fence."""
        bookie = _RUNNING.get()
        sight = bookie.true_sight(hidden.ledger_id)
        assert sight in (ProbeState.NO_LEDGER, ProbeState.OVER_REPLICATED), (
            f"ledger {hidden.ledger_id} is collected: {sight}"
        )
        promised = bookie.promises.pop(hidden.ledger_id, set())
        deleted = await delete(hidden)
        if deleted:
            bookie.fenced.add(hidden.ledger_id)
            bookie.world.marks[COLLECTED if sight is ProbeState.NO_LEDGER else SPARE_COLLECTED] += 1
            bookie.host.record("collected", f"{bookie.tree.name_of(hidden.ledger_id)} {sight}")
        else:
            bookie.promises[hidden.ledger_id] |= promised
        return deleted

    with (
        patch.object(storage, "add", watched_add),
        patch.object(storage, "fence", watched_fence),
        patch.object(hidden, "delete", watched_delete),
    ):
        yield


@contextlib.contextmanager
def watched_answers() -> Iterator[None]:
    """Meanwhile bookies for BookKeeper's clients note the fences that they answer."""
    fence = ledger_keys.fence

    async def watched_fence(service: BookieService, ledger_id: int, key: bytes) -> Status:
        status = await fence(service, ledger_id, key)
        if status == Status.OK:
            _RUNNING.get().says_fenced(ledger_id, key)
        return status

    with patch.object(reads, "fence", watched_fence):
        yield


class _Defects(logging.Handler):
    """Errors that code under test did not expect, logged, and survived: they fail the run all the same."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not isinstance(error := record.exc_info[1], BookKeeperError):
            self.world.loop.errors.append({"message": record.getMessage(), "exception": error})


@dataclass
class Ledger:
    """What is known of one ledger from outside."""

    password: bytes
    tolerates_one: bool  # whether its writer goes on without one bookie, even if no other can take its place
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    last_entry: int | None = None  # at which it was closed
    failure: BookKeeperError | None = None  # of its writer
    deleted: bool = False


class Bookie:
    """A bookie and the host it runs on. `start` after each death of the host.

    Its directories and its bounds are drawn; `settings` are as given, and with `calm` no bound is drawn.
    """

    def __init__(self, world: World, name: str, *, calm: bool = False, tree: Tree = NATIVE, **settings: Any) -> None:
        self.world = world
        self.tree = tree
        self.host = world.add_host(name)
        rng = world.stream(f"directories-{name}")
        layout = {
            "journal_directories": [f"/data/journal/{i}" for i in range(rng.choice((1, 1, 2, 3)))],
            "ledger_directories": [f"/data/ledgers/{i}" for i in range(rng.choice((1, 2, 3)))],
        }
        bounds = {} if calm else bookie_bounds(world, name)
        self.settings = BookieSettings(
            metadata_uri=f"zk://10.0.0.100:2181{tree.root}",
            listen=f"{self.host.address}:{PORT}",
            bookie_id=name,
            **{**layout, **bounds, **settings},
        )
        self._growth = world.stream(f"growth-{name}")
        self.code: EarlierBookies | None = None  # of the present process; None: today's
        self.node: BookieNode | None = None
        self.session: SimSession | None = None
        self.promises: defaultdict[int, set[int]] = defaultdict(set)
        self.pending: Counter[int] = Counter()  # batches of each ledger that aren't durable yet
        self.fenced: set[int] = set()  # of which it may have said so
        self.next_fence: asyncio.Future[None] = world.loop.create_future()  # done when it may say so of one more
        self.taken_late: set[int] = set()  # where it accepted an append all the same
        self.mends = False  # with an integrity check
        self.grows = GROWS  # how likely a start after the first adds a ledger directory
        self.rebuilds = False  # its directories may be empty
        self.earlier: EarlierBookies | None = None  # whose code runs as long as `earlier_lives` is above 0
        self.earlier_lives = 0
        self.stopped = False  # cleanly, and not started since
        self._inspections = world.stream(f"inspections-{name}")
        self._inspector: SimStore | None = None
        recording = self.host.disk.observer

        def observe(operation: str, path: str) -> None:
            if recording is not None:
                recording(operation, path)
            self._inspect(operation, path)

        self.host.disk.observer = observe

    def begin_with(self, version: EarlierBookies, lives: int) -> None:
        """Its first lives are ones of that version's code."""
        self.earlier, self.earlier_lives = version, lives

    def _inspect(self, operation: str, path: str) -> None:
        """Let a tool open an index between two steps of what a start does to it, and have it open for a while."""
        index, in_index, _ = path.rpartition("/index")
        if not in_index or operation == "commit" or self._inspections.random() < 0.7:
            return
        if self._inspector is not None:
            self._inspector.close()
            self._inspector = None
        disk = self.host.disk
        with contextlib.suppress(FileNotFoundError):  # it is only now made
            stores = SimStores(disk, survives=True)
            self._inspector = stores.open(f"{index}/index", read_only=self._inspections.random() < 0.5)
            self.world.marks[INSPECTED] += disk.exists(f"{index}/index.shrunk")

    def true_sight(self, ledger_id: int) -> ProbeState:
        """What there is to be seen of the ledger in the metadata store now."""
        try:
            value = self.world.metadata.node(self.tree.path_of(ledger_id)).data
        except NoNode:
            return ProbeState.NO_LEDGER
        return probe_state_of(self.tree.codec.decode(ledger_id, value), self.settings.bookie_id)

    def true_key(self, ledger_id: int) -> bytes | None:
        """The key of the ledger in the metadata store now; None if there is no such ledger."""
        try:
            value = self.world.metadata.node(self.tree.path_of(ledger_id)).data
        except NoNode:
            return None
        return self.tree.codec.decode(ledger_id, value).ledger_key

    async def start(self) -> None:
        """Boot the host and return when the bookie serves. It may have got one ledger directory more by then."""
        directories = self.settings.ledger_directories
        if self.host.boots and len(directories) < DIRECTORIES_MAX and self._growth.random() < self.grows:
            more = [*directories, f"/data/ledgers/{len(directories)}"]
            self.settings = self.settings.model_copy(update={"ledger_directories": more})
            self.host.record("ledger directories", str(len(more)))
            self.world.marks[DIRECTORY_ADDED] += 1
        self.host.boot()
        self.stopped = False
        self.pending.clear()
        self.code = self.earlier if self.earlier_lives > 0 else None
        self.earlier_lives -= 1
        if self.code is not None:
            self.host.record("runs the code of", self.code.version)
        started = self.world.loop.create_future()
        life = self.host.start(self._live(started), name="bookie")
        await asyncio.wait((started, life), return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            life.result()  # raises what the start has raised

    async def _live(self, started: asyncio.Future[None]) -> None:
        """The process: it serves until its storage fails, and then exits."""
        _RUNNING.set(self)
        self.session = self.host.session()
        self.node = node = self._new_node(self.session)
        await node.start()
        if not started.done():
            started.set_result(None)
        try:
            await node.failed
        except BookKeeperError as error:
            self.host.record("gave up", type(error).__name__)
            self.world.loop.call_soon(self._exit, self.host.boots, context=self.world.loop.outside)

    def _new_node(self, session: SimSession) -> BookieNode:
        if self.code is None:
            kinds, settings = (BookieNode, IntegrityCheck), self.settings
        else:
            kinds, settings = self.code.kinds, self.code.settings(self.settings)
        new_node, new_check = kinds
        runtime, root = self.host.runtime, self.tree.root

        def check(losses: Losses, registry: CollectorRegistry) -> IntegrityCheck:
            return new_check(settings, session, root, runtime, settings.bookie_id, losses, registry)

        return new_node(
            settings, session, root, runtime, integrity_checker=check if self.mends else None, rebuild=self.rebuilds
        )

    def _exit(self, boot: int) -> None:
        if self.host.up and self.host.boots == boot:
            self.host.crash()

    def says_fenced(self, ledger_id: int, key: bytes) -> None:
        """It may now say that the ledger is fenced."""
        if key == self.true_key(ledger_id):  # a stranger's fence gives way
            self.fenced.add(ledger_id)
            said, self.next_fence = self.next_fence, self.world.loop.create_future()
            said.set_result(None)

    async def forgotten_fences(self) -> list[int]:
        """The ledgers that it said are fenced, and that it would take appends to again."""

        async def look() -> list[int]:
            storage = storage_of(node)
            found = []
            for ledger_id in sorted(self.fenced):
                info = await storage.looked_up(ledger_id)
                kept = await storage.ledgers.has_tombstone(ledger_id) if info is None else info.fenced
                found += [] if kept else [ledger_id]
            return found

        node = self.node
        assert node is not None
        return await self.host.start(look())

    async def held(self) -> list[int]:
        """The ledgers that it has something of."""
        assert self.node is not None
        return await self.host.start(storage_of(self.node).held_ledgers(-1, 1 << 20))

    async def stop(self) -> None:
        """A clean stop, as on SIGTERM; then the process ends."""
        assert self.node is not None
        assert self.session is not None
        await self.host.start(self.node.stop())
        await self.host.start(self.session.close())
        self.host.crash()
        self.stopped = True


class Cluster:
    """`bookies` bookies and one client on a host of its own, all on one seed."""

    tree = NATIVE

    def __init__(
        self, seed: int, *, bookies: int = 3, world: World | None = None, calm: bool = False, **settings: Any
    ) -> None:
        self.world = world or World(seed)
        self.calm = calm  # no bounds are drawn, of nobody
        self.rng = self.world.stream("workload")
        self.client_host: Host = self.world.add_host("client")
        self.bookies = [Bookie(self.world, f"bookie-{i}", calm=calm, **settings) for i in range(1, bookies + 1)]
        self.ledgers: dict[int, Ledger] = {}
        self.created = asyncio.Semaphore(0)  # released for each ledger

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        with (
            self._noting_defects(),
            observed(self.world),
            self._small_files(opening, flush),
            watched(LedgerStorage, HiddenLedger),
            watched_answers(),
            self._of_earlier_version(),
        ):
            return self.world.run(main)

    @property
    def _earlier_versions(self) -> Iterable[EarlierBookies]:
        return dict.fromkeys(bookie.earlier for bookie in self.bookies if bookie.earlier is not None)

    @contextlib.contextmanager
    def _noting_defects(self) -> Iterator[None]:
        """Meanwhile what the code of any version logs, and did not expect, fails the run."""
        defects = _Defects(self.world)
        logs = [logging.getLogger("bkpy"), *(version.log for version in self._earlier_versions)]
        for log in logs:
            log.addHandler(defects)
        try:
            yield
        finally:
            for log in logs:
                log.removeHandler(defects)

    @contextlib.contextmanager
    def _small_files(self, *modules: Any) -> Iterator[None]:
        """What is set in MiB is in smaller units, but for some runs: no run writes enough to fill many files."""
        unit = KIB << self.world.stream("unit").choice((3, 6, 10))
        with contextlib.ExitStack() as stack:
            for module in modules:
                stack.enter_context(patch.object(module, "MIB", unit))
            yield

    @contextlib.contextmanager
    def _of_earlier_version(self) -> Iterator[None]:
        """The same for bookies that begin with an earlier version's code."""
        with contextlib.ExitStack() as stack:
            for version in self._earlier_versions:
                stack.enter_context(self._small_files(*version.sized))
                stack.enter_context(watched(version.storage, version.hidden))
            yield

    async def start(self) -> None:
        self.client_host.boot()
        await self.client_host.start(init_cluster(self.client_host.session(), ROOT))
        await asyncio.gather(*(bookie.start() for bookie in self.bookies))

    async def connect(
        self, host: Host, *, calm: bool = False, store: SimSession | None = None, **settings: Any
    ) -> Client:
        """A client with a session of its own. To be used in its host. `calm`: with no bounds drawn."""
        bounds = {} if calm or self.calm else client_bounds(self.world, host.name)
        self.world.marks[WINDOW_OF_ONE] += bounds.get("write_window_entries") == 1
        return await open_client(
            store or host.session(),
            self.tree.root,
            host.runtime,
            client_settings(**{"add_timeout_s": 5.0, "read_timeout_s": 20.0, **bounds, **settings}),
            owns_store=True,
            of_bookkeeper=self.tree.of_bookkeeper,
        )

    @contextlib.asynccontextmanager
    async def client(self, host: Host | None = None, *, calm: bool = False, **settings: Any) -> AsyncIterator[Client]:
        """The same, closed in the end; by default on the client's host."""
        client = await self.connect(host or self.client_host, calm=calm, **settings)
        try:
            yield client
        finally:
            await client.close()

    # --- writing ------------------------------------------------------------------------------------------------------

    async def write_ledger(self, client: Client, entries: int, sizes: tuple[int, int, int], **options: Any) -> int:
        """Create a ledger, append in every way there is, and close it; returns its id.

        A writer that fails for lack of bookies is closed behind what it was promised, as a user would.
        """
        ensemble_size, write_quorum, ack_quorum = sizes
        writer = await client.create_ledger(
            ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum, **options
        )
        ledger = self.ledgers[writer.ledger_id] = Ledger(options.get("password", b""), ack_quorum < write_quorum)
        self._note("created", writer)
        self.created.release()
        try:
            while writer.last_add_confirmed < entries - 1:
                await self._append_some(writer, ledger)
                # Now and then long enough for an idle writer to publish its last add confirmed.
                await asyncio.sleep(self.rng.random() * (0.5 if self.rng.random() < 0.1 else 0.02))
            await writer.flush()
        except BookKeeperError as error:
            self._note("append failed", writer, type(error).__name__)
            ledger.failure = error
        await writer.close()
        ledger.last_entry = writer.last_add_confirmed
        self._note("closed", writer, str(ledger.last_entry))
        return writer.ledger_id

    async def _append_some(self, writer: LedgerWriter, ledger: Ledger) -> None:
        rng = self.rng
        way = rng.randrange(3)
        if way == 0:
            await self._acknowledged(writer, ledger, [_payload(rng)])
        elif way == 1:
            batch = [_payload(rng) for _ in range(rng.randrange(1, 40))]
            await self._acknowledged(writer, ledger, batch)
        else:
            pending = []
            for data in [_payload(rng) for _ in range(rng.randrange(30))]:
                with contextlib.suppress(WouldBlock):
                    pending.append((data, writer.append_nowait(data)))
            for data, future in pending:
                self._promised(writer, ledger, await future, data)

    async def _acknowledged(self, writer: LedgerWriter, ledger: Ledger, payloads: list[bytes]) -> None:
        if len(payloads) == 1:
            self._promised(writer, ledger, await writer.append(payloads[0]), payloads[0])
            return
        for entry_id, data in zip(await writer.append_batch(payloads), payloads, strict=True):
            self._promised(writer, ledger, entry_id, data)

    def _promised(self, writer: LedgerWriter, ledger: Ledger, entry_id: int, data: bytes) -> None:
        assert entry_id not in ledger.acknowledged, f"entry {entry_id} of {writer!r} was acknowledged twice"
        assert entry_id <= writer.last_add_confirmed, f"entry {entry_id} of {writer!r} was acknowledged too early"
        ledger.acknowledged[entry_id] = data
        self._note("acknowledged", writer, f"{entry_id} {zlib.crc32(data):08x}")

    def _note(self, what: str, writer: LedgerWriter, detail: str = "") -> None:
        self.client_host.record(what, f"{writer.ledger_id} {detail}")

    # --- reading back -----------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Read everything back through a new client, and from each bookie by itself what that one has promised."""
        async with self.client(calm=True) as client:
            for ledger_id, ledger in self.ledgers.items():
                if ledger.deleted:
                    continue
                reader = await client.open_ledger(ledger_id, password=ledger.password)
                await self._check_ledger(reader, ledger)
                for bookie in self.bookies:
                    if bookie.host.up:
                        await check_bookie(reader, ledger.acknowledged, bookie)
                await reader.close()

    async def check_deleted(self) -> None:
        """What was deleted goes from all bookies, which have to be up, and none has taken what it had to refuse."""
        deleted = {ledger_id for ledger_id, ledger in self.ledgers.items() if ledger.deleted}
        try:
            async with asyncio.timeout(COLLECTED_WITHIN_S):
                for bookie in self.bookies:
                    while left := deleted.intersection(await bookie.held()):
                        await asyncio.sleep(0.5)
        except TimeoutError:
            raise AssertionError(f"{bookie.host.name} still has {sorted(left)}, which were deleted") from None
        for bookie in self.bookies:
            assert not bookie.taken_late, f"{bookie.host.name} took appends to {bookie.taken_late}, which it had fenced"
            for ledger_id in deleted:
                assert bookie.true_sight(ledger_id) is ProbeState.NO_LEDGER

    async def _check_ledger(self, reader: LedgerReader, ledger: Ledger) -> None:
        """The ledger has every id once, and each acknowledged one with the bytes that were appended."""
        assert reader.closed
        assert reader.last_add_confirmed == ledger.last_entry
        found = [entry async for entry in reader.read()]
        self.client_host.record("read", f"{reader.ledger_id} {len(found)}")
        assert [entry.entry_id for entry in found] == list(range(reader.last_add_confirmed + 1))
        for entry_id, data in ledger.acknowledged.items():
            assert found[entry_id].data == data, f"entry {entry_id} of ledger {reader.ledger_id}"

    async def check_with_one_down(self, bookie: Bookie) -> None:
        """The loss of one bookie hides nothing."""
        bookie.host.crash()
        await self.client_host.start(self.check())
        await bookie.start()


async def check_bookie(reader: LedgerReader, acknowledged: Mapping[int, bytes], bookie: Bookie) -> None:
    """The bookie has every entry that it acknowledged, and has taken no append to what it had fenced.

    A `BookKeeperError` if it can't be asked now.
    """
    for _ in range(HIDDEN_MAX):
        promised = set(bookie.promises[reader.ledger_id])  # it may promise more meanwhile
        held = await held_by(reader, acknowledged, bookie, max(promised, default=-1))
        if held is not None:
            break
        assert bookie.true_sight(reader.ledger_id) is ProbeState.OVER_REPLICATED, (
            f"{bookie.host.name} can't tell what it has"
        )
        await asyncio.sleep(0.1)  # it is hidden while the bookie makes sure that nobody needs it
    assert held is not None
    lost = sorted(promised & bookie.promises[reader.ledger_id] - held)
    assert not lost, f"{bookie.host.name} acknowledged and lost {lost} of ledger {reader.ledger_id}"
    assert reader.ledger_id not in bookie.taken_late, f"{bookie.host.name} took an append to a ledger it had fenced"


async def held_by(
    reader: LedgerReader,
    acknowledged: Mapping[int, bytes],
    bookie: Bookie,
    last: int,
    *,
    in_limbo: bool = False,
    unknown: set[int] | None = None,
) -> set[int] | None:
    """What the bookie has up to entry `last`; None if it can't tell. With `in_limbo`, what it returns all the same.

    `unknown` gets what it neither has nor denies.
    """
    held: set[int] = set()
    first = 0
    while first <= last:
        head = pack([0, reader.ledger_id, first, last, settings_of(reader).read_bytes])
        channel = pool_of(reader).channel(bookie.settings.bookie_id)
        frame = await channel.call(Op.READ, head, timeout_s=settings_of(reader).read_timeout_s)
        status = reply_status(frame.head)
        if status == Status.NO_SUCH_LEDGER:
            return held
        if status != Status.OK:
            raise error_of(status, ledger_id=reader.ledger_id, bookie=bookie.host.name)
        reply, view = decode_read_reply(frame.head), bytes(frame.body)
        if reply.unknown and not in_limbo:
            return None
        if unknown is not None:
            unknown.update(n for low, high in reply.unknown for n in range(low, min(high, last) + 1))
        for header in walk(view):
            data = view[header.offset + HEADER_BYTES : header.end]
            assert data == acknowledged.get(header.entry_id, data)
            held.add(header.entry_id)
        first = reply.examined_to + 1
    return held


def _payload(rng: Random) -> bytes:
    size = rng.choice((0, 1, 100, 1000, 1000, 5000))
    return rng.randbytes(rng.randrange(size + 1))
