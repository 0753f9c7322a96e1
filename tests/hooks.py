"""What tests look at, or take hold of, inside of objects: all in one place, so that their parts may be arranged anew.

No other test knows a private name of the code (`tests/unit/test_hooks_only.py`). What a user, an operator or a peer can
see is asserted there and not through these.
"""

from __future__ import annotations

import contextlib
from threading import enumerate as enumerate_threads
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bkpy.bookie.collector import Collector
from bkpy.bookie.node import Listening, Serving
from bkpy.bookie.reloading import SettingsReload
from bkpy.client.bookies.channel import BookieChannel
from bkpy.client.write.leaving import Leaving
from bkpy.client.write.replication import Replication
from bkpy.dashboard import watching
from bkpy.local import process, zookeeper
from bkpy.log.opening import Opening
from bkpy.log.rolling import Roller
from bkpy.metadata.bookies.naming import NamingScan
from bkpy.recovery.ledger_recovery import LedgerRecovery
from bkpy.replication.integrity import IntegrityCheck
from bkpy.runtime import background, metrics_page
from bkpy.runtime.process import TaskSpawner
from bkpy.storage.engine import LedgerStorage
from bkpy.storage.journal.journal import JournalWriter

if TYPE_CHECKING:
    import asyncio
    import threading
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence

    import pytest

    from bkpy.admin.cluster_health import ClusterView
    from bkpy.blocking.base import ClientThread
    from bkpy.blocking.calls import BlockingClient
    from bkpy.bookie.connection.add_handler import AddHandler
    from bkpy.bookie.connection.chunks import BookieChunks
    from bkpy.bookie.connection.connection import Connection
    from bkpy.bookie.connection.keys import Keys
    from bkpy.bookie.node import BookieNode, Phase
    from bkpy.bookie.server import BookieServer
    from bkpy.bookie.service import BookieService
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.client.client import Client
    from bkpy.client.read.reader import LedgerReader
    from bkpy.client.write.append_window import AppendWindow
    from bkpy.client.write.out_of_order import OutOfOrder
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.config.bookie import BookieSettings
    from bkpy.config.client import ClientSettings
    from bkpy.errors import BookKeeperError
    from bkpy.local.zookeeper import ZooKeeperServer
    from bkpy.log.entries import LogBlock
    from bkpy.log.reader import LogReader
    from bkpy.log.writer import LogWriter
    from bkpy.metadata.bookies.registration import Registration
    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.metadata.ledgers.layout import IdGenerator
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.metadata.store.zookeeper.session import Session
    from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.wire.receive_buffer import ReceiveBuffer
    from bkpy.protocol.wire.records import RecordCodec
    from bkpy.replication.worker.repair_queue import RepairQueue
    from bkpy.runtime.interfaces import Worker
    from bkpy.runtime.threadsafe import BlockingIterator
    from bkpy.runtime.tls import Certificates
    from bkpy.spark.lock import TargetLock
    from bkpy.storage.entry_log.entry_log import BlockReader, BlockWriter
    from bkpy.storage.journal.journal import Journal
    from bkpy.storage.ledgers.info import LedgerCache
    from bkpy.storage.ledgers.ledgers import Ledgers
    from bkpy.storage.replay import Replay
    from bkpy.storage.shard import Shard
    from bkpy.storage.space.compaction import Compactor

P = TypeVar("P", bound="Phase")
Method = tuple[type, str]  # as `getattr`, `monkeypatch.setattr` and `patch.object` take it

# --- the client ---------------------------------------------------------------------------------------------------


def taking_in(writer: LedgerWriter, bookie_ids: Iterable[str]) -> Coroutine[Any, Any, None]:
    """What the writer does when bookies come that were absent when its ledger was created."""
    replication = writer._replication
    replication._come = replication.absent.intersection(bookie_ids)
    return replication._take_in_arrived()


def pool_of(user: Client | LedgerReader) -> BookiePool:
    """Its channels to bookies."""
    return user._pool


def cluster_of(client: Client) -> Cluster:
    """The metadata of the client's cluster."""
    return client._cluster


def settings_of(user: Client | LedgerReader) -> ClientSettings:
    """The settings it goes by."""
    return user._settings


