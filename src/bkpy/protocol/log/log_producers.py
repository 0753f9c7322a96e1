"""The producers of a log: which of their numbers the log has, and where; pure decisions on what is appended.

A *producer* is a name under which an application appends entries with numbers of its own, ascending by one. The list
of the log has, for its sealed segments, the newest *runs* of each producer: consecutive numbers at consecutive
positions. An opener adds the runs of the unsealed segments once their ledgers are CLOSED. A Spark writer's id is a
producer, too: it has the number of its last batch, and its batches are committed with the list.

    known in a run, or appended by this writer    the entry's position, and nothing is written
    the next number                               is appended
    any other number                              `SequenceError`
    a producer that was forgotten                 `ForgottenProducerError`, before its writer fences another one

Invariants: a number is appended once; the last number never falls but for an accepted loss, or with a producer that
begins again; an index is never used for two producers; a producer that was forgotten is not taken for a new one; a
Spark writer's id is forgotten by an operator alone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bkpy.errors import ConfigError, CorruptDataError, ForgottenProducerError, SequenceError

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING: Final = -1  # the last number of a producer that has none
SEQUENCE_MAX: Final = 2**62  # so that no ledger's entries get past what a stamp can hold
RUNS_MAX: Final = 4
_MS: Final = 1000


class Numbering(NamedTuple):
    """The numbers of a segment's entries: entry i has `first_sequence` + i, of the producer with this index."""

    producer: int
    first_sequence: int


