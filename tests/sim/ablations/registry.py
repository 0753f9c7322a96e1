"""Every ablation: each rule that the documentation marks has at least one, with the runs or the schedule that notice.

What is first in `runs` is played first. The seeds that notice are in `found.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final

from tests.mutants.in_process import mutant, planted

from . import Ablation, switches
from .found import FOUND

FAILOVER_RULES: Final = "tests/sim/test_failover_rules.py::test_the_rule_holds"
COPYING_RULES: Final = "tests/sim/test_copying_rules.py::test_the_rule_holds_and_is_needed"
DRAINING_RULES: Final = "tests/sim/test_draining_rules.py::test_the_rule_holds_and_is_needed"
LOG_RULES: Final = "tests/unit/log/test_rules.py::test_with_its_rules_a_log_is_what_its_writers_were_told"
JOURNAL: Final = "tests/unit/storage/journal"
CHECKPOINT: Final = "tests/unit/storage/checkpoint"


def changed(
    rule: str,
    title: str,
    find: str,
    replace: str,
    runs: tuple[str, ...] = (),
    schedule: str = "",
) -> Ablation:
    """One whose switch is a change of the code's text."""
    return Ablation(rule, title, functools.partial(planted, find, replace), runs, schedule)


def by_mutant(rule: str, title: str, name: str, runs: tuple[str, ...] = ()) -> Ablation:
    """One whose switch is a mutant, and whose schedule is the first of the mutant's tests."""
    one = mutant(name)
    return changed(rule, title, one.find, one.replace, runs, one.tests[0])


