"""Turns a simulated run into traces of `spec/Ledger.tla`: for each ledger, what happened to it in the model's actions.

The run is watched from outside, by public methods that its parts call of each other; production code doesn't know of
it. An event stands where the model's step takes effect: a bookie's when it may say so, a change of the metadata when
the store has accepted it, an acknowledgement when the writer counts it.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.store.store import Create, Delete, Put
from bkpy.protocol.ledger.acks import LedgerAcks
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.wire.messages import Flags, decode_add
from bkpy.protocol.wire.records import walk
from bkpy.recovery.write_back import WriteBack
from bkpy.storage.engine import LedgerStorage
from bkpy.storage.journal.journal import Journal
from tests.sim.cluster import ROOT
from tests.sim.loop import CURRENT
from tests.sim.runs import RUNS

from .models import LEDGER_INVARIANTS
from .tlc import Verdict, check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bkpy.buffers import Bytes
    from bkpy.protocol.ledger.acks import Batch
    from bkpy.protocol.wire.messages import AddColumns
    from bkpy.recovery.write_back import RecoveredEntry
    from bkpy.storage.journal.journal import Position
    from tests.sim.world import World

LEDGERS_MAX = 2000  # ids of the ledgers of a run
CHANGE, RECOVERY, SWAP = "ensemble change", "recovery", "swap"
UNMODELLED = "holes and accepted losses"


class Denial(NamedTuple):
    """What a bookie has denied: all ids from `first` to `last` but for these ranges."""

    event: dict[str, Any]
    first: int
    last: int
    others: Sequence[tuple[int, int]]

    def up_to(self, highest: int) -> frozenset[int]:
        ids = set(range(self.first, min(self.last, highest) + 1))
        for low, high in self.others:
            ids.difference_update(range(low, min(high, highest) + 1))
        return frozenset(ids)


@dataclass
class Trace:
    """One ledger's: its sizes, and the events in the order in which they took effect."""

    ledger_id: int
    metadata: LedgerMetadata  # the newest
    events: list[dict[str, Any]] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)  # what there is in it of that which a trace is worth checking for
    recoveries: list[WriteBack] = field(default_factory=list)
    denials: list[Denial] = field(default_factory=list)
    highest: int = -1  # the highest id sent
    batches: list[range] = field(default_factory=list)  # that the writer has sent
    over: bool = False  # the ledger was deleted, or something came that the model doesn't know

    def add(self, action: str, **values: Any) -> dict[str, Any]:
        event = {"a": action, **values}
        if not self.over:
            self.events.append(event)
        return event


