"""The direction of imports, the purity of `protocol/` and the runtime seam, read from the source itself."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bkpy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PACKAGE = Path(bkpy.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

BASE = {"_version", "buffers", "errors", "runtime", "config", "stored_json", "batching"}

# What each layer may import, besides itself. A part that is not named here builds the real thing out of the layers, or
# stands outside them, and may import anything.
LAYERS = {
    "_version": set[str](),
    "batching": set[str](),
    "buffers": set[str](),
    "errors": set[str](),
    "stored_json": set[str](),
    "runtime": {"buffers", "errors"},
    "config": {"errors"},
    "protocol": {"buffers", "errors", "stored_json"},
    "metadata": {"protocol", *BASE},
    "storage": {"metadata", "protocol", *BASE},
    "client": {"metadata", "protocol", *BASE},
    "client/client": {
        "client",
        "log",
        "recovery",
        "replication/context",
        "metadata",
        "protocol",
        *BASE,
    },  # assembles the parts
    "client/connecting": {"client", "client/client", "metadata", "protocol", *BASE},
    "bookie": {"storage", "metadata", "protocol", *BASE},
    "recovery": {"client", "metadata", "protocol", *BASE},
    "replication/context": {"recovery", "client", "metadata", "protocol", *BASE},  # what a client gives to the others
    "replication": {"replication/context", "recovery", "client", "metadata", "protocol", *BASE},
    "replication/integrity": {
        *("replication", "replication/context", "recovery", "client", "client/client", "metadata", "protocol", *BASE)
    },
    "replication/auto_recovery": {
        *("replication", "replication/integrity", "recovery", "client", "client/client", "log"),
        *("metadata", "protocol", *BASE),
    },
    "admin": {"replication", "replication/context", "recovery", "client", "metadata", "protocol", *BASE},
    "admin/client": {
        *("admin", "replication", "replication/context", "recovery", "client", "client/client", "log"),
        *("metadata", "protocol", *BASE),
    },
    "admin/cluster_check": {"client", "client/client", "metadata", "protocol", *BASE},
    "admin/ledger_import": {"admin", "admin/client", "client", "client/client", "metadata", "protocol", *BASE},
    "log": {"client", "metadata", "protocol", *BASE},
}

# Modules of the standard library that reach outside: clocks, files, randomness, threads, the network.
OUTSIDE = {
    "concurrent", "fcntl", "glob", "io", "multiprocessing", "os", "queue", "random", "secrets", "select", "selectors",
    "shutil", "socket", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
LIBRARIES_OUTSIDE = {"aiofiles", "aiozk", "lmdb", "requests"}

# The seam itself, the adapter that speaks to ZooKeeper, the module that makes a bookie a process.
# Settings are read from a file before there is a runtime.
SEAM_EXEMPT = ("runtime/", "config/", "metadata/store/zookeeper/", "bookie/process.py")

# Calls that reach outside without an import that says so.
AROUND = {"open", "print", "input", "datetime.now", "datetime.utcnow", "asyncio.to_thread", "asyncio.run"}

IMPURE = OUTSIDE | LIBRARIES_OUTSIDE | {"aiohttp", "asyncio", "contextvars", "datetime", "logging", "pathlib", "sys"}


def layer_of(*parts: str) -> str:
    """The layer of a module below the package: the longest name of one that it begins with, or its first component."""
    names = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((name for name in names if name in LAYERS), parts[0])


def part_of(path: Path) -> str:
    return layer_of(*path.relative_to(PACKAGE).with_suffix("").parts)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


@functools.cache
def imports(path: Path) -> list[str]:
    """The full names of what the module imports, anywhere in it, relative ones resolved."""
    here = ("bkpy", *path.relative_to(PACKAGE).parent.parts)
    found: list[str] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            name = ".".join(filter(None, (base, node.module)))
            # `from bkpy import client` imports a module just as `import bkpy.client` does.
            found += (f"{name}.{alias.name}" for alias in node.names)
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


LAYERED = [path for path in MODULES if part_of(path) in LAYERS]
SEALED = [path for path in LAYERED if not name_of(path).startswith(SEAM_EXEMPT)]
PURE = [path for path in MODULES if part_of(path) == "protocol"]


def test_the_layers_are_there() -> None:
    assert {"errors", "runtime", "config", "protocol", "metadata"} <= {part_of(path) for path in MODULES}
    assert PURE
    assert SEALED


def assert_none(offences: Iterable[str]) -> None:
    """All of them are told at once, each in a line of its own."""
    if found := list(offences):
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.thorough
def test_imports_point_down() -> None:
    def offences() -> Iterator[str]:
        for path in LAYERED:
            allowed = LAYERS[part_of(path)] | {part_of(path)}
            own = [name for name in imports(path) if name.split(".")[0] == "bkpy"]
            if upwards := [name for name in own if layer_of(*name.split(".")[1:]) not in allowed]:
                yield f"{name_of(path)}: {part_of(path)} may import {sorted(allowed)}, not {upwards}"

    assert_none(offences())


def test_nothing_reaches_around_the_runtime() -> None:
    def offences() -> Iterator[str]:
        for path in SEALED:
            names = {name for name in imports(path) if name.split(".")[0] in OUTSIDE | LIBRARIES_OUTSIDE}
            if names:
                yield f"{name_of(path)} must take what it needs from a Runtime, not from {sorted(names)}"
            called = {ast.unparse(node.func) for node in nodes_of(path) if isinstance(node, ast.Call)}
            around = called & AROUND | {name for name in called if name.endswith((".run_in_executor", ".create_task"))}
            if around:
                yield f"{name_of(path)} must not call {sorted(around)}"

    assert_none(offences())


def test_the_protocol_is_pure() -> None:
    def offences() -> Iterator[str]:
        for path in PURE:
            if impure := {name for name in imports(path) if name.split(".")[0] in IMPURE}:
                yield f"{name_of(path)} imports {sorted(impure)}"
            waits = [n for n in nodes_of(path) if isinstance(n, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor)]
            if waits:
                yield f"{name_of(path)} is asynchronous in lines {[n.lineno for n in waits]}"

    assert_none(offences())


# --- outcomes -------------------------------------------------------------------------------------------------------

RESOLVING = PACKAGE / "metadata" / "store" / "resolve.py"
OUTCOMES = [
    path
    for path in LAYERED
    if part_of(path).split("/")[0] in {"metadata", "client", "recovery", "replication", "admin", "bookie"}
    and path != RESOLVING
]
# The writer's error, on its way to those who append: it was made there, and not told by a metadata store.
COPIES_ITS_OWN = {("client/write/replication.py", "failure")}
STORE_WRITES = {"create", "put", "delete", "multi"}
CATALOG_WRITES = {"create", "write", "write_locked", "delete"}
RESOLVED_WRITES = {
    "attempt", "create_certainly", "put_certainly", "delete_certainly", "delete_together", "take_number", "ensure_path",
}  # fmt: skip
CATCH_METADATA_ERRORS = {"MetadataUnavailableError", "ClusterError", "BookKeeperError", "Exception"}


def receiver(node: ast.AST) -> tuple[str, str]:
    """(`x`, `f`) for a call `a.x.f(...)`, without the underscores; empty for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value).rpartition(".")[2].lstrip("_"), node.func.attr
    return "", ""