def tasks_of(part: Client | BookieNode) -> list[asyncio.Task[Any]]:
    """The tasks that it has started and that have not ended."""
    spawn = part._runtime.spawn
    assert isinstance(spawn, TaskSpawner)
    return list(spawn.tasks)


def publishing(client: Client) -> bool:
    """Whether a bookie is still to be told how far a ledger may be read."""
    return bool(client._publisher._waiting)


def tails_of(reader: LedgerReader) -> int:
    """How many iterations tail with the reader."""
    return len(reader._tails)


# --- the client's channels to bookies -----------------------------------------------------------------------------

CHANNEL_SEND: Final[Method] = (BookieChannel, "_send")
CHANNEL_CAME_UP: Final[Method] = (BookieChannel, "_came_up")


def channels_of(client: Client) -> Mapping[str, BookieChannel]:
    """The channels that were made so far, by bookie."""
    return client._pool._channels


def keys_of(client: Client) -> Mapping[int, bytes]:
    """The keys that the client can present, by ledger."""
    return client._pool._keys


def unanswered_adds(channel: BookieChannel) -> int:
    """How many ADD frames the bookie has yet to answer."""
    return len(channel._adds)


def unanswered_calls(channel: BookieChannel) -> int:
    """How many other requests the bookie has yet to answer."""
    return len(channel._calls)


def owed_bytes(channel: BookieChannel) -> int:
    """Bytes of ADD frames that the bookie has yet to answer."""
    return channel.in_flight_bytes


def free_slots(channel: BookieChannel) -> int:
    """How many requests more may be in flight."""
    return channel.slots._value


def attempts(channel: BookieChannel) -> int:
    """How often the bookie was dialled."""
    return channel._attempts


def presented_to(channel: BookieChannel) -> set[int]:
    """The ledgers whose keys the bookie was shown by this connection."""
    return channel._presented


def present_keys(channel: BookieChannel, ledger_ids: set[int]) -> None:
    """Show the bookie the keys of these ledgers, as far as it wasn't."""
    channel._present(ledger_ids)


def transport_of(channel: BookieChannel) -> asyncio.Transport:
    """The connection that is up."""
    return channel._transport()


def look_up_by(channel: BookieChannel, address: Callable[[str], Awaitable[str]]) -> Callable[[str], Awaitable[str]]:
    """Let `address` say where the bookie is from now on; what has said so before."""
    before, channel._address = channel._address, address
    return before


# --- logs -----------------------------------------------------------------------------------------------------------


ADD_TO_LIST: Final[Method] = (Roller, "_add")
ATTEMPT_TO_OPEN: Final[Method] = (Opening, "_attempt")


def steps_of_tail(reader: LogReader, first: int) -> AsyncGenerator[LogBlock, None]:
    """What a log's tail does, in the task of the caller."""
    return reader._tail_blocks(first)


def roller_of(log: LogWriter) -> Roller:
    """What rolls the log."""
    return log._roller


def present_of(log: LogWriter) -> LedgerWriter:
    """The writer of the ledger that appends go to now."""
    return log._roller._present


def former_of(log: LogWriter) -> LedgerWriter | None:
    """The writer of the ledger before, until that is CLOSED."""
    return log._roller._former


# --- the client's writers -----------------------------------------------------------------------------------------

LOOK_FOR_LEAVERS: Final[Method] = (Leaving, "_look")
NEXT_PAUSE: Final[Method] = (Replication, "_next_pause")


def codec_of(writer: LedgerWriter) -> RecordCodec:
    """What makes the records of the writer's ledger."""
    return writer._batcher._codec


def out_of_order_of(writer: LedgerWriter) -> OutOfOrder:
    """The entries of caller-chosen ids that wait for others."""
    assert writer._appends.ids is not None
    return writer._appends.ids


def window_of(writer: LedgerWriter) -> AppendWindow:
    """The window that the writer's appends wait for."""
    return writer._window


def failed_bookies(writer: LedgerWriter) -> Mapping[str, BookKeeperError]:
    """The bookies of the present ensemble that have failed, and how."""
    return writer._replication._failed