class Watch:
    """Of one world. `traces` by ledger; all bookies have numbers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.traces: dict[int, Trace] = {}
        self._ids = {LONG_HIERARCHICAL.path_of(ROOT, n): n for n in range(LEDGERS_MAX)}
        self._bookies: dict[str, int] = {}
        self._acks: dict[int, tuple[LedgerAcks, Trace]] = {}  # of writers; by their identity while they are kept
        self._fencing: contextvars.ContextVar[bool] = contextvars.ContextVar("fencing", default=False)

    def number(self, bookie_id: str) -> int:
        return self._bookies.setdefault(bookie_id, len(self._bookies) + 1)

    def ensemble(self, fragment: Fragment) -> tuple[int, ...]:
        return tuple(map(self.number, fragment.bookies))

    def _here(self) -> int:
        """The bookie that runs."""
        incarnation = CURRENT.get()
        assert incarnation is not None
        names = [name for name, host in self.world.hosts.items() if host.address == incarnation.address]
        return self.number(names[0])

    def counting(self) -> list[Trace]:
        """The traces that have an ensemble change, a recovery or a swap, and nothing that isn't modelled."""
        found = [trace for trace in self.traces.values() if trace.kinds and UNMODELLED not in trace.kinds]
        for trace in found:
            for denial in trace.denials:  # also of what was sent only later
                denial.event["s"] = denial.up_to(trace.highest + 1)
        return found

    # --- the metadata -----------------------------------------------------------------------------------------------

    def written(self, operation: object) -> None:
        """The metadata store has accepted it."""
        if not isinstance(operation, Create | Put | Delete) or (ledger_id := self._ids.get(operation.path)) is None:
            return
        if isinstance(operation, Create):
            value = LedgerMetadata.decode(ledger_id, operation.data)
            trace = self.traces[ledger_id] = Trace(ledger_id, value)
            trace.add("create", ens=self.ensemble(value.fragments[0]))
        elif (known := self.traces.get(ledger_id)) is not None:
            if isinstance(operation, Delete):
                known.over = True
            else:
                self._changed(known, LedgerMetadata.decode(ledger_id, operation.data))

    def _changed(self, trace: Trace, new: LedgerMetadata) -> None:
        old, trace.metadata = trace.metadata, new
        more = len(new.fragments) > len(old.fragments)
        if new.accepted_loss is not None or (more and old.state is LedgerState.CLOSED):
            trace.kinds.add(UNMODELLED)
            trace.over = True
        elif (old.state, new.state) == (LedgerState.OPEN, LedgerState.IN_RECOVERY):
            trace.add("mark")
        elif new.state is LedgerState.CLOSED and old.state is LedgerState.OPEN:
            trace.add("end", n=new.last_entry)
        elif new.state is LedgerState.CLOSED and old.state is LedgerState.IN_RECOVERY:
            trace.kinds.add(RECOVERY)
            frags = tuple({"first": f.first_entry, "ens": self.ensemble(f)} for f in new.fragments)
            trace.add("close", n=new.last_entry, frags=frags)
        elif new.state is LedgerState.OPEN and new.fragments[-1] != old.fragments[-1]:
            trace.kinds.add(CHANGE)
            first = new.fragments[-1].first_entry
            again = frozenset(n for batch in trace.batches if first <= batch[-1] for n in batch if n < first)
            trace.add("change", n=first, ens=self.ensemble(new.fragments[-1]), again=again)
        else:
            self._swapped(trace, old.fragments, new.fragments)

    def _swapped(self, trace: Trace, old: Sequence[Fragment], new: Sequence[Fragment]) -> None:
        for index, (before, after) in enumerate(zip(old, new, strict=True), start=1):
            for gone, came in zip(before.bookies, after.bookies, strict=True):
                if gone != came:
                    trace.kinds.add(SWAP)
                    trace.add("swap", i=index, old=self.number(gone), new=self.number(came))

    # --- the client -------------------------------------------------------------------------------------------------

    def sent(self, acks: LedgerAcks, batch: Batch) -> None:
        trace, replication = self.traces[batch.ledger_id], batch.owner
        if isinstance(replication.source, WriteBack):
            return  # `add` has told
        self._acks[id(acks)] = acks, trace
        stride = trace.metadata.ensemble_size if replication.striped else 1
        trace.highest = max(trace.highest, batch.last_id)
        trace.batches.append(range(batch.first_id, batch.last_id + 1, stride))
        trace.add("send", s=frozenset(trace.batches[-1]))

    def acknowledged(self, acks: LedgerAcks) -> None:
        known = self._acks.get(id(acks))
        if known is not None:
            known[1].add("ack", n=acks.last_add_confirmed)

    def recovery_begins(self, recovery: WriteBack, metadata: LedgerMetadata, confirmed: int) -> None:
        trace = self.traces[metadata.ledger_id]
        trace.recoveries.append(recovery)
        last = metadata.fragments[-1]
        fragment = {"first": last.first_entry, "ens": self.ensemble(last)}
        trace.add("begin", r=len(trace.recoveries), n=confirmed, last=fragment)

    def found(self, recovery: WriteBack, entry_id: int) -> None:
        trace = self.traces[recovery.metadata.ledger_id]
        number = trace.recoveries.index(recovery) + 1
        last = trace.events[-1]
        if (last["a"], last.get("r")) == ("find", number):
            last["n"] = entry_id
        else:
            trace.add("find", r=number, n=entry_id)

    def spare(self, recovery: WriteBack, confirmed: int, ensemble: Sequence[str]) -> None:
        trace = self.traces[recovery.metadata.ledger_id]
        trace.kinds.add(CHANGE)
        number = trace.recoveries.index(recovery) + 1
        trace.add("spare", r=number, n=confirmed, ens=tuple(map(self.number, ensemble)))

    # --- bookies ----------------------------------------------------------------------------------------------------

    def stored(self, columns: AddColumns) -> None:
        action = "back" if columns.flags & Flags.RECOVERY else "store"
        for i, ledger_id in enumerate(columns.ledger_ids):
            stride = columns.strides if isinstance(columns.strides, int) else columns.strides[i]
            first, count = columns.first_ids[i], columns.counts[i]
            ids = frozenset(range(first, first + count * stride, stride))
            if (trace := self.traces.get(ledger_id)) is not None:
                trace.add(action, b=self._here(), s=ids)

    def fenced(self, ledger_id: int, key: bytes) -> None:
        trace = self.traces.get(ledger_id)
        if trace is not None and key == trace.metadata.ledger_key:  # a stranger's fence gives way
            trace.add("fence", b=self._here())

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Of the world as it is patched already: to be entered when its run has begun."""
        tree = self.world.metadata
        apply, apply_all = tree.apply, tree.apply_all
        add, fence, read = Journal.add, LedgerStorage.fence, LedgerStorage.read
        sent, done, thaw = LedgerAcks.sent, LedgerAcks.done, LedgerAcks.thaw
        begin, found, store = WriteBack.__init__, WriteBack.add, WriteBack.store
        inside = False

        def watched_apply(operation: Any, *args: Any) -> Any:
            result = apply(operation, *args)
            if not inside:
                self.written(operation)
            return result

        def watched_apply_all(operations: Sequence[Any], *args: Any) -> Any:
            nonlocal inside
            inside = True
            try:
                result = apply_all(operations, *args)
            finally:
                inside = False
            for operation in operations:
                self.written(operation)
            return result

        def watched_add(journal: Journal, head: Bytes, body: Bytes, on_durable: Callable[[], None]) -> Position:
            # The answer waits for all journals that the frame goes to; a fence for its own ledger's alone.
            columns = decode_add(head, len(body))

            def durable() -> None:
                self.stored(columns)
                on_durable()

            return add(journal, head, body, durable)

        async def watched_fence(storage: LedgerStorage, ledger_id: int, key: bytes) -> bool:
            durable = await fence(storage, ledger_id, key)
            if durable:
                self.fenced(ledger_id, key)
                self._fencing.set(True)  # the rest of the request's task answers a recovery
            return durable

        async def watched_read(storage: LedgerStorage, ledger_id: int, first: int, last: int, bytes_max: int) -> Any:
            trace = self.traces.get(ledger_id)
            if trace is None or not self._fencing.get():
                return await read(storage, ledger_id, first, last, bytes_max)
            # What is denied was not there when the read began, and may come before it ends.
            event = trace.add("deny", b=self._here(), s=frozenset())
            result = await read(storage, ledger_id, first, last, bytes_max)
            there = [(header.entry_id,) * 2 for header in walk(memoryview(b"".join(result.segments)))]
            trace.denials.append(Denial(event, first, result.examined_to, [*there, *result.unknown]))
            return result

        def watched_sent(acks: LedgerAcks, batch: Batch) -> None:
            self.sent(acks, batch)
            sent(acks, batch)

        def watched_done(acks: LedgerAcks, batch: Batch) -> int:
            before = acks.last_add_confirmed
            if (confirmed := done(acks, batch)) > before:
                self.acknowledged(acks)
            return confirmed

        def watched_thaw(acks: LedgerAcks) -> int:
            before = acks.last_add_confirmed
            if (confirmed := thaw(acks)) > before:
                self.acknowledged(acks)
            return confirmed

        def watched_begin(recovery: WriteBack, metadata: LedgerMetadata, **options: Any) -> None:
            begin(recovery, metadata, **options)
            self.recovery_begins(recovery, metadata, options["confirmed"])

        async def watched_found(recovery: WriteBack, run: RecoveredEntry) -> None:
            self.found(recovery, run.entry_id)
            await found(recovery, run)

        async def watched_store(recovery: WriteBack, fragment: Any, ensemble: Sequence[str], replaced: Any) -> Any:
            self.spare(recovery, fragment.confirmed, ensemble)
            return await store(recovery, fragment, ensemble, replaced)

        with (
            patch.object(tree, "apply", watched_apply),
            patch.object(tree, "apply_all", watched_apply_all),
            patch.object(Journal, "add", watched_add),
            patch.object(LedgerStorage, "fence", watched_fence),
            patch.object(LedgerStorage, "read", watched_read),
            patch.object(LedgerAcks, "sent", watched_sent),
            patch.object(LedgerAcks, "done", watched_done),
            patch.object(LedgerAcks, "thaw", watched_thaw),
            patch.object(WriteBack, "__init__", watched_begin),
            patch.object(WriteBack, "add", watched_found),
            patch.object(WriteBack, "store", watched_store),
        ):
            yield


def watched(scenario: str, seed: int) -> tuple[Watch, Callable[[], None]]:
    """Who watches a run, and what plays it; that raises what the run raises."""
    cluster, run = RUNS[scenario](seed)
    watch = Watch(cluster.world)

    async def play() -> None:
        with watch.watching():
            await run

    return watch, lambda: cluster.run(play())


def traces_of(scenario: str, seed: int) -> list[Trace]:
    """Play a run; the traces of its ledgers that count."""
    watch, play = watched(scenario, seed)
    play()
    return watch.counting()


# --- as TLC reads them ----------------------------------------------------------------------------------------------


def explain(traces: Sequence[Trace], directory: Path, *, brief: bool = False) -> Verdict:
    """Whether the model explains them all: "deadlock" is violated if it doesn't explain one."""
    (directory / "Traces.tla").write_text(_module(traces))
    ensembles = [n for t in traces for e in t.events for n in (*e.get("ens", ()), e.get("b", 0), e.get("new", 0))]
    recoveries = max(1, *(len(trace.recoveries) for trace in traces))
    constants = {"Bookies": f"{{{_numbers(max(ensembles))}}}", "Recoveries": f"{{{_numbers(recoveries)}}}", "Off": "{}"}
    return check(
        "LedgerTrace",
        directory,
        init="TraceInit",
        next_="TraceNext",
        constants=constants,
        invariants=LEDGER_INVARIANTS,
        deadlocks=True,
        brief=brief,
    )