PROTOCOL: Final = (
    Ablation(
        "2",
        "last add confirmed moves during an ensemble change",
        switches.not_frozen,
        ("failover", "everything"),
        f"{FAILOVER_RULES}[change_while_an_ack_is_under_way-4]",
    ),
    Ablation(
        "13",
        "reads of a recovery do not fence",
        switches.reading_without_fencing,
        ("failover", "everything"),
        f"{FAILOVER_RULES}[append_that_overtakes_a_recovery-3]",
    ),
    Ablation(
        "14",
        "a recovery begins behind the bookies' answers alone",
        switches.reading_from_the_answers_alone,
        ("failover", "everything"),
        f"{FAILOVER_RULES}[fragment_without_an_entry-6]",
    ),
    Ablation(
        "16",
        "a failed read counts as a denial",
        switches.failures_as_denials,
        ("failover", "everything"),
        f"{FAILOVER_RULES}[bookies_that_hang_when_they_are_read-4]",
    ),
    changed(
        "20",
        "a fence is answered before it is durable",
        "await self._durable(pending)\nreturn True",
        "return True",
        ("storage", "failover", "everything"),
        "tests/unit/storage/test_ledger_storage.py::test_a_fence_is_effective_at_once_and_waited_for_by_all",
    ),
    changed(
        "20",
        "a bookie does not fence a ledger that it never saw",
        "# Before any await: else another client could create it meanwhile, with another key, and would be fenced.\n"
        "state = self._storage.create(ledger_id, claim.key)",
        "return Status.OK",
        ("failover", "everything"),
        "tests/unit/bookie/connection/test_waiting_requests.py::"
        "test_a_fence_of_a_ledger_never_seen_is_answered_when_it_is_durable",
    ),
    Ablation("25", "a worker does not wait for the writer", switches.recovering_without_a_grace_period, ("healing",)),
    Ablation("26", "a newer record is removed", switches.removing_newer_marks, ("healing",)),
    Ablation("27", "a bookie is swapped in before its copy is made", switches.swapping_before_copying, ("healing",)),
    Ablation(
        "30",
        "manual moves take no lock",
        switches.people_take_no_lock,
        ("healing",),
        f"{COPYING_RULES}[copy_while_spare_copies_are_collected-people_take_no_lock]",
    ),
    Ablation("33", "the last fragment of an open ledger is swapped", switches.swapping_open_fragments, ("healing",)),
    by_mutant(
        "34", "limbo ends without a look at the index", "limbo ended without a look at the index", ("rebuilding",)
    ),
    by_mutant(
        "34",
        "limbo ends though the ledger is not CLOSED",
        "limbo ended of a ledger that isn't closed",
        ("rebuilding",),
    ),
    by_mutant(
        "34", "ledgers from before the loss are denied", "ledgers from before a loss trusted", ("rebuilding", "exposed")
    ),
    Ablation(
        "35",
        "the swap does not check the lock",
        switches.swaps_do_not_check_the_lock,
        ("healing", "everything"),
        f"{COPYING_RULES}[copy_in_a_session_that_ends-swaps_do_not_check_the_lock]",
    ),
    by_mutant(
        "36",
        "what changes behind the hiding is not seen",
        "a change of the metadata behind the hiding is passed over",
        ("healing", "everything"),
    ),
    by_mutant(
        "36",
        "an add behind the hiding does not stop the deletion",
        "adds after the hiding not looked for",
        ("storage", "everything"),
    ),
    by_mutant(
        "37",
        "a bookie that returns with other disks counts as whole",
        "a bookie that comes back empty has what it had",
        ("rebuilding", "healing"),
    ),
    by_mutant(
        "37",
        "a return drops the records of open ledgers",
        "a bookie's return ends the marks of all of its ledgers",
        ("healing", "rebuilding"),
    ),
    by_mutant(
        "37", "most bookies absent are most bookies lost", "most bookies may be absent and are copied", ("healing",)
    ),
    Ablation("37", "a bookie without a cookie is not lost", switches.missing_those_that_nobody_knows, ("healing",)),
    Ablation(
        "38",
        "a draining bookie takes what recoveries and workers write",
        switches.recoveries_are_taken,
        ("healing", "everything"),
        f"{DRAINING_RULES}[copy_by_an_old_list-recoveries_are_taken]",
    ),
    Ablation(
        "38",
        "decommissioning does not wait for locks",
        switches.locks_are_not_waited_for,
        ("healing", "everything"),
        f"{DRAINING_RULES}[copy_that_was_made_before-locks_are_not_waited_for]",
    ),
    Ablation(
        "38",
        "decommissioning does not close what is in recovery",
        switches.recoveries_are_not_settled,
        ("healing", "everything"),
        f"{DRAINING_RULES}[recovery_that_closes_late-recoveries_are_not_settled]",
    ),
    Ablation(
        "38",
        "idle writers stay on a draining bookie",
        switches.writers_at_rest_stay,
        ("healing", "everything"),
        f"{DRAINING_RULES}[writer_at_rest-writers_at_rest_stay]",
    ),
    by_mutant("39", "a kept journal file is recycled", "kept journal file recycled", ("storage",)),
    by_mutant("40", "a rebuild does not fence unknown ids", "old fences forgotten by a rebuild", ("storage",)),
    Ablation(
        "41",
        "the next ledger acknowledges before the former ends",
        switches.telling_at_once,
        ("logs", "everything"),
        f"{LOG_RULES}[the_last_entry_is_stuck_while_the_next_ledger_gets_on]",
    ),
    Ablation(
        "41",
        "a ledger behind a hole is kept",
        switches.keeping_what_lies_behind_a_hole,
        ("logs", "everything"),
        f"{LOG_RULES}[the_last_entry_is_stuck_while_the_next_ledger_gets_on]",
    ),
    Ablation(
        "41",
        "only the last ledger is recovered",
        switches.recovering_the_last_ledger_alone,
        ("logs", "everything"),
        f"{LOG_RULES}[the_last_entry_is_stuck_while_the_next_ledger_gets_on]",
    ),
    Ablation(
        "41",
        "appends go on before the list is written",
        switches.serving_before_the_list_is_written,
        ("logs", "everything"),
        f"{LOG_RULES}[a_roll_is_overtaken]",
    ),
    by_mutant("42", "a sink commits a batch again", "spark: a batch is committed again"),
    by_mutant(
        "43",
        "an exporter that lost its lock goes on",
        "spark: an exporter gives files names without a look whether it still has the directory",
    ),
    by_mutant(
        "44",
        "a truncation does not notice a registration",
        "a truncation doesn't notice a consumer that registers",
        ("logs", "everything"),
    ),
    by_mutant(
        "44",
        "a registration does not notice a truncation",
        "a registration doesn't notice a truncation",
        ("logs", "everything"),
    ),
    changed(
        "45",
        "the right key is refused after a stranger's",
        "status = await self._prove(info, key)",
        "return Status.UNAUTHORIZED",
        ("failover", "standard", "everything"),
    ),
    changed(
        "45",
        "the fence of a replaced key stays",
        "self.ledgers.replace_key(info, key, deleted=deleted)",
        "self.ledgers.replace_key(info, key, deleted=deleted or info.fenced)",
        ("standard", "failover", "everything"),
    ),
    by_mutant("52", "a ledger in a page counts as an orphan", "a ledger that a page names is an orphan"),
    by_mutant("52", "a missing page keeps nothing", "a missing page names no ledger"),
    by_mutant(
        "52", "a page is deleted before its ledgers", "a page is deleted before its ledgers", ("logs", "everything")
    ),
    by_mutant("52", "a full list moves in one transaction", "a large write is one transaction"),
    by_mutant(
        "52",
        "pages are written ahead for a list that has changed",
        "pages are written ahead whatever the list is by then",
        ("logs", "everything"),
    ),
    by_mutant(
        "53",
        "an opener does not read unsealed numbers",
        "an opener does not read the numbers of ledgers that it closes",
        ("logs", "everything"),
    ),
    by_mutant("53", "an unproved lower number is appended", "a lower number that is not known is appended"),
    by_mutant("53", "a gap is appended", "a number behind the next one is appended"),
    by_mutant(
        "53",
        "a repeat does not wait for the outcome",
        "a repeat does not wait for the outcome of the first append",
        ("logs", "everything"),
    ),
    by_mutant(
        "53", "a forgotten producer begins again", "a forgotten producer begins as a new one", ("logs", "everything")
    ),
    Ablation("46", "an id is freed beside copies", switches.freeing_an_id_beside_copies, ("healing",)),
    by_mutant(
        "46",
        "a new bookie under a freed id denies older ledgers",
        "a new bookie under a freed id starts without doubt",
        ("healing",),
    ),
    Ablation("50", "a worker ends writers for nothing", switches.ending_writers_for_nothing, ("healing", "everything")),
    by_mutant("51", "too few of a write set are there", "too few bookies of a write set are there", ("everything",)),
    by_mutant(
        "51", "a creation makes no record", "a ledger is created with absent bookies and no record", ("everything",)
    ),
    Ablation(
        "51",
        "a creation doesn't check for a draining",
        switches.absent_bookies_may_leave,
        ("everything",),
        f"{DRAINING_RULES}[creation_without_the_bookie-absent_bookies_may_leave]",
    ),
    by_mutant("51", "a return ends the record", "a return ends the record of an absent bookie", ("everything",)),
    by_mutant(
        "51",
        "a bookie is taken in without a new fragment",
        "a bookie is taken in without a new fragment",
        ("everything",),
    ),
    by_mutant(
        "55",
        "copies are collected before the restore is confirmed",
        "a bookie collects before the restore is confirmed",
        ("everything",),
    ),
    by_mutant(
        "55",
        "what is younger than the backup is collected",
        "a bookie collects ledgers that were created after the backup",
        ("everything",),
    ),
    by_mutant(
        "55",
        "a bookie joins a restored cluster without limbo",
        "a bookie joins a restored cluster without limbo",
        ("everything",),
    ),
    by_mutant(
        "55",
        "limbo ends before the restore is confirmed",
        "limbo ends before the restore is confirmed",
        ("everything",),
    ),
    by_mutant(
        "55",
        "a restored ledger ends without the bookies that no metadata name",
        "a recovery of a restored ledger asks only the bookies that the metadata name",
        ("everything",),
    ),
    by_mutant(
        "55",
        "a restored ledger ends though a bookie gave no answer",
        "a ledger of a restored cluster is given up though a bookie gave no answer",
        ("everything",),
    ),
    by_mutant(
        "55", "a restored cluster gives out ids again", "ids go on where they were in the backup", ("everything",)
    ),
    by_mutant("56", "all workers copy beside clients", "all hands copy beside clients"),
    by_mutant("57", "failed ledgers take all slots", "ledgers that fail take all hands"),
)