def batch_queues(writer: LedgerWriter) -> tuple[Any, Any]:
    """Where the writer keeps batches that are not confirmed: for those who append, and for those who send."""
    return writer._batcher._batches, writer._replication.acks._queue


def is_held(client: Client, writer: LedgerWriter) -> bool:
    """Whether the writer waits for a bookie to owe less."""
    return writer._replication in client._dispatcher._held


# --- recovery -----------------------------------------------------------------------------------------------------

WAIT_FOR_MOVERS: Final[Method] = (NamingScan, "wait_for_movers")
FENCE: Final[Method] = (LedgerRecovery, "_fence")
FETCH: Final[Method] = (LedgerRecovery, "_fetch")


def metadata_of(recovery: LedgerRecovery) -> LedgerMetadata:
    """The ledger's metadata, as the recovery last stored or found them."""
    return recovery._metadata


def go_by(recovery: LedgerRecovery, metadata: LedgerMetadata) -> None:
    """Let the recovery take these for the ledger's metadata."""
    recovery._metadata = metadata


# --- the bookie ---------------------------------------------------------------------------------------------------


def _phase_of(node: BookieNode, kind: type[P]) -> P:
    phase = node._phase(kind)
    assert phase is not None, "the bookie has not started, or has ended"
    return phase


def has_storage(node: BookieNode) -> bool:
    """Whether the bookie has opened its storage, and has not closed it."""
    return node._phase(LedgerStorage) is not None


def is_serving(node: BookieNode) -> bool:
    """Whether the bookie has started, and has not ended."""
    return node._phase(Serving) is not None


def has_mender(node: BookieNode) -> bool:
    """Whether the bookie serves, and restores lost entries: one that must not write does not."""
    serving = node._phase(Serving)
    return serving is not None and any(isinstance(each, IntegrityCheck) for each in serving._replication)


def mender_of(node: BookieNode) -> IntegrityCheck:
    """What restores the bookie's lost entries; it was made with one."""
    return next(each for each in _phase_of(node, Serving)._replication if isinstance(each, IntegrityCheck))


async def in_limbo(node: BookieNode) -> set[int]:
    """Ledgers of which what restores lost entries has yet to make sure that the bookie has all."""
    return await mender_of(node)._losses.in_limbo()


def reload_with(node: BookieNode, given: BookieSettings) -> None:
    """Reload the bookie's settings: the files now say these."""
    node._reloading = SettingsReload(node.settings, lambda: given)
    node.read_again()


def added_to(node: BookieNode) -> Callable[[], tuple[float, float]]:
    """Counts the entries and bytes that the bookie has accepted."""
    return node._metrics.added


def storage_of(node: BookieNode) -> LedgerStorage:
    """The storage of a bookie that was started."""
    return _phase_of(node, LedgerStorage)


def storage_of_adds(handler: AddHandler) -> LedgerStorage:
    """Where the adds of a connection are stored."""
    return handler._storage


def collector_of(node: BookieNode) -> Collector:
    """What collects on the bookie."""
    return next(each for each in _phase_of(node, Serving)._services if isinstance(each, Collector))


def server_of(node: BookieNode) -> BookieServer:
    """What listens, of a bookie that was started."""
    return _phase_of(node, Listening).server


def service_of(node: BookieNode) -> BookieService:
    """What its connections share, of a bookie that was started."""
    return _phase_of(node, Listening).service


def store_of(node: BookieNode) -> MetadataStore:
    """The bookie's session with the metadata store."""
    return node._store


def connections_of(node: BookieNode) -> list[Connection]:
    """The connections that the bookie has accepted, in order of arrival."""
    return list(server_of(node)._connections)


def certificates_of(node: BookieNode) -> Certificates:
    """What a bookie with TLS has that was started."""
    certificates = _phase_of(node, Listening).credentials.certificates
    assert certificates is not None
    return certificates


def handshakes_of(server: BookieServer) -> Mapping[Any, Any]:
    """The TLS handshakes that go on."""
    assert server._handshakes is not None
    return server._handshakes._shaking_hands._under_way


def pauses_of(connection: Connection) -> set[str]:
    """Why the bookie doesn't read from it."""
    return connection._pauses