def refused_at(traces: Sequence[Trace], verdict: Verdict) -> str:
    """The action of the event that the model doesn't explain."""
    last = verdict.text[verdict.text.rindex("\nState ") :]
    trace, at = (int(re.findall(rf"^/\\ {name} = (\d+)", last, re.MULTILINE)[0]) for name in ("trace", "at"))
    return str(_events(traces[trace - 1])[at - 1]["a"])


def _numbers(count: int) -> str:
    return ", ".join(map(str, range(1, count + 1)))


def _events(trace: Trace) -> list[dict[str, Any]]:
    return [event for event in trace.events if event.get("s") != frozenset()]


def _module(traces: Sequence[Trace]) -> str:
    parts = []
    for trace in traces:
        sizes = trace.metadata
        size = {"e": sizes.ensemble_size, "w": sizes.write_quorum, "a": sizes.ack_quorum}
        parts.append(f"[size |-> {_tla(size)}, events |-> <<\n" + ",\n".join(map(_tla, _events(trace))) + ">>]")
    return "---- MODULE Traces ----\nEXTENDS Integers\nAllTraces == <<\n" + ",\n".join(parts) + "\n>>\n====\n"


def _tla(value: Any) -> str:
    """A value of a trace in TLA+."""
    if isinstance(value, dict):
        return "[" + ", ".join(f"{name} |-> {_tla(one)}" for name, one in value.items()) + "]"
    if isinstance(value, tuple):
        return "<<" + ", ".join(map(_tla, value)) + ">>"
    if isinstance(value, frozenset):
        ids = sorted(value)
        if len(ids) > 2 and ids[-1] - ids[0] == len(ids) - 1:
            return f"{ids[0]}..{ids[-1]}"
        return "{" + ", ".join(map(str, ids)) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)