class NumberRun(NamedTuple):
    """So many `entries` of one producer with consecutive numbers, at consecutive positions."""

    first_sequence: int
    first_position: int
    entries: int

    @property
    def end(self) -> int:
        """The number behind the last one."""
        return self.first_sequence + self.entries


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer of numbered entries. `runs`: the newest ones, ascending.

    `active_ms`: when it had its last entry in a sealed segment, or held the log open, in milliseconds since the epoch.
    """

    index: int
    active_ms: int
    runs: tuple[NumberRun, ...] = ()

    @property
    def last_sequence(self) -> int:
        """The highest number that the log has; `NOTHING` if it has none."""
        return self.runs[-1].end - 1 if self.runs else NOTHING

    def position_of(self, sequence: int) -> int | None:
        """The position of the entry with this number; None if no run has it."""
        for run in reversed(self.runs):
            if run.first_sequence <= sequence < run.end:
                return run.first_position + sequence - run.first_sequence
        return None

    def with_run(self, run: NumberRun, last_ms: int, runs_max: int) -> Producer:
        """With a run behind the others, of which it may be the continuation."""
        runs = self.runs
        if (
            runs
            and runs[-1].end == run.first_sequence
            and runs[-1].first_position + runs[-1].entries == run.first_position
        ):
            run = NumberRun(runs[-1].first_sequence, runs[-1].first_position, runs[-1].entries + run.entries)
            runs = runs[:-1]
        return Producer(self.index, max(self.active_ms, last_ms), (*runs, run)[-runs_max:])


@dataclass(frozen=True, slots=True)
class SinkWriter:
    """A Spark writer: `batch` is the last one that was committed."""

    batch: int


@dataclass(frozen=True, slots=True)
class Producers:
    """Those of one log. `known`: by name. `next_index`: of the next new producer.

    `forgotten`: names of producers that were idle for too long, the last one at the end; with `others_forgotten`, there
    were more.
    """

    known: Mapping[str, Producer | SinkWriter] = field(default_factory=dict, hash=False)
    next_index: int = 0
    forgotten: tuple[str, ...] = ()
    others_forgotten: bool = False

    @property
    def batches(self) -> dict[str, int]:
        """The last batches of Spark writers, the latest committed at the end."""
        return {name: one.batch for name, one in self.known.items() if isinstance(one, SinkWriter)}

    def numbered(self, name: str) -> Producer | None:
        """The producer of numbered entries of that name, if it is known."""
        found = self.known.get(name)
        return found if isinstance(found, Producer) else None

    # --- opening ----------------------------------------------------------------------------------------------------

    def check(self, log: str, name: str, now_ms: int, idle_s: float, known_max: int, *, new: bool) -> None:
        """Raise what speaks against an opening of the log by this producer, before anybody is fenced.

        `new`: the caller says that it has no append whose outcome it doesn't know. Raises `ForgottenProducerError`, and
        `ConfigError` for a Spark writer's id or one producer more than `known_max`.
        """
        found = self.known.get(name)
        if isinstance(found, SinkWriter):
            raise ConfigError(f"{name} is the writerId of a Spark job that writes to log {log}: use another producer")
        if found is not None and not _is_idle(found, now_ms, idle_s):
            return
        if not new and (found is not None or name in self.forgotten or self.others_forgotten):
            if found is not None or name in self.forgotten:
                what = f"log {log} has forgotten producer {name}, which was idle for more than log_producer_idle_s"
            else:
                what = f"log {log} doesn't know producer {name}, and may have forgotten it"
            raise ForgottenProducerError(
                f"{what}: find out which of its entries the log has, then open the log with new_producer=True"
            )
        others = [
            one for one in self.known.values() if isinstance(one, SinkWriter) or not _is_idle(one, now_ms, idle_s)
        ]
        if len(others) >= known_max:
            raise ConfigError(
                f"log {log} remembers {len(others)} producers and Spark writers, as many as log_producers_max "
                f"allows, so {name} can't be a further one: use names again, or remove some that never come back with "
                f"bkpy log producers {log} --delete NAME"
            )

    def opened(self, name: str, now_ms: int, idle_s: float, known_max: int) -> Producers:
        """When the log is opened by the producer `name`, "" for a writer without one: idle producers are gone.

        To be called behind `check`, when the runs of all ledgers are there.
        """
        producers = self
        for other, one in self.known.items():
            if isinstance(one, Producer) and _is_idle(one, now_ms, idle_s):
                producers = producers.without(other, known_max)
        if not name:
            return producers
        known, index = dict(producers.known), producers.next_index
        found = producers.numbered(name)
        if found is None:
            found, index = Producer(index, now_ms), index + 1
        known[name] = dataclasses.replace(found, active_ms=max(now_ms, found.active_ms))
        forgotten = tuple(other for other in producers.forgotten if other != name)
        return dataclasses.replace(producers, known=known, next_index=index, forgotten=forgotten)

    def without(self, name: str, forgotten_max: int) -> Producers:
        """Without this producer, or this Spark writer, whose name is no other's again without a notice."""
        known = {other: one for other, one in self.known.items() if other != name}
        if isinstance(self.known.get(name), SinkWriter):
            return dataclasses.replace(self, known=known)
        forgotten = (*(other for other in self.forgotten if other != name), name)
        more = self.others_forgotten or len(forgotten) > forgotten_max
        return dataclasses.replace(self, known=known, forgotten=forgotten[-forgotten_max:], others_forgotten=more)

    # --- what is in the log -----------------------------------------------------------------------------------------

    def with_segment(
        self, ledger_id: int, numbering: Numbering, first_position: int, entries: int, last_ms: int, runs_max: int
    ) -> Producers:
        """With the entries of a segment that is sealed now, behind all others.

        Nothing changes for a producer that an operator has removed. Raises `CorruptDataError` for numbers that the log
        has already, which no writer brings about.
        """
        for name, one in self.known.items():
            if isinstance(one, Producer) and one.index == numbering.producer:
                if numbering.first_sequence <= one.last_sequence:
                    raise CorruptDataError(
                        f"the ledger begins with number {numbering.first_sequence} of producer {name}, which has "
                        f"numbers up to {one.last_sequence} before it",
                        ledger_id=ledger_id,
                    )
                run = NumberRun(numbering.first_sequence, first_position, entries)
                return dataclasses.replace(self, known={**self.known, name: one.with_run(run, last_ms, runs_max)})
        return self

    def with_batch(self, writer_id: str, batch: int) -> Producers:
        """With the last committed batch of a Spark writer, which becomes the last one."""
        known = {other: one for other, one in self.known.items() if other != writer_id}
        return dataclasses.replace(self, known={**known, writer_id: SinkWriter(batch)})

    def active(self, name: str, now_ms: int) -> Producers:
        """When the producer still holds the log open."""
        found = self.numbered(name)
        if found is None:
            return self
        return dataclasses.replace(
            self, known={**self.known, name: dataclasses.replace(found, active_ms=max(now_ms, found.active_ms))}
        )

    # --- the stored form --------------------------------------------------------------------------------------------

    def stored(self) -> dict[str, Any]:
        """As JSON has it: what is empty is left out, so that a log without producers has a shorter list."""
        known: dict[str, Any] = {}
        for name, one in self.known.items():
            if isinstance(one, SinkWriter):
                known[name] = {"batch": one.batch}
            else:
                known[name] = {"index": one.index, "active_ms": one.active_ms, "runs": [list(run) for run in one.runs]}
        found: dict[str, Any] = {}
        if known:
            found["known"] = known
        if self.next_index:
            found["next_index"] = self.next_index
        if self.forgotten:
            found["forgotten"] = list(self.forgotten)
        if self.others_forgotten:
            found["others_forgotten"] = True
        return found

    @staticmethod
    def of(stored: dict[str, Any]) -> Producers:
        """From its JSON. Raises `ValueError`, `KeyError` or `TypeError` for what isn't that."""
        known: dict[str, Producer | SinkWriter] = {}
        for name, one in stored.get("known", {}).items():
            if "batch" in one:
                known[name] = SinkWriter(_of(int, one["batch"]))
                continue
            runs = tuple(NumberRun(*(_of(int, number) for number in run)) for run in one["runs"])
            if any(run.entries < 1 for run in runs) or any(
                after.first_sequence < before.end for before, after in pairwise(runs)
            ):
                raise ValueError(f"producer {name} can't have the runs {runs}")
            known[name] = Producer(_of(int, one["index"]), _of(int, one["active_ms"]), runs)
        next_index = _of(int, stored.get("next_index", 0))
        indexes = [one.index for one in known.values() if isinstance(one, Producer)]
        if len(set(indexes)) < len(indexes) or any(not 0 <= index < next_index for index in indexes):
            raise ValueError(f"producers can't have the indexes {indexes}, below {next_index}")
        return Producers(
            known,
            next_index,
            tuple(_of(str, name) for name in stored.get("forgotten", ())),
            _of(bool, stored.get("others_forgotten", False)),
        )


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:  # True is an int to isinstance
        raise ValueError(f"expected {kind.__name__}, found {value!r}")
    return value