def accepted_transport(connection: Connection) -> asyncio.Transport:
    """The bookie's end of a connection that is up."""
    assert connection._transport is not None
    return connection._transport


def takes_answers(connection: Connection) -> bool:
    """Whether the client reads what it is answered."""
    return connection.requests.answers._writable.is_set()


def keys_max(keys: Keys) -> int:
    """How many of them are kept."""
    return keys._ledgers_max


def chunk_bytes(buffer: ReceiveBuffer) -> int:
    """Bytes of the memory that the connection receives into."""
    return len(buffer._chunk)


def handed_out(chunks: BookieChunks) -> int:
    """How many pieces of memory are taken for used."""
    return len(chunks._out)


# --- storage ------------------------------------------------------------------------------------------------------

GROWN: Final[Method] = (LedgerStorage, "_grown")
TAKE_FILE: Final[Method] = (JournalWriter, "_take_file")

LOOK_UP: Final = "_look_up"
READ_STEPS: Final = (LOOK_UP, "_blocks", "_verify")  # methods of a shard, in the order in which a read takes them


def target_of(compactor: Compactor) -> BlockWriter | None:
    """The log that compaction fills, if it has begun one."""
    return compactor._target


def was_closed(storage: LedgerStorage) -> bool:
    """Whether the storage was closed."""
    return storage._closed


def journal_worker(journal: Journal) -> Worker:
    """The worker that writes the journal."""
    return journal._worker


def journal_writer(journal: Journal) -> JournalWriter:
    """What writes the journal's frames, on its worker."""
    return journal._writer


def can_recycle(writer: JournalWriter) -> bool:
    """Whether the next journal file can be an old one."""
    return any(own for _, own in writer._old)


def flush_worker(shard: Shard) -> Worker:
    """The worker that writes the shard's checkpoints."""
    return shard._flush_worker


def read_worker(shard: Shard) -> Worker:
    """The worker that reads the shard's index and blocks."""
    return shard._read_worker


def log_reader_of(shard: Shard) -> BlockReader:
    """What reads blocks of the shard's entry logs."""
    return shard._reader


def open_logs(shard: Shard) -> int:
    """How many entry logs are open for reading."""
    return len(shard._reader._open)


def ledgers_of(replay: Replay) -> Ledgers:
    """What is replayed into."""
    return replay._ledgers


def cache_of(ledgers: Ledgers) -> LedgerCache:
    """The states that are in memory."""
    return ledgers._cache


def elsewhere(ledgers: Ledgers) -> set[int]:
    """The ledgers that are known to be in another shard than that of their id."""
    return set(ledgers._shard_overrides)


def states_max(cache: LedgerCache) -> int:
    """How many states are kept in memory if no more are needed."""
    return cache._infos_max


def loading_of(ledgers: Ledgers) -> asyncio.Lock:
    """Held by whoever loads states."""
    return ledgers._loading


async def load_states(ledgers: Ledgers, ledger_ids: set[int]) -> None:
    """Look these up on the disk, for whoever holds `loading_of`."""
    await ledgers._load(ledger_ids)


def take_for_unseen(ledgers: Ledgers, ledger_id: int) -> None:
    """As if the last load had found no trace of the ledger."""
    ledgers._unseen.add(ledger_id)


# --- metadata -----------------------------------------------------------------------------------------------------


def id_generator_of(catalog: LedgerCatalog) -> IdGenerator:
    """Where the ids of new ledgers come from."""
    return catalog._new_ids


async def publish(registration: Registration) -> None:
    """One attempt to bring the bookie's node up to date, and none to keep it so."""
    await registration._publish()