def is_metadata_write(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in RESOLVED_WRITES
    of, name = receiver(node)
    return of == "catalog" and name in CATALOG_WRITES


def test_only_one_module_sends_writes_to_a_metadata_store() -> None:
    def offences() -> Iterator[str]:
        for path in OUTCOMES:
            calls = [(n, *receiver(n)) for n in nodes_of(path) if isinstance(n, ast.Call)]
            if writes := [n.lineno for n, of, name in calls if of == "store" and name in STORE_WRITES]:
                yield f"{name_of(path)} must leave the writes in lines {writes} to metadata/store/resolve.py"

    assert_none(offences())


@pytest.mark.thorough
def test_an_unknown_outcome_is_a_value() -> None:
    def offences() -> Iterator[str]:
        for path in OUTCOMES:
            for function in nodes_of(path):
                if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                asked = [
                    n.lineno
                    for n in ast.walk(function)
                    if isinstance(n, ast.Attribute) and n.attr == "outcome_unknown" and isinstance(n.ctx, ast.Load)
                ]
                if asked and (name_of(path), function.name) not in COPIES_ITS_OWN:
                    yield f"{name_of(path)} must match an outcome, not ask an error, in lines {asked}"

    assert_none(offences())


def test_nobody_learns_from_an_error_what_became_of_a_metadata_write() -> None:
    def offences() -> Iterator[str]:
        for path in OUTCOMES:
            for node in nodes_of(path):
                if not isinstance(node, ast.Try) or not caught_by(node) & CATCH_METADATA_ERRORS:
                    continue
                if writes := [n.lineno for part in node.body for n in ast.walk(part) if is_metadata_write(n)]:
                    yield f"{name_of(path)}: line {node.lineno} catches what becomes of the writes in {writes}"

    assert_none(offences())


def caught_by(node: ast.Try) -> set[str]:
    """The names of the errors that its handlers name, without their modules."""
    return {
        part.rpartition(".")[2]
        for handler in node.handlers
        if handler.type is not None
        for part in ast.unparse(handler.type).strip("()").replace("|", ",").replace(" ", "").split(",")
    }


def test_the_rules_on_outcomes_find_what_they_look_for() -> None:
    writes = [n for n in nodes_of(RESOLVING) if receiver(n)[0] == "store"]
    assert {receiver(n)[1] for n in writes} >= STORE_WRITES
    matched = [n for path in OUTCOMES for n in nodes_of(path) if is_metadata_write(n)]
    assert len(matched) >= 10


# --- bounds are tuning values ---------------------------------------------------------------------------------------

# A bound that a run can reach is a tuning value (or a setting), so that the simulator can make it tiny. Any other
# number may be a constant, with its reason here.
ON_THE_WIRE = "is on the wire"
ON_DISK = "is on disk, or in the metadata store"
OF_ANOTHER = "is the kernel's, or ZooKeeper's"
OF_MEMORY = "what something costs in memory or in files, as it was counted"
OF_A_TEXT = "is how much a message names"
OF_THE_CPU = "only says which of two equal ways is quicker"
A_MARK = "is a value that stands for something, and is never reached"

CONSTANTS = {
    "bookie/files.py": {
        "_OF_HANDSHAKE": OF_MEMORY,
        "_OF_PAGE_CONNECTION": OF_MEMORY,
        "_OF_PROCESS": OF_MEMORY,
        "_OF_JOURNAL_DIRECTORY": OF_MEMORY,
        "_OF_LEDGER_DIRECTORY": OF_MEMORY,
        "_SHARE_OF_NEW_CONNECTIONS": "is a part of connections_max",
    },
    "bookie/identity.py": {"_NAMED_MAX": OF_A_TEXT},
    "bookie/collector.py": {"_NAMED_MAX": OF_A_TEXT},
    "bookie/connection/keys.py": {"_FREE_KEYS": OF_MEMORY, "_KEY_MEMORY_BYTES": OF_MEMORY},
    "bookie/bookkeeper/adds.py": {
        "_COPY_BYTES_MAX": OF_THE_CPU,
        "_STRIDE_MAX": OF_THE_CPU,
    },
    "bookie/bookkeeper/reads.py": {"LAST": ON_THE_WIRE, "_COPIED_BYTES": OF_THE_CPU, "_GAP_MAX": OF_THE_CPU},
    "bookie/process.py": {"SWITCH_INTERVAL_S": "is the interpreter's, of the whole process"},
    "bookie/state_manager.py": {"_FREE_CHANGE_MIN": "is a share of a value that only weights choices"},
    "client/arguments.py": {"LEDGERS_MAX": "bounds what a command or a query names, and no setting of a client"},
    "protocol/ledger/accepted_loss.py": {"HOLES_MAX": "is of a stored value, which many versions read"},
    "replication/auditor/auditor.py": {"_STALLED_AFTER_DELAYS": "is a factor of lost_bookie_recovery_delay_s"},
    "client/bookkeeper/dialect.py": {
        "RANGE_ENTRIES_MAX": "is the most of read_entries_max there",
        "_TOKEN_BYTES": ON_DISK,
    },
    "client/bookkeeper/translator.py": {
        "_ASKS_FOR": "is a part of read_timeout_s",
        "_ENDS_AFTER": "is a part of read_timeout_s",
        "_LAST_ENTRY": ON_THE_WIRE,
        "_REQUEST_BYTES": "is what a request takes besides an entry's data, at most",
        "_UNKNOWN_LENGTH": A_MARK,
    },
    "client/read/block.py": {"_SMALL_BYTES": OF_THE_CPU},
    "client/bookies/channel.py": {
        "_ANSWER_PAUSE_S": "is within add_timeout_s",
        "_UNUSED_S": "is for how long a bookie is dialled for nobody, and bounds no request",
    },
    "client/bookies/pool.py": {"_LINGER_PAUSE_S": "is within close_linger_s"},
    "client/client.py": {"_SHOWN_MAX": OF_A_TEXT},
    "client/write/batch.py": {"NEVER": A_MARK},
    "admin/bookie_recovery.py": {"_POLL_S": "is how often progress is shown"},
    "admin/metadata_sweep.py": {"READS_MAX": "bounds what one call of an operator reads"},
    "admin/decommission.py": {"_ANY_LEDGER": "is any id"},
    "admin/restore_confirmation.py": {"_NAMED_MAX": OF_A_TEXT},
    "metadata/audit_trail.py": {
        "_READS_AT_ONCE": "is of commands, which no run has",
        "_TIDY_EVERY": "is by how much the trail exceeds audit_acts_max",
        "_TIME_DIGITS": ON_DISK,
    },
    "metadata/replication/manual.py": {"_TOKEN_BYTES": "is how unlike others a name is"},
    "metadata/bookies/draining.py": {"_TOKEN_BYTES": "is how unlike others a name is"},
    "metadata/backup/backup.py": {"_READS_AT_ONCE": "is of commands, which no run has"},
    "metadata/backup/backup_file.py": {
        "VERSION": ON_DISK,
        "_CHUNK_BYTES": OF_MEMORY,
        "_GZIP": OF_ANOTHER,
        "_LINE_BYTES_MAX": ON_DISK,
    },
    "metadata/backup/sealed_lines.py": {"_GZIP": OF_ANOTHER, "_LEVEL": OF_THE_CPU},
    "metadata/backup/restore.py": {"_TRANSACTION_BYTES": OF_ANOTHER},
    "metadata/restore_record.py": {"_EXAMPLES_MAX": OF_A_TEXT},
    "metadata/cluster.py": {"LAYOUT_VERSION": ON_DISK},
    "metadata/bookkeeper/cookies.py": dict.fromkeys(("_LINES", "_NEWEST"), ON_DISK),
    "metadata/bookkeeper/layout.py": {
        **dict.fromkeys(("_FORMAT_VERSION", "_HIGH_BITS", "_HIGH_MAX"), ON_DISK),
        "_SHORT_END": OF_ANOTHER,
    },
    "metadata/ledgers/layout.py": {"SEQUENCE_BITS": OF_ANOTHER},
    "metadata/replication/election.py": {
        "_TOKEN_BYTES": "is how unlike others a name is",
    },
    "metadata/logs/catalog.py": {
        "_TOKEN_BYTES": "is how unlike others a name is",
        "_PATH_BYTES": "is what a path and its framing take at most",
        "_CHECK_BYTES": "is what a check takes beside its path at most",
        "_WARNED_PERCENT": "is a part of log_write_bytes_max",
    },
    "metadata/logs/maintenance.py": {"_STUCK_MAX": "keeps a stored list far below log_write_bytes_max"},
    "metadata/replication/underreplication.py": {
        "_TOKEN_BYTES": "is how unlike others a name is",
    },
    "metadata/bookies/registration.py": {
        "TAKEOVER_TIMEOUTS": "is how ZooKeeper counts, in session timeouts, which are a setting",
    },
    "metadata/replication/worker_nodes.py": {
        "_TOKEN_BYTES": "is how unlike others a name is",
    },
    "metadata/uri.py": {"DEFAULT_PORT": OF_ANOTHER},
    "metadata/store/zookeeper/connection.py": {"REQUEST_BYTES_MAX": OF_ANOTHER, "XID_MAX": ON_THE_WIRE},
    "metadata/store/zookeeper/store.py": {
        "_API_ERRORS_FROM": ON_THE_WIRE,
        "_ANY_VERSION": ON_THE_WIRE,
        "_THROTTLED": ON_THE_WIRE,
    },
    "metadata/store/zookeeper/watches.py": {"SET_WATCHES_BYTES_MAX": OF_ANOTHER},
    "runtime/metrics_page.py": {
        "_LINGER_BYTES": "is of pages over HTTP, which no simulated run has",
        "_LINGER_S": "is of pages over HTTP, which no simulated run has",
        "_BODY_S": "is of pages over HTTP, which no simulated run has",
        "_LAST_REQUESTS_S": "is of pages over HTTP, which no simulated run has",
    },
    "runtime/process.py": {"_HOST_CHARS_MAX": OF_ANOTHER},
    "runtime/slow_requests.py": {
        "LINES_MAX": "bounds log lines, which no decision depends on",
        "INTERVAL_S": "the same",
        "LEDGERS_MAX": OF_A_TEXT,
        "CLIENT_ID_CHARS_MAX": OF_A_TEXT,
    },
    "protocol/access.py": {
        "_NAMES_SHOWN": "is how much of an error's text",
        "_NAME_CHARS_SHOWN": "is how much of an error's text",
    },
    "protocol/bookkeeper/entries.py": dict.fromkeys(
        ("ENTRY_HEADER_BYTES", "ENTRY_ID_MAX", "LAC_HEADER_BYTES", "MASTER_KEY_BYTES"), ON_THE_WIRE
    ),
    "protocol/bookkeeper/frames.py": dict.fromkeys(("PREFIX_BYTES", "PACKET_VERSION", "_MESSAGE_BEGIN"), ON_THE_WIRE),
    "protocol/bookkeeper/messages.py": dict.fromkeys(
        ("MESSAGE_VERSION", "HIGH_PRIORITY", "_FENCE", "_PIGGYBACK", "_RECOVERY", "_DEFERRED_SYNC"), ON_THE_WIRE
    ),
    "protocol/bookkeeper/ledger_metadata.py": dict.fromkeys(("_BINARY", "_TEXT", "_LINES", "_IN_RECOVERY"), ON_DISK),
    "protocol/restore/restoring.py": {"HIGHS_SKIPPED": ON_DISK, "SEQUENCE_BITS": OF_ANOTHER},
    "protocol/wire/block_scan.py": {
        "_HEADER_BYTES": ON_THE_WIRE,
        "_STORED_AT": ON_THE_WIRE,
        "_BODY_AT": ON_THE_WIRE,
        "_ONES": ON_THE_WIRE,
    },
    "protocol/wire/frame.py": {
        "PREFIX_BYTES": ON_THE_WIRE,
        "VERSION": ON_THE_WIRE,
        "REPLY": ON_THE_WIRE,
        "KEEP_INTERPRETER": OF_THE_CPU,
    },
    "protocol/log/log_pages.py": {"PAGE_VERSION": ON_DISK},
    "protocol/log/log_retention.py": {"_MS": "is a unit"},
    "protocol/log/log_opening.py": {
        "LABEL_CHARS_MAX": "is what the parts of a label may have together",
        "LEDGER_ENTRIES_MAX": ON_DISK,
        "LENGTH_MAX": ON_DISK,
        "NUMBERS_CHARS_MAX": "is what the list says of a segment's numbers",
        "TOKEN_CHARS": ON_DISK,
        "TIME_MAX_MS": A_MARK,
        "TURNS_SAID": "is when an error says more",
    },
    "protocol/log/log_list.py": {
        "LIST_VERSION": ON_DISK,
        "OPEN_MAX": "is what the proof of takeovers stands on",
        "UNSEALED": A_MARK,
    },
    "protocol/log/log_producers.py": {
        "NOTHING": A_MARK,
        "RUNS_MAX": "is the default of log_producer_runs_max",
        "SEQUENCE_MAX": ON_DISK,
        "_MS": "is a unit",
    },
    "log/rolling.py": {"_ACTIVE_WRITES": "is a part of log_producer_idle_s"},
    "protocol/ledger/ledger_metadata.py": {
        "FORMAT_VERSION": ON_DISK,
        "LEDGER_KEY_BYTES": ON_DISK,
        "LEDGER_ID_MAX": ON_DISK,
        "ENTRY_ID_MAX": ON_DISK,
    },
    "protocol/wire/messages.py": {
        "_CLAIMED_MAX": OF_THE_CPU,
        "_LONG_ARRAYS_MAX": OF_THE_CPU,
        "_SPARSE": OF_THE_CPU,
        "_SHORT_BYTES": OF_THE_CPU,
        "I64_MAX": ON_THE_WIRE,
        "KEY_BYTES": ON_THE_WIRE,
        "HELLO_BYTES_MAX": ON_THE_WIRE,
        "BATCHES_MAX": ON_THE_WIRE,
        "_BATCH_HEAD_BYTES": ON_THE_WIRE,
        "_REQUEST_BYTES": ON_THE_WIRE,
    },
    "protocol/wire/records.py": {
        "HEADER_BYTES": ON_THE_WIRE,
        "MAC_BYTES": ON_THE_WIRE,
        "STAMP_BYTES": ON_THE_WIRE,
        "NUMBERED_STAMP_BYTES": ON_THE_WIRE,
        "NO_STAMP": A_MARK,
        "PLAIN": ON_DISK,
        "NUMBERED": ON_DISK,
        "EXPLICIT_LAC_ENTRY": ON_THE_WIRE,
        "_COPY_BYTES_MAX": OF_THE_CPU,
        "_BLOCK_ENTRIES_MIN": OF_THE_CPU,
    },
    "replication/worker/ledger_repair.py": {"_SHOWN_MAX": OF_A_TEXT},
    "replication/auditor/ledger_scan.py": {"_SHOWN_MAX": OF_A_TEXT},
    "replication/overview.py": {"_FRAGMENTS_SHOWN_MAX": OF_A_TEXT, "_SHOWN_MAX": OF_A_TEXT},
    "replication/worker/worker_report.py": {"_REASON_CHARACTERS_MAX": OF_A_TEXT},
    "replication/auditor/remembered_ledgers.py": {"_IN_A_SET": OF_MEMORY},
    "replication/worker/pacing.py": {
        "_FORGOTTEN": "only lets what is known of a bookie grow old",
        "_LATELY_S": "only lets what is known of a bookie grow old",
    },
    "replication/worker/worker.py": {
        "_FURTHER": "bounds nothing: it is how fast a worker comes to look at all ledgers",
        "_SHOWN_MAX": OF_A_TEXT,
    },
    "runtime/lmdb_pages.py": {
        "DAMAGED": "is an exit status, between a parent and its child",
        "_BIG": ON_DISK,
        "_DATA_VERSION": ON_DISK,
        "_DEPTH_MAX": ON_DISK,
        "_HEADER_BYTES": ON_DISK,
        "_INTEGER_KEYS": ON_DISK,
        "_MAGIC": ON_DISK,
        "_NODE_BYTES": ON_DISK,
        "_NO_ROOT": ON_DISK,
        "_STEP_PAGES": "is how often a child looks whether its parent is there, every few milliseconds",
        "_UNWRITTEN_MAX": "refuses a page number that is nonsense",
    },
    "runtime/directories.py": {"_AT_FDCWD": OF_ANOTHER, "_RENAME_EXCHANGE": OF_ANOTHER},
    "runtime/ordered_store.py": {
        "_META_PAGES": "is LMDB's",
        "_OPENINGS": "a reader needs a second one at most, during an exchange",
    },
    "runtime/system.py": {"_IOV_MAX": OF_ANOTHER},
    "runtime/loop_guard.py": {"_NO_THREAD": "is no thread"},
    "runtime/background.py": {"_LOOK_S": "delays only a Ctrl-C that comes as a wait begins"},
    "runtime/threadsafe.py": {
        "_AT_ONCE": OF_THE_CPU,
        "_LOOK_S": "delays only the error of a thread whose loop has ended",
    },
    "storage/identity.py": {"VERSION": ON_DISK, "_COOKIE_BYTES_MAX": "refuses a file that is no cookie"},
    "storage/entry_log/entry_log.py": {
        "VERSION": ON_DISK,
        "_PLACED": ON_DISK,
        "CODEC_STORED": ON_DISK,
        "LOG_HEADER_BYTES": ON_DISK,
        "BLOCK_HEADER_BYTES": ON_DISK,
        "_PARTS_MAX": OF_ANOTHER,
        "_PART_BYTES_MIN": OF_THE_CPU,
        "KEPT": ON_DISK,
        "_FILE_ID_BITS": ON_DISK,
        "_JOURNALS_MAX": ON_DISK,
    },
    "storage/checkpoint/flush.py": {
        "BLOCK_EFFORT": "is what a block takes compared with a batch, of which flush_step_batches tells",
        "LEDGER_EFFORT": "is the same of a ledger",
        "INDEXED_PER_EFFORT": "is the same of an indexed batch",
    },
    "storage/index/ids.py": {"SPAN_MAX": ON_DISK},
    "storage/index/index.py": {
        "VERSION": ON_DISK,
        "VERSION_WITH_KEPT": ON_DISK,
        "FENCED": ON_DISK,
        "LIMBO": ON_DISK,
        "FENCE_OF_LIMBO": ON_DISK,
        "UNKNOWN_IN_LIMBO": ON_DISK,
        "HAS_FOOTER": ON_DISK,
        "VERSION_AT_RISK": ON_DISK,
        "VERSION_IN_DOUBT": ON_DISK,
        "KEEPS": ON_DISK,
        "UNASKED": ON_DISK,
        "BOOT_ID_BYTES": ON_DISK,
        "U64_END": ON_DISK,
    },
    "storage/tools/salvage.py": {
        "VERSION": ON_DISK,
        "_READ_BYTES": OF_MEMORY,
        "_COMMIT_ROWS": OF_MEMORY,
        "_OPENED_MAX": "is of a command, which no run has",
        "_GAPS_MAX": OF_A_TEXT,
    },
    "storage/tools/inspect/entry_log.py": {"_EVERYWHERE": A_MARK},
    "storage/tools/inspect/finding.py": {"SHOWN_MAX": OF_A_TEXT},
    "storage/tools/inspect/ledger.py": {"_ID_END": ON_DISK},
    "storage/journal/format.py": {
        "PAGE_BYTES": ON_DISK,
        "VERSION": ON_DISK,
        "NONCE_BYTES": ON_DISK,
        "FRAME_NONCE_OFFSET": ON_DISK,
        "FRAME_HEADER_BYTES": ON_DISK,
        "FRAME_BYTES_MAX": ON_DISK,
    },
    "storage/memtable/generation.py": {
        "FRAME_OVERHEAD_BYTES": OF_MEMORY,
        "BATCH_OVERHEAD_BYTES": OF_MEMORY,
        "STATE_BYTES": OF_MEMORY,
    },
    "storage/scrub/state.py": {"VERSION": ON_DISK},
    "admin/cluster_check.py": dict.fromkeys(("SIZE", "ENTRIES", "ENTRY_BYTES"), "what the check writes"),
    "admin/cluster_health.py": dict.fromkeys(
        (
            "FREE_BYTES_LOW",
            "METADATA_SLOW_S",
            "SESSION_LOST_S",
            "SKEW_S",
            "CERTIFICATE_DAYS",
            "_DAY_S",
            "_LOOKS",
            "_NAMED_MAX",
        ),
        "what operators are told of, and bounds nothing",
    ),
    "storage/shard.py": {"_SEALED_AGE": A_MARK, "_ACTIVE_AGE": A_MARK},
    "storage/ledgers/info.py": {"_LOOKS_MAX": "bounds the time of one call, whatever the bound of the cache is"},
}

BOUNDED = [path for path in LAYERED if part_of(path) != "config"]


def is_number(node: ast.expr) -> bool:
    """Whether the expression is made of numbers, and of the units that config/base.py names."""
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Name) and node.id in {"KIB", "MIB", "GIB"}


