"""What a worker counts of marked ledgers is what counting them one by one comes to, whatever is put in and dropped."""

from __future__ import annotations

import random
from collections import Counter

from bkpy.protocol.repair.rereplication import copies_left
from bkpy.replication.worker.backlog import Backlog, WriteSets

SETS: list[WriteSets] = [
    frozenset(),
    frozenset({("a", "b")}),
    frozenset({("a", "b"), ("b", "c")}),
    frozenset({("c", "d")}),
]


def test_the_counts_are_those_of_the_ledgers_in_it() -> None:
    rng = random.Random(1)
    backlog = Backlog()
    model: dict[int, tuple[int, WriteSets]] = {}
    for _ in range(3000):
        ledger_id = rng.randrange(20)
        if rng.random() < 0.4:
            backlog.drop(ledger_id)
            model.pop(ledger_id, None)
        else:
            model[ledger_id] = (rng.randrange(5), rng.choice(SETS))
            backlog.put(ledger_id, *model[ledger_id])
        readable = set(rng.sample("abcd", rng.randrange(5)))
        left = (copies_left(sets, readable) for _, sets in model.values())
        assert backlog.by_copies_left(readable) == Counter(count for count in left if count is not None)
        assert backlog.oldest_ms == min((since for since, _ in model.values()), default=None)
        assert len(backlog) == len(model)


def test_those_whose_marks_are_not_listed_any_more_are_dropped() -> None:
    backlog = Backlog()
    for ledger_id in range(4):
        backlog.put(ledger_id, ledger_id, SETS[1])
    backlog.begin_look()
    backlog.saw(0)
    backlog.put(1, 1, SETS[1])
    backlog.drop(2)
    backlog.put(7, 7, SETS[1])
    assert set(backlog.end_look()) == {3}
    assert backlog.by_copies_left({"a"}) == {1: 3}
    assert backlog.oldest_ms == 0
