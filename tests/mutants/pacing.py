"""Defects of the rate that background work keeps to."""

from __future__ import annotations

from tests.mutants import Mutant

_PACER = "tests/unit/runtime/test_pacer.py"
_COPIES = "tests/unit/replication/worker/test_copy_rate.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "rests of background work saved up",
        "after a quiet hour a scrub reads as fast as the disk can, beside clients",
        "self._free_at = max(self._free_at, now) + amount / self.per_s",
        "self._free_at += amount / self.per_s",
        (f"{_PACER}::test_a_rest_gives_no_credit",),
    ),
    Mutant(
        "tasks that share a rate each take all of it",
        "copies made at once are as many times too fast",
        "self._free_at = begins_at + amount / self.per_s",
        "self._free_at = now + amount / self.per_s",
        (f"{_PACER}::test_turns_of_several_tasks_stay_within_the_rate",),
    ),
    Mutant(
        "an answer is late after a fixed time, however slow the disk is",
        "a cluster on slow disks copies at its least rate for ever",
        "        late_s = max(settings.copy_late_s, settings.copy_late_factor * quickest)\n",
        "        late_s = settings.copy_late_s\n",
        (f"{_COPIES}::test_on_a_slow_disk_an_answer_is_late_that_takes_some_times_as_long_as_others",),
    ),
    Mutant(
        "the quickest answer to a copy is remembered for ever",
        "after one answer of an idle bookie those of busy ones are late for ever",
        "min(seconds, former.seconds * _FORGOTTEN)",
        "min(seconds, former.seconds)",
        (f"{_COPIES}::test_quick_answers_of_long_ago_do_not_make_all_others_late",),
    ),
    Mutant(
        "a bookie's answers to copies are measured by the quickest ones of all bookies",
        "one bookie with a slow disk keeps a cluster's copies at the least rate, for it is always late",
        "self._quickest.setdefault(bookie_id, {})",
        'self._quickest.setdefault("", {})',
        (f"{_COPIES}::test_a_bookie_with_a_slow_disk_among_quick_ones_is_not_always_late",),
    ),
    Mutant(
        "a bookie's answers to copies are measured by the quickest ones to parts of any size",
        "beside small ledgers, those with large entries are copied at the least rate to bookies that are idle",
        "size = count.bit_length()",
        "size = 0",
        (f"{_COPIES}::test_a_large_part_is_not_late_nor_are_small_ones_behind_it",),
    ),
    Mutant(
        "an answer to a part of a copy is measured by those to parts of its own size alone",
        "small parts that wait behind a large one of the same copies keep all copies at the least rate",
        "quickest = max(one.seconds for one in by_size.values() if now - one.at < _LATELY_S)",
        "quickest = by_size[size].seconds",
        (f"{_COPIES}::test_a_large_part_is_not_late_nor_are_small_ones_behind_it",),
    ),
    Mutant(
        "answers to large parts of copies count for ever",
        "copies of small entries hold up clients for as long as large ones of last week took",
        "for one in by_size.values() if now - one.at < _LATELY_S)",
        "for one in by_size.values())",
        (f"{_COPIES}::test_a_large_part_is_not_late_nor_are_small_ones_behind_it",),
    ),
]