def _is_idle(producer: Producer, now_ms: int, idle_s: float) -> bool:
    return producer.active_ms + idle_s * _MS < now_ms


# --- one writer -------------------------------------------------------------------------------------------------------


class Sequences:
    """The numbers of one writer's appends, all of them of one producer.

    They ascend by one with the positions, from where the writer began. `next`: the number to append next; None for
    a new producer, which begins with any.
    """

    __slots__ = ("_first", "_first_position", "_log", "_name", "_producer", "next")

    def __init__(self, log: str, name: str, producer: Producer, first_position: int) -> None:
        self._log = log
        self._name = name
        self._producer = producer
        self._first: int | None = None  # of this writer's numbers
        self._first_position = first_position
        self.next: int | None = producer.last_sequence + 1 if producer.runs else None

    def check(self, sequence: object) -> int:
        """The number, if it can be one. Raises `ConfigError`."""
        if type(sequence) is not int or not 0 <= sequence < SEQUENCE_MAX:
            given = "none was given" if sequence is None else f"not {sequence!r}"
            raise ConfigError(
                f"each append of producer {self._name} to log {self._log} has a sequence, a number from 0 on: {given}"
            )
        return sequence

    def position_of(self, sequence: int) -> int | None:
        """The position of an append with this number, in the log or on its way; None if it is the next number.

        Raises `SequenceError` for a number behind the next one, and for a lower one that isn't known to be in the log.
        """
        if sequence == self.next or self.next is None:
            return None
        if sequence > self.next:
            raise SequenceError(
                f"producer {self._name} of log {self._log} has appended numbers up to {self.next - 1}, so the next one "
                f"is {self.next}, not {sequence}"
            )
        if self._first is not None and sequence >= self._first:
            return self._first_position + sequence - self._first
        position = self._producer.position_of(sequence)
        if position is None:
            known = f"known from {self._producer.runs[0].first_sequence} on" if self._producer.runs else "not known"
            raise SequenceError(
                f"it is not known whether log {self._log} has number {sequence} of producer {self._name}: its numbers "
                f"before {self.next} are {known}. Nothing was written"
            )
        return position

    def claim(self, sequence: int, count: int = 1) -> int:
        """Take this number, the next one, and those behind it for appends; returns the position of the first."""
        if self._first is None:
            self._first = sequence
        self.next = sequence + count
        return self._first_position + sequence - self._first

    def following(self, sequence: int) -> int:
        """The position that an append with this number would get, which is the next one."""
        return self._first_position + (0 if self._first is None else sequence - self._first)

    def last(self, acknowledged: int) -> int:
        """The highest number that is in the log; `acknowledged` is the position behind all that is."""
        if self._first is None or acknowledged <= self._first_position:
            return self._producer.last_sequence
        return self._first + acknowledged - self._first_position - 1