def lose_events(tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store in memory tells nobody of changes any more."""
    monkeypatch.setattr(tree, "_wake", lambda path, children: None)


def session_of(store: ZooKeeperStore) -> Session:
    """The store's session with ZooKeeper."""
    return store._session


def session_password(store: ZooKeeperStore) -> bytes:
    """With which, and the session's id, anybody may take the session over."""
    return store._session._password


def present_later(store: ZooKeeperStore, auth: Iterable[tuple[str, bytes]]) -> None:
    """The credentials that are presented from the next connection on."""
    store._session._auth = tuple(auth)


def try_first(store: ZooKeeperStore, port: int) -> None:
    """Connect to this one of the servers before all others."""
    store._session._hosts.sort(key=lambda host: host[1] != port)


def take_failure(store: ZooKeeperStore) -> str:
    """Why the last server that was tried could not be used, if this is news."""
    failure, store._session._last_failure = store._session._last_failure, ""
    return failure


def pretend_seen(store: ZooKeeperStore, zxid: int) -> int:
    """As if a server had shown the session this transaction; the newest that one has."""
    before, store._session._last_zxid = store._session._last_zxid, zxid
    return before


# --- processes ----------------------------------------------------------------------------------------------------

_USUAL_SPAWNER: Final = process._spawner


def change_members(server: ZooKeeperServer, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines that list all servers of an ensemble for this one, from its next start on."""
    assert server._membership is not None
    lines = change(server._membership.members.splitlines())
    server._membership = server._membership._replace(members="".join(f"{line}\n" for line in lines))


@contextlib.contextmanager
def children_started_by(start: Callable[..., Any] | None) -> Iterator[Callable[..., Any]]:
    """Meanwhile `start` starts the children of this process, those for which it gives None apart.

    It is given the command, the log file, the environment and the descriptors to inherit. Without it, all children are
    started as they are for users, which is what the function does that the block gets.
    """

    class Spawner:
        def popen(self, command: Sequence[str], **attributes: Any) -> Any:
            return (start and start(command, **attributes)) or _USUAL_SPAWNER.popen(command, **attributes)

    before, process._spawner = process._spawner, Spawner()  # type: ignore[assignment]
    try:
        yield _USUAL_SPAWNER.popen
    finally:
        process._spawner = before


def java_of_zookeepers() -> tuple[tuple[str, ...], str]:
    """The options and the class path with which this process starts ZooKeepers."""
    return zookeeper._JVM_OPTIONS, zookeeper._classpath()


@contextlib.contextmanager
def zookeepers_with(*options: str) -> Iterator[None]:
    """Meanwhile the ZooKeepers that this process starts are given further options of Java."""
    before = zookeeper._JVM_OPTIONS
    zookeeper._JVM_OPTIONS = (*before, *options)  # type: ignore[assignment]
    try:
        yield
    finally:
        zookeeper._JVM_OPTIONS = before


def open_logs_of(shard: Shard) -> set[int]:
    """The ids of logs without a row: the one that is being filled, and journal files in which more may come to stay."""
    return shard._kept_files.open | (set() if shard._log is None else {shard._log.log_id})


def without_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process had no Java process of Spark's."""
    from bkpy.spark import jvm  # which only the tests of Spark have

    monkeypatch.setattr(jvm, "_running", None)


def heap_of(queue: RepairQueue) -> Sequence[object]:
    """What the worker's queue holds to be in order."""
    return [*queue._untried._heap, *queue._failed._heap]


def threads_with_loops() -> set[threading.Thread]:
    """Of this process: those whose event loop works between calls of other threads."""
    return {thread for thread in enumerate_threads() if getattr(thread, "_target", None) is background._run}


# --- the dashboard --------------------------------------------------------------------------------------------------


def dashboard_changes(before: ClusterView, now: ClusterView) -> list[tuple[str, str]]:
    """The events between two looks."""
    return list(watching._changes(*(watching._Look(view, 0.0, watching.assess(view)) for view in (before, now))))


dashboard_rate = watching._rate
dashboard_p99_ms = watching._p99_ms


def wait_for_bodies(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Of pages over HTTP."""
    monkeypatch.setattr(metrics_page, "_BODY_S", seconds)


def linger_over_bodies(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """HTTP servers take the rest of a body that they don't read for so long."""
    monkeypatch.setattr(metrics_page, "_LINGER_S", seconds)


def thread_of(client: BlockingClient) -> ClientThread:
    """The thread of a blocking client, with the client itself."""
    return client._thread


def is_waited_for(iterator: BlockingIterator[Any]) -> bool:
    """Whether a thread waits for the iterator's next element."""
    return iterator._fetching.locked()


def lose_lock(lock: TargetLock) -> None:
    """An export's lock, as if its session had ended."""
    lock._lose()
