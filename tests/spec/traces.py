"""Turns what `telling.py` tells into traces of `spec/Ledger.tla`: for each ledger, its events as the model's actions.

An event stands where the model's step takes effect: a bookie's when it may say so, a change of the metadata when the
store has accepted it, an acknowledgement when the writer counts it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState

from .models import LEDGER_INVARIANTS
from .tlc import Verdict, check

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from pathlib import Path

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
    recoveries: int = 0
    denials: list[Denial] = field(default_factory=list)
    kept: dict[int, set[int]] = field(default_factory=dict)  # by bookie: what it has said that it has
    started: dict[int, int] = field(default_factory=dict)  # by bookie: the place in `events` of its last start
    highest: int = -1  # the highest id sent
    batches: list[range] = field(default_factory=list)  # that the writer has sent
    over: bool = False  # the ledger was deleted, or something came that the model doesn't know

    def add(self, action: str, **values: Any) -> dict[str, Any]:
        event = {"a": action, **values}
        if not self.over:
            self.events.append(event)
        return event

    def reveal(self, bookie: int, ids: Sequence[int]) -> None:
        """It has these. What it never told, it had stored when it was killed."""
        untold = frozenset(ids) - self.kept.setdefault(bookie, set())
        if untold and bookie in self.started:
            place = self.started[bookie]
            self.events.insert(place, {"a": "store", "b": bookie, "s": untold})
            self.started = {one: at + (at > place) for one, at in self.started.items()}
            self.kept[bookie] |= untold


class Watch:
    """A `Listener`, to which the changes of the metadata are told as well. `traces` by ledger; bookies get numbers."""

    def __init__(self) -> None:
        self.traces: dict[int, Trace] = {}
        self._bookies: dict[str, int] = {}
        self._writers: dict[Hashable, Trace] = {}
        self._recoveries: dict[Hashable, tuple[Trace, int]] = {}
        self._reads: dict[Hashable, tuple[Trace, dict[str, Any]]] = {}

    def number(self, bookie_id: str) -> int:
        return self._bookies.setdefault(bookie_id, len(self._bookies) + 1)

    def ensemble(self, bookies: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self.number, bookies))

    def counting(self) -> list[Trace]:
        """The traces that have an ensemble change, a recovery or a swap, and nothing that isn't modelled."""
        found = [trace for trace in self.traces.values() if trace.kinds and UNMODELLED not in trace.kinds]
        for trace in found:
            for denial in trace.denials:  # also of what was sent only later
                denial.event["s"] = denial.up_to(trace.highest + 1)
        return found

    # --- the metadata -----------------------------------------------------------------------------------------------

    def written(self, ledger_id: int, data: bytes | None) -> None:
        """The metadata store has accepted it; None: the ledger is gone."""
        trace = self.traces.get(ledger_id)
        if data is None:
            if trace is not None:
                trace.over = True
        elif trace is None:
            value = LedgerMetadata.decode(ledger_id, data)
            trace = self.traces[ledger_id] = Trace(ledger_id, value)
            trace.add("create", ens=self.ensemble(value.fragments[0].bookies))
        else:
            self._changed(trace, LedgerMetadata.decode(ledger_id, data))

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
            frags = tuple({"first": f.first_entry, "ens": self.ensemble(f.bookies)} for f in new.fragments)
            trace.add("close", n=new.last_entry, frags=frags)
        elif new.state is LedgerState.OPEN and new.fragments[-1] != old.fragments[-1]:
            trace.kinds.add(CHANGE)
            first = new.fragments[-1].first_entry
            again = frozenset(n for batch in trace.batches if first <= batch[-1] for n in batch if n < first)
            trace.add("change", n=first, ens=self.ensemble(new.fragments[-1].bookies), again=again)
        else:
            self._swapped(trace, old.fragments, new.fragments)

    def _swapped(self, trace: Trace, old: Sequence[Fragment], new: Sequence[Fragment]) -> None:
        for index, (before, after) in enumerate(zip(old, new, strict=True), start=1):
            for gone, came in zip(before.bookies, after.bookies, strict=True):
                if gone != came:
                    trace.kinds.add(SWAP)
                    trace.add("swap", i=index, old=self.number(gone), new=self.number(came))

    # --- the client -------------------------------------------------------------------------------------------------

    def sent(self, writer: Hashable, ledger_id: int, first: int, last: int, striped: bool) -> None:
        trace = self._writers[writer] = self.traces[ledger_id]
        stride = trace.metadata.ensemble_size if striped else 1
        trace.highest = max(trace.highest, last)
        trace.batches.append(range(first, last + 1, stride))
        trace.add("send", s=frozenset(trace.batches[-1]))

    def acknowledged(self, writer: Hashable, confirmed: int) -> None:
        self._writers[writer].add("ack", n=confirmed)

    def begins(self, recovery: Hashable, ledger_id: int, first: int, ensemble: Sequence[str], confirmed: int) -> None:
        trace = self.traces[ledger_id]
        trace.recoveries += 1
        self._recoveries[recovery] = trace, trace.recoveries
        trace.add("begin", r=trace.recoveries, n=confirmed, last={"first": first, "ens": self.ensemble(ensemble)})

    def found(self, recovery: Hashable, entry_id: int) -> None:
        trace, number = self._recoveries[recovery]
        last = trace.events[-1]
        if (last["a"], last.get("r")) == ("find", number):
            last["n"] = entry_id
        else:
            trace.add("find", r=number, n=entry_id)

    def spare(self, recovery: Hashable, confirmed: int, ensemble: Sequence[str]) -> None:
        trace, number = self._recoveries[recovery]
        trace.kinds.add(CHANGE)
        trace.add("spare", r=number, n=confirmed, ens=self.ensemble(ensemble))

    # --- bookies ----------------------------------------------------------------------------------------------------

    def started(self, bookie: str) -> None:
        """A process; it begins again with all that is durable."""
        for trace in self.traces.values():
            trace.started[self.number(bookie)] = len(trace.events)

    def stored(self, bookie: str, back: bool, ledger_id: int, first: int, count: int, stride: int) -> None:
        if (trace := self.traces.get(ledger_id)) is not None:
            ids, number = frozenset(range(first, first + count * stride, stride)), self.number(bookie)
            trace.kept.setdefault(number, set()).update(ids)
            trace.add("back" if back else "store", b=number, s=ids)

    def fenced(self, bookie: str, ledger_id: int, key: bytes) -> None:
        trace = self.traces.get(ledger_id)
        if trace is not None and key == trace.metadata.ledger_key:  # a stranger's fence gives way
            trace.add("fence", b=self.number(bookie))

    def reads(self, bookie: str, ledger_id: int, read: Hashable) -> None:
        if (trace := self.traces.get(ledger_id)) is not None:
            self._reads[read] = trace, trace.add("deny", b=self.number(bookie), s=frozenset())

    def answers(self, read: Hashable, first: int, last: int, there: list[int], unknown: list[list[int]]) -> None:
        if read in self._reads:
            trace, event = self._reads.pop(read)
            trace.reveal(event["b"], there)
            trace.denials.append(Denial(event, first, last, [*((n, n) for n in there), *((a, z) for a, z in unknown)]))


# --- as TLC reads them ----------------------------------------------------------------------------------------------


def explain(traces: Sequence[Trace], directory: Path, *, brief: bool = False) -> Verdict:
    """Whether the model explains them all: "deadlock" is violated if it doesn't explain one."""
    (directory / "Traces.tla").write_text(_module(traces))
    ensembles = [n for t in traces for e in t.events for n in (*e.get("ens", ()), e.get("b", 0), e.get("new", 0))]
    recoveries = max(1, *(trace.recoveries for trace in traces))
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