def numbers(tree: ast.Module) -> set[str]:
    """The names in capitals that the module gives to numbers."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        if is_number(value):
            found |= {t.id for t in targets if isinstance(t, ast.Name) and t.id.upper() == t.id}
    return found


def test_a_bound_is_a_tuning_value() -> None:
    def offences() -> Iterator[str]:
        for path in BOUNDED:
            name, found = name_of(path), numbers(tree_of(path))
            allowed = CONSTANTS.get(name, {}).keys()
            if new := sorted(found - allowed):
                yield f"{name}: make {new} fields of config/tuning/, or say in CONSTANTS why they are no bounds"
            if gone := sorted(allowed - found):
                yield f"{name}: {gone} are gone"

    assert_none(offences())


def test_numbers_are_found() -> None:
    source = "A = 1\nB: Final = 2 * KIB\nC_MAX: Final = -(1 << 3)\nd = 4\nE = 'x'\nF = len(E)\nG: int\nH = True\n"
    assert numbers(ast.parse(source)) == {"A", "B", "C_MAX"}
    assert CONSTANTS.keys() <= {name_of(path) for path in BOUNDED}


# --- asserts --------------------------------------------------------------------------------------------------------


def narrows(test: ast.expr) -> bool:
    """Whether it only tells the type checker what is known: a value is not None, or is of a class."""
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.And) and all(map(narrows, test.values))
    if isinstance(test, ast.Compare):
        (*others, right) = test.comparators
        return not others and isinstance(test.ops[0], ast.IsNot) and ast.unparse(right) == "None"
    return isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"


def checks(nodes: Sequence[ast.AST]) -> Iterator[ast.Assert]:
    """Asserts that find mistakes while the code runs: they narrow no type, or say what is wrong."""
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    tested = {node for function in functions if function.name == "check_invariants" for node in ast.walk(function)}
    for node in nodes:
        if isinstance(node, ast.Assert) and node not in tested and not (narrows(node.test) and node.msg is None):
            yield node


@pytest.mark.thorough
def test_no_safety_check_is_an_assert() -> None:
    """`python -O` leaves asserts out. Only `check_invariants`, which tests call, may assert what it finds."""
    assert_none(f"{name_of(path)}:{node.lineno}: raise it" for path in MODULES for node in checks(nodes_of(path)))


def test_what_is_a_check_and_what_narrows_a_type() -> None:
    lines = [
        "assert a is not None",
        "assert a and b",
        "assert isinstance(a, B)",
        "assert a is not None and a.b is not None",
    ]
    lines += ["assert a == b", "assert a is not None, 'a'", "assert a is not None or b", "assert 0 <= a < 5"]
    lines += ["def check_invariants():\n    assert a == b", "def check():\n    assert a == b"]
    found = [bool(list(checks(list(ast.walk(ast.parse(line)))))) for line in lines]
    assert found == [False, True, False, False, True, True, True, True, False, True]


# --- modules --------------------------------------------------------------------------------------------------------

LINES_MAX = 800  # a subject may need them; beyond, it is rarely one subject


def test_a_module_can_be_read_in_one_go() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in MODULES}
    lines = {path: text.count("\n") for path, text in texts.items() if "Made by `make settings`" not in text}
    assert_none(f"{name_of(path)} has {n} lines: take it apart" for path, n in lines.items() if n > LINES_MAX)


def test_one_name_is_one_thing() -> None:
    named: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(name_of(path))
    assert {name: where for name, where in named.items() if len(where) > 1} == {}


# What other classes of the package may inherit from, besides protocols, abstract classes, and the settings, which are
# put together from classes by group (decision 010).
INHERITED = {
    "blocking.base.Blocking": "its heirs are made from those of the client",
    "blocking.base.BlockingContext": "its heirs are made from those of the client",
    "blocking.base.BlockingOwner": "its heir is made from the client",
    "blocking.poll.BlockingPoll": "its heir is made from the client",
    "errors.BookKeeperError": "what is caught says how much is",
    "errors.BookieUnavailableError": "what is caught says how much is",
    "errors.ClientClosedError": "what is caught says how much is",
    "errors.CallerError": "what is caught says how much is",
    "errors.ClusterError": "what is caught says how much is",
    "errors.DiskError": "what is caught says how much is",
    "errors.LedgerFencedError": "what is caught says how much is",
    "errors.SequenceError": "what is caught says how much is",
    "metadata.store.store.StoreRefusal": "what is caught says how much is",
    "protocol.ledger.ledger_metadata.LedgerMetadata": "its heir has another stored form, and the same transitions",
}


def is_interface(of: ast.ClassDef) -> bool:
    """Whether the class only says what others are to have: a protocol, or one that `abc` makes abstract."""
    bases = {ast.unparse(base).split("[")[0] for base in of.bases}
    return bool(bases & {"Protocol", "typing.Protocol", "ABC", "abc.ABC"})


def inherited(modules: dict[str, list[ast.AST]]) -> dict[str, set[str]]:
    """The classes of these modules that others of them inherit and that are no interfaces, each with its heirs."""
    classes: dict[str, ast.ClassDef] = {}
    known: dict[str, dict[str, str]] = {}  # what a module calls the classes of others
    for module, nodes in modules.items():
        names = known[module] = {}
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                classes[f"{module}.{node.name}"] = node
                names[node.name] = f"{module}.{node.name}"
            elif isinstance(node, ast.ImportFrom):
                names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.asname or alias.name: alias.name for alias in node.names}
    found: dict[str, set[str]] = {}
    for heir, of in classes.items():
        names = known[heir.rpartition(".")[0]]
        for base in of.bases:
            prefix, _, last = ast.unparse(base).split("[")[0].rpartition(".")
            name = f"{names.get(prefix, prefix)}.{last}" if prefix else names.get(last, last)
            if name in classes and not is_interface(classes[name]) and not name.startswith("bkpy.config."):
                found.setdefault(name, set()).add(heir)
    return found


def test_classes_inherit_from_interfaces_errors_and_settings_alone() -> None:
    found = inherited({module_of(path): nodes_of(path) for path in MODULES})
    allowed = {f"bkpy.{name}" for name in INHERITED}
    refused = {base: sorted(heirs) for base, heirs in found.items() if base not in allowed}
    assert not refused, f"let these hold an object of that class, or give it a parameter: {refused}"
    assert not allowed - found.keys(), f"nobody inherits from {sorted(allowed - found.keys())} any more"


def test_inheritance_is_found() -> None:
    sources = {
        "p.a": "class A: ...\nclass I(Protocol): ...\nclass J(I, Protocol[T]): ...\nclass K(abc.ABC): ...\n"
        "class G(Generic[T]): ...\nclass E(Exception): ...\n",
        "p.b": "from p.a import A as Other, I, K\nimport p.a\nimport p.a as q\n"
        "class B(Other): ...\nclass C(p.a.A): ...\nclass D(q.G[int]): ...\n"
        "class L(I): ...\nclass M(K): ...\nclass N(B): ...\nclass A(dict): ...\n",
    }
    modules = {module: list(ast.walk(ast.parse(source))) for module, source in sources.items()}
    assert inherited(modules) == {"p.a.A": {"p.b.B", "p.b.C"}, "p.a.G": {"p.b.D"}, "p.b.B": {"p.b.N"}}


def module_of(path: Path) -> str:
    return ".".join(("bkpy", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def dependencies() -> dict[str, set[str]]:
    """The modules that each module imports anywhere in it, for types alone or not."""
    names = {module_of(path) for path in MODULES}
    found: dict[str, set[str]] = {}
    for path in MODULES:
        of_path = found[module_of(path)] = set()
        for name in imports(path):
            # `from a import b` is of the module a.b if there is one, of a otherwise.
            of_path.update(n for n in [name if name in names else name.rpartition(".")[0]] if n in names)
    return found


def circles(of: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules each of which reaches all others of its group, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(of[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1 or module in of[module]:
                groups.append(sorted(group))

    for module in sorted(of):
        if module not in index:
            visit(module)
    return groups


def test_no_modules_import_each_other() -> None:
    assert circles(dependencies()) == []


def test_circles_are_found() -> None:
    of = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"e"}, "f": {"a"}}
    assert circles(of) == [["a", "b", "c"], ["e"]]


def loaded_by(program: str) -> set[str]:
    """The modules that a process has loaded at the end of the program."""
    command = [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.split())


@pytest.mark.thorough
def test_a_client_loads_nothing_of_a_disk() -> None:
    loaded = loaded_by("import bkpy; bkpy.connect")
    assert "bkpy.client.client" in loaded
    assert not {"lmdb", "bkpy.runtime.system", "bkpy.storage", "bkpy.bookie"} & loaded


@pytest.mark.thorough
def test_a_command_loads_no_http_client() -> None:
    """It would take a third longer to start."""
    loaded = loaded_by("import bkpy; bkpy.AdminClient; import bkpy.cli.ledger.group, bkpy.cli.log.group")
    assert "bkpy.admin.client" in loaded
    assert "aiohttp" not in loaded


def test_the_question_for_health_loads_neither_settings_nor_an_event_loop() -> None:
    """Supervisors ask every few seconds, and on a busy machine give up on an answer that takes too long."""
    loaded = loaded_by("import bkpy.cli.output.errors, bkpy.cli.bookie.group, bkpy.cli.bookie.health")
    assert "bkpy.cli.app" in loaded
    assert not {"asyncio", "pydantic", "bkpy.config.bookie"} & loaded


@pytest.mark.thorough
def test_a_bookie_loads_no_http_server() -> None:
    """Most have no page of metrics, and would take half as long again to start."""
    loaded = loaded_by("import bkpy.bookie.process")
    assert "bkpy.storage.engine" in loaded
    assert "aiohttp" not in loaded


@pytest.mark.thorough
def test_nothing_but_bookkeepers_own_protocol_loads_protobuf() -> None:
    loaded = loaded_by("import bkpy, bkpy.bookie.process, bkpy.local.cluster; bkpy.connect, bkpy.AdminClient")
    assert {"bkpy.client.client", "bkpy.storage.engine"} <= loaded
    assert not {name for name in loaded if name.startswith(("google.protobuf", "bkpy.protocol.bookkeeper"))}
    assert "bkpy.metadata.bookkeeper.cluster" not in loaded
