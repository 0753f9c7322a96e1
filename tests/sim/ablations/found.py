"""What was measured: for each ablation the first seed that notices, by the ablation's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import Found

if TYPE_CHECKING:
    from collections.abc import Mapping

FOUND: Final[Mapping[str, Found]] = {
    "2 last add confirmed moves during an ensemble change": Found("failover", 13, "was acknowledged when"),
    "16 a failed read counts as a denial": Found("failover", 120, "acknowledged and past the last entry, which is"),
    "20 a bookie does not fence a ledger that it never saw": Found("everything", 0, "liveness: recovery: not within"),
    "20 a fence is answered before it is durable": Found(
        "storage", 7, "the fence of ledger 9 is forgotten", cheap=True
    ),
    "25 a worker does not wait for the writer": Found("healing", 4, "its writer still had time"),
    "26 a newer record is removed": Found("healing", 37, "I10: a mark is lost: ledger 1 names bookie-4"),
    "27 a bookie is swapped in before its copy is made": Found("healing", 0, "I7: a copy was replaced by a worse one"),
    "30 manual moves take no lock": Found("healing", 0, "I7: a copy was replaced by a worse one"),
    "33 the last fragment of an open ledger is swapped": Found(
        "healing", 4, "not healed: bookie-4 misses [0, 1] of ledger 6"
    ),
    "36 an add behind the hiding does not stop the deletion": Found(
        "storage", 13, "ledger 9 has entries, but was never made known", cheap=True
    ),
    "37 a bookie without a cookie is not lost": Found("healing", 34, "not healed: ledger 0 names bookie-1"),
    "40 a rebuild does not fence unknown ids": Found("storage", 0, "the fence of ledger 2 is forgotten", cheap=True),
    "45 the right key is refused after a stranger's": Found("failover", 6, "recovery does not end"),
    "45 the fence of a replaced key stays": Found("standard", 1, "another client is recovering the ledger", cheap=True),
    "46 an id is freed beside copies": Found("healing", 41, "I7: a copy was replaced by a worse one"),
    "50 a worker ends writers for nothing": Found(
        "healing", 8, "I10: ledger 4 was recovered, and no bookie could take a place"
    ),
    "51 too few of a write set are there": Found("everything", 64, "I10: ledger 6 was created without ['bookie-1']"),
    "51 a creation makes no record": Found("everything", 8, "liveness: every copy there: bookie-3 misses"),
    "51 a bookie is taken in without a new fragment": Found(
        "everything", 8, "liveness: every copy there: bookie-3 misses"
    ),
    "53 an opener does not read unsealed numbers": Found("logs", 4, ", and a repetition"),
    "53 a forgotten producer begins again": Found("logs", 8, ", and a repetition"),
    "55 what is younger than the backup is collected": Found("everything", 6, "which may have been created since"),
    "55 a bookie joins a restored cluster without limbo": Found(
        "everything", 13, "was written before the restore was confirmed"
    ),
    "55 limbo ends before the restore is confirmed": Found(
        "everything", 6, "was written before the restore was confirmed"
    ),
    "55 a restored ledger ends without the bookies that no metadata name": Found(
        "everything", 32, "I1: after the metadata were restored, ledger 1 ends at 30"
    ),
    "55 a restored cluster gives out ids again": Found("everything", 6, "was given out twice"),
    "S1 frames are acknowledged without a sync": Found("storage", 1, "are unknown, and were not lost", cheap=True),
    "S3 damage is cut like a torn tail": Found("storage", 56, "are unknown, and were not lost", cheap=True),
    "S4 the directory of a new journal file is not synced": Found(
        "storage", 0, "the file that the last checkpoint relies on is gone", cheap=True
    ),
    "S4 the directory of a new entry log is not synced": Found(
        "storage", 1, "are unknown, and were not lost", cheap=True
    ),
    "S5 a generation goes before its checkpoint commits": Found(
        "storage", 86, "entries [2, 3, 4, 5] of ledger 1 (open) are denied", cheap=True
    ),
    "S6 a read looks into memory after the index": Found(
        "storage", 197, "entries [2, 21] of ledger 1 (open) are denied", cheap=True
    ),
    "S7 a block takes over a range of ids": Found("storage", 1, "are unknown, and were not lost", cheap=True),
    "S10 an unlisted ledger is deleted without a look": Found(
        "logs", 2, "another client has become the writer of log orders, or has deleted it"
    ),
    "S12 a collected ledger was never seen": Found(
        "standard", 0, "bookie-2 took appends to {3}, which it had fenced", cheap=True
    ),
    "S16 a fence is answered before it is durable": Found(
        "storage", 7, "the fence of ledger 9 is forgotten", cheap=True
    ),
    "S17 the name of a kept file is not synced": Found("storage", 144, "are unknown, and were not lost", cheap=True),
    "states a state is evicted for another of the same request": Found(
        "crowd", 54, "ledger 17: on fewer than 2 of their bookies"
    ),
    "outcomes a write in doubt counts as not stored": Found("failover", 13, "was acknowledged when"),
}
