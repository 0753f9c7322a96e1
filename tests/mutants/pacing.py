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
        "self._quickest.get(bookie_id, math.inf) * _FORGOTTEN)",
        "self._quickest.get(bookie_id, math.inf))",
        (f"{_COPIES}::test_quick_answers_of_long_ago_do_not_make_all_others_late",),
    ),
    Mutant(
        "a bookie's answers to copies are measured by the quickest ones of all bookies",
        "one bookie with a slow disk keeps a cluster's copies at the least rate, for it is always late",
        "        settings, pacer = self._settings, self._pacer\n        quickest =",
        '        settings, pacer, bookie_id = self._settings, self._pacer, ""\n        quickest =',
        (f"{_COPIES}::test_a_bookie_with_a_slow_disk_among_quick_ones_is_not_always_late",),
    ),
]
