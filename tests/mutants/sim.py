"""Defects that need a whole cluster in bad weather to show, and that simulated runs find from a fixed seed."""

from __future__ import annotations

from tests.mutants import Mutant

MUTANTS: list[Mutant] = [
    Mutant(
        "journal files go that one directory has checkpointed, and another has not",
        "a crash between the checkpoints of two ledger directories loses acknowledged entries",
        "journal.retain(min(s.row.marks[number].file_id for s in self.shards))",
        "journal.retain(shard.row.marks[number].file_id)",
        ("tests/sim/test_cluster_run.py::test_what_was_acknowledged_is_read_back[0-9]",),
    ),
    Mutant(
        "a ledger is closed over whatever anybody has stored meanwhile",
        "two ends of one ledger: what one of them was told is not so",
        "outcome = await catalog.write(closed, version)\nmatch outcome:\n    case Done():\n        return Closed(",
        "_, version = await catalog.read(ledger_id)\n"
        "outcome = await catalog.write(closed, version)\n"
        "match outcome:\n"
        "    case Done():\n"
        "        return Closed(",
        ("tests/sim/test_failover_run.py::test_a_ledger_survives_its_writer[0-9]",),
    ),
    Mutant(
        "the time of a read is compared with another sum than the one that was waited for",
        "a client that spins until the clock has gone on",
        "return [f for f, asked in self._asked.items() if f.done() or asked.at + self._timeout_s <= now]",
        "return [f for f, asked in self._asked.items() if f.done() or asked.at <= now - self._timeout_s]",
        ("tests/sim/test_crowd_run.py::test_a_read_has_its_time_however_seconds_are_rounded",),
    ),
]
