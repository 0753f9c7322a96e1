"""A bookie's settings: what a reload may change, and what a secret is."""

from __future__ import annotations

from typing import Final

from tests.mutants import Mutant

_RELOAD: Final = "tests/unit/bookie/test_reloading.py::"

MUTANTS = [
    Mutant(
        "a bookie that was moved leaves its former address in the metadata",
        "clients that come while it is away look for it where it was",
        "        if known is not None and known[0] == cookie:\n            return cookie\n        former",
        "        if known is not None:\n            return cookie\n        former",
        ("tests/unit/bookie/test_new_address.py::test_a_bookie_that_is_started_elsewhere_under_its_id_is_found_there",),
    ),
    Mutant(
        "a reload takes over settings that need a restart",
        "a bookie says that it listens elsewhere, and does not",
        "        take_over(self._live, given, [change.setting for change in found.changed])\n",
        "        take_over(self._live, given, [change.setting for change in found.changed + found.needs_restart])\n",
        (_RELOAD + "test_what_may_change_does_and_the_rest_is_named",),
    ),
    Mutant(
        "a reload does not check new values with those that stay",
        "a bookie's watermarks contradict each other, and it switches to and fro",
        "    build(type(live), {**values, **{name: getattr(after, name) for name in names}}, {})\n",
        "",
        (_RELOAD + "test_values_that_do_not_fit_those_that_stay_change_nothing",),
    ),
    Mutant(
        "a reload shows secrets",
        "a password is in the log",
        '        return "none" if value is None else "(secret)"\n',
        "        return str(value) if value is None else value.get_secret_value()  # type: ignore[attr-defined]\n",
        (
            _RELOAD + "test_what_may_change_does_and_the_rest_is_named",
            _RELOAD + "test_each_setting_is_shown_with_where_it_comes_from",
        ),
    ),
    Mutant(
        "a reload forgets what it has taken over",
        "each reload reports, and does, all of it again",
        "        take_over(self._last, given, [change.setting for change in found.changed])\n",
        "",
        (_RELOAD + "test_what_may_change_does_and_the_rest_is_named",),
    ),
    Mutant(
        "a reload leaves the level of log lines",
        "an operator who wants to see more has to restart",
        "            logging.getLogger().setLevel(self._live.log_level.upper())\n",
        "            pass\n",
        (_RELOAD + "test_what_may_change_does_and_the_rest_is_named",),
    ),
    Mutant(
        "a bookie without an interval of collections never gets one",
        "an operator who switched collection off has to restart to have it back",
        "self._waiting = self._runtime.spawn(self._collect_forever(), ",
        "if self._settings.gc_interval_s:\n            self._waiting = self._runtime.spawn(self._collect_forever(), ",
        ("tests/unit/bookie/test_collector.py::test_an_interval_may_come_and_shrink_while_it_waits",),
    ),
    Mutant(
        "a reload wakes nobody who waits",
        "a shorter interval counts after the longer one has passed: a week",
        "            for changed in serving.on_reload:\n                changed()\n",
        "            pass\n",
        ("tests/unit/bookie/test_collector.py::test_an_interval_may_come_and_shrink_while_it_waits",),
    ),
    Mutant(
        "a reload of the interval of checkpoints counts after the former one has passed",
        "a start replays what a reload should have had written to the index long ago",
        "        self._interval.changed()\n        self.scrub.settings_changed()\n",
        "        self.scrub.settings_changed()\n",
        ("tests/unit/bookie/test_reloading.py::test_the_interval_of_checkpoints_may_shrink_while_it_waits",),
    ),
    Mutant(
        "a reload of the intervals of compaction counts after the former ones have passed",
        "a disk fills up, although an operator had compaction run more often",
        "        if now >= self._minor_from + settings.compaction_minor_interval_s:\n",
        "        first_s = self.__dict__.setdefault('_first_s', settings.compaction_minor_interval_s)\n"
        "        if now >= self._minor_from + first_s:\n",
        ("tests/unit/storage/space/test_compaction.py::test_its_intervals_may_change_while_it_waits",),
    ),
    Mutant(
        "all bookies scrub at once when they first get an interval",
        "all disks of a cluster are busy at the same time",
        "            if not self._state.counted_from_s:\n",
        "            if False:\n",
        ("tests/unit/storage/scrub/test_scrub.py::test_an_interval_may_come_shrink_and_go_while_it_waits",),
    ),
]