STORAGE: Final = (
    changed(
        "S1",
        "frames are acknowledged without a sync",
        "if sync:\nself._file.write_durably(buffers, at.offset)",
        "if sync and kind is FrameKind.CLEAN_STOP:\n    self._file.write_durably(buffers, at.offset)",
        ("storage", "standard", "everything"),
        f"{JOURNAL}/test_journal_faults.py::test_a_crash_at_every_operation_loses_nothing_that_was_acknowledged",
    ),
    changed(
        "S2",
        "a failed sync is tried again",
        "if sync:\nself._file.write_durably(buffers, at.offset)",
        "if sync:\n    try:\n        self._file.write_durably(buffers, at.offset)\n"
        "    except OSError:\n        self._file.fdatasync()",
        ("storage", "standard", "everything"),
        f"{JOURNAL}/test_journal_faults.py::test_a_sync_that_failed_is_not_tried_again",
    ),
    changed(
        "S3",
        "damage is cut like a torn tail",
        "return next(row.action for row in TABLE if row.matches(at))",
        "found = next(row.action for row in TABLE if row.matches(at))\n"
        "return BreakAction.TORN if found is BreakAction.DAMAGED else found",
        ("storage", "everything"),
        f"{JOURNAL}/test_journal.py::test_no_flipped_byte_before_the_last_frame_is_cut_silently",
    ),
    changed(
        "S3",
        "a torn tail is refused like damage",
        "return next(row.action for row in TABLE if row.matches(at))",
        "found = next(row.action for row in TABLE if row.matches(at))\n"
        "return BreakAction.DAMAGED if found is BreakAction.TORN else found",
        ("storage", "standard", "everything"),
        f"{JOURNAL}/test_journal.py::test_a_power_cut_while_a_frame_is_written_leaves_it_whole_or_torn",
    ),
    changed(
        "S4",
        "the directory of a new journal file is not synced",
        "file.fdatasync()\nself._files.sync_dir(self._directory)",
        "file.fdatasync()",
        ("storage", "standard", "everything"),
        f"{JOURNAL}/test_journal_faults.py::test_a_crash_while_files_roll_and_are_recycled",
    ),
    changed(
        "S4",
        "the directory of a new entry log is not synced",
        "if not self._directory_synced:",
        "if False:",
        ("storage", "standard", "everything"),
        f"{JOURNAL}/test_journal_faults.py::test_a_crash_at_every_operation_and_many_power_cuts",
    ),
    changed(
        "S5",
        "a generation goes before its checkpoint commits",
        "await self.write_tombstones()\nwhile revived",
        "self.sealed = None\nawait self.write_tombstones()\nwhile revived",
        ("storage", "standard", "everything"),
        f"{CHECKPOINT}/test_checkpoints.py::test_nothing_is_denied_at_any_moment_of_a_checkpoint",
    ),
    by_mutant(
        "S6",
        "a read looks into memory after the index",
        "memtable looked into after the index",
        ("storage", "everything"),
    ),
    changed(
        "S7",
        "a block takes over a range of ids",
        "left = bits & ~block.ids.bits(ids.first, ids.last)",
        "left = bits & ~Ids(block.ids.first, block.ids.last - block.ids.first + 1).bits(ids.first, ids.last)",
        ("storage", "standard", "everything"),
        "tests/unit/storage/index/test_index.py::test_a_block_takes_over_exactly_its_ids",
    ),
    by_mutant(
        "S8", "marks are taken behind the seal", "marks taken after the seal", ("storage", "standard", "everything")
    ),
    by_mutant(
        "S9",
        "a journal file goes below one shard's mark",
        "journal files let go by one shard's mark",
        ("storage", "standard", "everything"),
    ),
    changed(
        "S10",
        "an unlisted ledger is deleted without a look",
        "action = decide(Step.UNLISTED, seen.state, own_lock=False, unchanged=False)",
        "action = Action.DELETE",
        ("logs", "standard", "everything"),
        "tests/unit/bookie/test_collector.py::test_a_ledger_that_a_listing_lacks_is_looked_for_before_it_is_deleted",
    ),
    Ablation(
        "S11",
        "copies move and are collected at the same time",
        switches.nobody_locks,
        ("healing", "everything"),
        "tests/sim/test_collection_run.py::test_every_bookie_that_is_named_has_its_copy",
    ),
    by_mutant(
        "S11",
        "copies of ledgers that are not CLOSED are collected",
        "a copy counts as spare before its ledger is closed",
        ("healing", "everything"),
    ),
    Ablation(
        "S12",
        "a collected ledger was never seen",
        switches.collected_ledgers_forgotten,
        ("standard",),
        "tests/unit/storage/space/test_deletion.py::test_a_deleted_ledger_is_gone_and_fenced_for_good",
    ),
    by_mutant(
        "S13",
        "compaction repoints rows that changed",
        "rows repointed that changed since they were copied",
        ("storage", "standard", "everything"),
    ),
    by_mutant(
        "S14",
        "limbo ends before the copies are flushed",
        "limbo ended without a look at the index",
        ("rebuilding",),
    ),
    changed(
        "S15",
        "a refused batch is journaled",
        "kept = m.select(columns, keep)\nbody = _gather(frame.body, columns.sizes, keep)",
        "kept, body = columns, bytes(frame.body)",
        ("crowd", "failover", "everything"),
        "tests/unit/bookie/connection/test_keys_in_order.py::test_of_a_frame_only_what_is_not_refused_is_stored",
    ),
    changed(
        "S16",
        "a fence is answered before it is durable",
        "await self._durable(pending)\nreturn True",
        "return True",
        ("storage", "failover", "everything"),
        "tests/unit/storage/test_ledger_storage.py::test_a_fence_is_effective_at_once_and_waited_for_by_all",
    ),
    by_mutant(
        "S17",
        "a batch above the mark stays in its journal file",
        "batch above the mark left in its journal file",
        ("storage",),
    ),
    by_mutant("S17", "the name of a kept file is not synced", "name of a kept file not synced", ("storage",)),
    by_mutant("S17", "a kept file is overwritten", "kept journal file recycled", ("storage",)),
)

# Of the rules without a star: defects that were in the code once.
FURTHER: Final = (
    Ablation(
        "states", "a state is evicted for another of the same request", switches.evicting_what_is_asked_for, ("crowd",)
    ),
    Ablation("outcomes", "a write in doubt counts as not stored", switches.doubt_taken_for_failure, ("failover",)),
)

ABLATIONS: Final = tuple(
    dataclasses.replace(one, found_by=FOUND.get(one.name)) for one in (*PROTOCOL, *STORAGE, *FURTHER)
)
