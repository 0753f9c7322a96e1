"""Coverage marks: what happened in a run, of what a suite of runs has to go through to prove anything.

They are counted in `World.marks`, from outside: production code is watched, and doesn't know of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bkpy.bookie.connection.keys import Keys
from bkpy.bookie.connection.waiters import Waiters
from bkpy.metadata.ledgers.catalog import LedgerCatalog
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.metadata.store import resolve
from bkpy.metadata.store.outcome import Unknown
from bkpy.storage import replay
from bkpy.storage.checkpoint import flush
from bkpy.storage.journal.journal import Journal
from bkpy.storage.ledgers.info import LedgerCache
from bkpy.storage.ledgers.ledgers import Ledgers
from bkpy.storage.replay import Replay
from bkpy.storage.scrub.damages import DamageList
from tests.hooks import GROWN, TAKE_FILE, can_recycle, keys_max, ledgers_of, states_max

if TYPE_CHECKING:
    from bkpy.storage.tools.check.defects import Defect

    from .world import World

EVICTED = "a state was evicted during a request"
MEMORY_FULL = "memory was full"
QUEUE_FULL = "a journal's queue was full"
KEYS_FORGOTTEN = "keys were forgotten"
WINDOW_OF_ONE = "a writer had a window of one entry"
SEVERAL_LEDGERS = "a frame held several ledgers"
FENCE_RACED_ADD = "a fence raced an append"
FENCE_OF_UNSEEN = "a ledger was fenced where it has no entries"
CHANGED_IN_RECOVERY = "the ensemble was changed in a recovery"
TORN_TAIL = "a torn tail was cut"
SHARDS_APART = "checkpoints of a bookie's directories were apart at its start"
DIRECTORY_ADDED = "a ledger directory was added"
FILE_RECYCLED = "a journal file was recycled"
BATCH_KEPT = "a batch stayed in its journal file"
COLLECTED = "a deleted ledger was collected"
SPARE_COLLECTED = "a spare copy was collected"
ZOMBIE_REFUSED = "a writer of a collected ledger was refused"
MOVED_COPY = "a copy was moved to another bookie"
LONG_POLL = "a bookie was polled for news"
DOUBT_RESOLVED = "a change in doubt was read back"
DOUBT_STAYED = "a change stayed in doubt"
SCRUBBED = "a round of the scrub came to its end"
LIMBO = "a bookie put everything in limbo"
CUT_SHORT_REFUSED = "a recovery refused to end a ledger where bookies couldn't tell"
REPLICATED = "what a lost bookie had was copied"
WORKER_DIED = "a replication worker died"
REBUILT = "a bookie came back with empty disks"
REBUILT_FROM_PARTS = "a bookie came back with a part of what it had"
RETIRED = "a bookie was drained and decommissioned"
FORMATTED_ANEW = "a bookie was formatted, and started anew under its id"
RECOVERED_BY_HAND = "a ledger of a lost bookie was copied by hand"
CHECKED_BY_HAND = "a bookie looked through its ledgers when it was told to"
FORMAT_REFUSED = "a bookie was not formatted, as a ledger might need it"
COOKIE_LOST = "a lost bookie had no cookie any more"
DRAIN_CANCELLED = "a drain was cancelled"
LOG_TAKEN = "a log got another writer"
LOG_FENCED = "a log's writer learnt that there is another one"
LOG_ROLLED = "a log rolled"
LOG_TRUNCATED = "a log was truncated"
LOG_FULL = "a client found no room in the list of a log"
LOG_PAGED = "ledgers of a log went into a page of its list"
LOG_DESCENDED = "a page of a log's list was read"
LOG_PAGE_DROPPED = "a page of a log's list was deleted"
LOG_REPEATED = "an append with a number was repeated"
LOG_FORGOTTEN = "a log had forgotten a producer"
LOG_LOST = "what a log's open ledger had was given up"
LOG_DELETED = "a log was deleted while it was written"
LEASE_TAKEN = "a client took the lease of a consumer"
LEASE_LOST = "a client that had lost its lease was refused a commit"
CONSUMER_EXPIRED = "retention went on without a consumer that was idle"
LOSS_ACCEPTED = "a loss was accepted"
STRANGER_FIRST = "a stranger was the first to fence a ledger"
KEY_GAVE_WAY = "a key of a stranger gave way"
INSPECTED = "a tool opened an index that was being made smaller"
REBALANCED = "copies were moved to a new bookie"
INDEX_REBUILT = "an index was made anew"
ROTTEN = "a stored byte rotted"
MEMORY_LOST = "a bookie came back in doubt of all that it had"
JOURNAL_GIVEN_UP = "a bookie was started without its damaged journal"
SECOND_LIFE = "a ledger that was deleted was copied here again"
THREE_FAULTS = "a quick run had three faults"
DIRECTORIES_CHECKED = "the directories of a bookie were checked in the end"
WENT_BACK = "a bookie noticed that the metadata store is older"
ALL_MOVED = "all copies of a ledger were moved"
JOURNALS_CHANGED = "a bookie got other journal directories"
DIRECTORIES_MOVED = "directories of a bookie were moved"
RESTORED = "the metadata were restored from a backup"
RESTORED_BEYOND_BACKUP = "a restored ledger was closed behind the end that the backup knew"
READ_BEFORE_CONFIRMED = "an entry was read before a restore was confirmed"
KEPT_FOR_LATER = "a bookie kept a ledger that the backup does not have"
COLLECTED_LATER = "ledgers that are younger than a backup were collected"
GIVEN_UP_IN_RESTORE = "a restore was confirmed without a bookie that was lost meanwhile"
CONFIRMED_BY_TWO = "two operators confirmed a restore"
RESTORED_IN_VAIN = "bookies joined a second restored cluster behind a first one"
CONFIRMED_IN_VAIN = "a restored cluster was confirmed, and lost as well"
IMPORTED = "a ledger of BookKeeper was imported"
CREATED_WITHOUT = "a ledger was created without a bookie"
TAKEN_IN = "a writer took in a bookie that was absent"
WHOLE_AGAIN = "the integrity check came to its end"
TAKEN_OVER_STOPPED = "today's code took over what a stop of an earlier version had left"
TAKEN_OVER_TORN = "today's code took over what a death of an earlier version had left"
FORCED = "a writer with deferred sync made its entries durable"
OWN_ID = "an entry whose caller chose its id was acknowledged"
CLOSED_IN_BETWEEN = "a client was closed while it wrote"
DIED_AT_A_WRITE = "a host died when it had changed the metadata, and before it was answered"
DIED_IN_BOOKKEEPERS = "a bookie of BookKeeper's cluster died of a fault"
BK_ACKNOWLEDGED = "an add was acknowledged"
BK_OVERWRITTEN = "an entry was stored again"
BK_FENCED = "an add was refused for a fence"
BK_READ_BACK = "an entry came back after the bookie had died"
BK_DENIED = "an entry that never was one was denied"
BK_LAC_READ = "an explicit last add confirmed came back after the bookie had died"
BK_POWER_CUT = "the power was cut"
BK_KILLED = "the bookie was killed"
BK_STOPPED = "the bookie was stopped"
BK_BATCH_READ = "several entries came in one batch"


def acted(kind: str, *, of_bookkeeper: bool = False) -> str:
    """The mark of an actor of a plan that came to its end; `of_bookkeeper`: in the cluster with that protocol."""
    return f"actor in BookKeeper's cluster: {kind}" if of_bookkeeper else f"actor: {kind}"


def struck(kind: str, *, of_bookkeeper: bool = False) -> str:
    """The mark of a fault of a plan."""
    return f"fault in BookKeeper's cluster: {kind}" if of_bookkeeper else f"fault: {kind}"


_STORAGE = (
    MEMORY_FULL,
    QUEUE_FULL,
    EVICTED,
    KEYS_FORGOTTEN,
    SHARDS_APART,
    DIRECTORY_ADDED,
    FILE_RECYCLED,
    BATCH_KEPT,
)

# What each block of seeds of the ordinary suite goes through.
EXPECTED: Mapping[str, tuple[str, ...]] = {
    "standard": (
        *(*_STORAGE, TORN_TAIL, COLLECTED, SPARE_COLLECTED, ZOMBIE_REFUSED, MOVED_COPY, SCRUBBED),
        *(STRANGER_FIRST, KEY_GAVE_WAY, INSPECTED),
    ),
    "quick": (*_STORAGE, TORN_TAIL, COLLECTED, SCRUBBED, THREE_FAULTS),
    "failover": (
        *(*_STORAGE, WINDOW_OF_ONE, SEVERAL_LEDGERS, CHANGED_IN_RECOVERY, DOUBT_RESOLVED, DOUBT_STAYED),
        *(STRANGER_FIRST, KEY_GAVE_WAY),
    ),
    "exposed": (LIMBO, CUT_SHORT_REFUSED),
    "bookkeeper": (
        *(BK_ACKNOWLEDGED, BK_OVERWRITTEN, BK_FENCED, BK_READ_BACK, BK_DENIED, BK_LAC_READ, BK_BATCH_READ),
        *(BK_POWER_CUT, BK_KILLED, BK_STOPPED),
    ),
    "healing": (
        CREATED_WITHOUT,
        REPLICATED,
        WORKER_DIED,
        RETIRED,
        LOSS_ACCEPTED,
        REBALANCED,
        FORMATTED_ANEW,
        FORMAT_REFUSED,
        COOKIE_LOST,
    ),
    "logs": (
        *(LOG_TAKEN, LOG_FENCED, LOG_ROLLED, LOG_TRUNCATED, LOG_FULL, LOG_LOST, STRANGER_FIRST, KEY_GAVE_WAY),
        *(LOG_PAGED, LOG_DESCENDED, LOG_PAGE_DROPPED),
        *(LEASE_TAKEN, LEASE_LOST, CONSUMER_EXPIRED),
    ),
    "rebuilding": (REBUILT, REBUILT_FROM_PARTS),
    "storage": (
        BATCH_KEPT,
        COLLECTED,
        SPARE_COLLECTED,
        DIRECTORY_ADDED,
        LIMBO,
        REBUILT,
        INDEX_REBUILT,
        ROTTEN,
        SECOND_LIFE,
        WHOLE_AGAIN,
    ),
    "everything": (
        *map(acted, ("writer", "duel", "reader", "tail", "move", "deletion", "log writer")),
        *map(acted, ("restart", "drain", "growth", "stranger", "upgrade")),
        *map(struck, ("crash", "power cut", "crash at a disk operation", "crash in a journal write")),
        *map(struck, ("failed fdatasync", "full journal disk", "slow disk", "full disk", "read errors", "rot")),
        *map(struck, ("reset", "partition", "one-way block", "slow link", "duplicated connections")),
        *map(struck, ("store away", "session lost", "replies lost", "reply lost, then away", "lagging follower")),
        *map(struck, ("blackout", "client dies", "worker dies", "clock jump", "clock drift", "cancelled calls")),
        *map(struck, ("host lost", "disks lost", "copy taken", "rot in a journal", "rot in an index")),
        *(
            *_STORAGE[:4],
            *_STORAGE[5:],
            COLLECTED,
            SPARE_COLLECTED,
            SCRUBBED,
            MOVED_COPY,
            WENT_BACK,
            RESTORED,
            RESTORED_BEYOND_BACKUP,
            READ_BEFORE_CONFIRMED,
            KEPT_FOR_LATER,
            COLLECTED_LATER,
            GIVEN_UP_IN_RESTORE,
            CONFIRMED_BY_TWO,
            RESTORED_IN_VAIN,
            CONFIRMED_IN_VAIN,
            IMPORTED,
            JOURNALS_CHANGED,
            DIRECTORIES_MOVED,
            ALL_MOVED,
            DIRECTORIES_CHECKED,
        ),
        *(LOG_TAKEN, LOG_FENCED, LOG_ROLLED, LOG_TRUNCATED, REBUILT, RETIRED, DRAIN_CANCELLED, REBALANCED),
        *(LONG_POLL, FENCE_OF_UNSEEN, STRANGER_FIRST, KEY_GAVE_WAY, ROTTEN, LOSS_ACCEPTED),
        *(MEMORY_LOST, JOURNAL_GIVEN_UP, INDEX_REBUILT, FORMATTED_ANEW, FORMAT_REFUSED),
        *(TAKEN_OVER_STOPPED, TAKEN_OVER_TORN, FORCED, OWN_ID, LOG_DELETED, CLOSED_IN_BETWEEN),
        *(acted(kind, of_bookkeeper=True) for kind in ("writer", "duel", "reader", "tail", "deletion")),
        *(DIED_IN_BOOKKEEPERS, struck("power cut at a fence", of_bookkeeper=True)),
    ),
    "everything-long": (acted("writer"),),
    "crowd": (*_STORAGE, TORN_TAIL, WINDOW_OF_ONE, SEVERAL_LEDGERS, FENCE_RACED_ADD, FENCE_OF_UNSEEN, LONG_POLL),
}

Hook = Callable[..., str | None]


@contextlib.contextmanager
def observed(world: World) -> Iterator[None]:
    """Count marks meanwhile. Where no disk of the world rots, what the scrub takes for damage fails the run."""

    def before(owner: Any, name: str, look: Hook) -> Any:
        """Let `look` see the arguments of each call before it is made, and name what it is a mark of."""
        method = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            if (mark := look(*args, **options)) is not None:
                world.marks[mark] += 1
            return method(*args, **options)

        return patch.object(owner, name, call)

    def after(owner: Any, name: str, look: Hook) -> Any:
        """The same after each call."""
        method = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            result = method(*args, **options)
            if (mark := look(*args, **options)) is not None:
                world.marks[mark] += 1
            return result

        return patch.object(owner, name, call)

    whose_value = resolve.whose_value

    async def in_doubt(*args: Any) -> Any:
        outcome = await whose_value(*args)
        world.marks[DOUBT_STAYED if isinstance(outcome, Unknown) else DOUBT_RESOLVED] += 1
        return outcome

    def false_alarm(damages: DamageList, defect: Defect, number: int) -> None:
        if not world.rots:
            error = AssertionError(defect)
            world.loop.errors.append({"message": "the scrub has told of damage", "exception": error})

    with contextlib.ExitStack() as stack:
        for patched in (
            before(DamageList, "add", false_alarm),
            before(DamageList, "end_round", lambda *args: SCRUBBED),
            before(LedgerCache, "trim", _evicts),
            after(*GROWN, lambda storage, shard: MEMORY_FULL if storage.full else None),
            after(Journal, "add", lambda journal, *args: QUEUE_FULL if journal.full else None),
            before(Keys, "take", _forgets),
            before(Replay, "run", _finds_shards_apart),
            before(Ledgers, "distrust_everything", lambda ledgers: LIMBO),
            before(Ledgers, "replace_key", lambda *args, **options: KEY_GAVE_WAY),
            before(replay, "cut_torn_frame", lambda *args, **options: TORN_TAIL),
            before(*TAKE_FILE, lambda writer, path: FILE_RECYCLED if can_recycle(writer) else None),
            before(flush, "kept_row", lambda *args: BATCH_KEPT),
            before(LedgerCatalog, "create", lambda _, build, absent=(): CREATED_WITHOUT if absent else None),
            before(UnderreplicationQueue, "taken_in", lambda *args: TAKEN_IN),
            before(Waiters, "add", lambda waiters, ledger_id: LONG_POLL),
            patch.object(resolve, "whose_value", in_doubt),
        ):
            stack.enter_context(patched)
        yield


def _evicts(cache: LedgerCache, keep: Any = ()) -> str | None:
    idle = sum(not state.pins and state.ledger_id not in keep for state in cache.all())
    return EVICTED if keep and idle and len(cache) > states_max(cache) else None


def _forgets(keys: Keys, present: Any) -> str | None:
    used = keys.kept
    return KEYS_FORGOTTEN if used and used + len(present.keys) > keys_max(keys) else None


def _finds_shards_apart(replay: Replay) -> str | None:
    return SHARDS_APART if len({shard.row.marks for shard in ledgers_of(replay).shards}) > 1 else None
