"""Defects in how the storage deletes ledgers, compacts, and meets the end of its space."""

from __future__ import annotations

from tests.mutants import Mutant

_TESTS = "tests/unit/storage"
_SPACE = f"{_TESTS}/space/test_no_space.py"
_DELETION = f"{_TESTS}/space/test_deletion.py"
_COMPACTION = f"{_TESTS}/space/test_compaction.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "a log of which nobody knows what lives in it removed",
        "a stop in the middle of a count takes away what was acknowledged",
        "if row is not None and row.living == 0]",
        "if row is not None and not row.living]",
        (f"{_DELETION}::test_a_log_that_is_not_counted_yet_is_not_dead",),
    ),
    Mutant(
        "a log that was removed held open",
        "the disk doesn't get its space back before the bookie ends",
        "await shard.forget_log(log_id)",
        "pass",
        (f"{_DELETION}::test_a_log_that_was_removed_is_not_held_open",),
    ),
    Mutant(
        "a log that is about to be removed closed too early",
        "a read opens it again, and the disk doesn't get its space back before the bookie ends",
        """            try:
                await shard.on_index(self._remove, f"{shard.directory}/{log_name(log_id)}")
            except OSError as e:
                stuck = stuck or e
                continue
            await shard.forget_log(log_id)
""",
        """            await shard.forget_log(log_id)
            try:
                await shard.on_index(self._remove, f"{shard.directory}/{log_name(log_id)}")
            except OSError as e:
                stuck = stuck or e
                continue
""",
        (f"{_DELETION}::test_a_read_while_a_log_is_removed_does_not_hold_it_open",),
    ),
    Mutant(
        "a deletion forgotten that only a late directory's replay meets",
        "a deleted ledger is known again, empty",
        "return self._was_deleted(ledger_id) and sequence < home.row.marks[number].sequence",
        "return False",
        (f"{_DELETION}::test_a_deletion_that_one_directory_has_behind_it_is_not_undone_by_another_that_is_late",),
    ),
    Mutant(
        "a log with damage compacted again and again",
        "the disk is kept busy for nothing",
        "and log_id not in self._damaged",
        "",
        (f"{_COMPACTION}::test_a_damaged_block_is_told_once_and_its_log_stays",),
    ),
    Mutant(
        "failed write to an entry log swallowed",
        "a mark moves past blocks that were never written",
        'self._file.write_durably(parts if len(parts) <= _PARTS_MAX else [b"".join(parts)], self._written)',
        "try:\n"
        '    self._file.write_durably(parts if len(parts) <= _PARTS_MAX else [b"".join(parts)], self._written)\n'
        "except OSError:\n"
        "    pass",
        (f"{_SPACE}::test_a_log_that_a_checkpoint_refers_to_stays_though_the_next_fails",),
    ),
    Mutant(
        "ledger deleted while others are looked up",
        "a writer that was cut off for long is taken for one of a new ledger",
        "while not (missing := {i for i in wanted if cached(i) is None}) <= self._unseen:",
        "if not (missing := {i for i in wanted if cached(i) is None}) <= self._unseen:",
        (
            "tests/unit/storage/space/test_deletion.py::"
            "test_who_asks_for_several_ledgers_learns_of_one_that_is_deleted_meanwhile",
        ),
    ),
    Mutant(
        "journal file that can't be begun stays",
        "starting again and again eats up the disk",
        "file.close()\nwith contextlib.suppress(OSError):  # the first error says why\n    self._files.unlink(path)",
        "file.close()",
        (f"{_SPACE}::test_a_journal_file_that_cannot_be_begun_goes",),
    ),
    Mutant(
        "entry log that no checkpoint refers to stays",
        "starting again and again eats up the disk",
        "for log in self._new_logs:\n    log.remove()",
        "pass",
        (f"{_SPACE}::test_entry_logs_that_no_checkpoint_refers_to_go",),
    ),
    Mutant(
        "entry log removed though a commit may refer to it",
        "acknowledged entries are unknown on this bookie",
        "if not self._committing:  # else it may have happened",
        "if True:",
        (f"{_SPACE}::test_an_entry_log_stays_if_a_commit_that_refers_to_it_may_have_happened",),
    ),
    Mutant(
        "rows repointed that changed since they were copied",
        "compaction brings back what a later block replaced",
        "if txn.get(source.key) != source.value:\n    continue",
        "if txn.get(source.key) is None:\n    continue",
        (f"{_COMPACTION}::test_what_is_replaced_or_deleted_meanwhile_does_not_come_back",),
    ),
    Mutant(
        "compacted blocks named before they are synced",
        "a power cut after a compaction loses acknowledged entries",
        "await self._write(self._target.sync)",
        "pass",
        (f"{_COMPACTION}::test_a_fault_at_every_operation_of_it_loses_and_revives_nothing",),
    ),
    Mutant(
        "adds after the hiding not looked for",
        "what a re-replication has just stored is deleted",
        "disturbed = info.disturbed or shard.holds(info.ledger_id)",
        "disturbed = False",
        (f"{_DELETION}::test_what_arrives_after_the_hiding_is_seen_and_nothing_is_deleted",),
    ),
    Mutant(
        "a ledger stored to while hidden left open",
        "a writer that goes on storing puts the deletion off for ever",
        "await storage.fence(info.ledger_id, info.key)\nreturn False",
        "return False",
        (f"{_DELETION}::test_what_arrives_after_the_hiding_is_seen_and_nothing_is_deleted",),
    ),
    Mutant(
        "a deletion reported before the journal has it",
        "a power cut brings back a ledger that the collector has counted as gone",
        'self._record(RecordKind.DELETED, ledger_id, b"", lambda: _settle(self._deleting, ledger_id, done))\n'
        "await self._durable(done)",
        'self._record(RecordKind.DELETED, ledger_id, b"", lambda: _settle(self._deleting, ledger_id, done))',
        (f"{_DELETION}::test_what_the_journal_has_of_a_ledger_that_is_buried_makes_no_ledger_without_a_key",),
    ),
    Mutant(
        "deleted ledgers without tombstones before the marks",
        "a crash after a checkpoint brings a deleted ledger back",
        "await self.write_tombstones()\nwhile revived",
        "while revived",
        (f"{_DELETION}::test_no_mark_passes_a_deletion_that_is_not_in_the_index",),
    ),
    Mutant(
        "deleted ledger made known again without its fence",
        "a writer that was cut off for long goes on",
        "fenced=limbo or with_tombstone,",
        "fenced=limbo,",
        (f"{_DELETION}::test_what_recovery_stores_again_is_of_a_second_life_and_fenced",),
    ),
    Mutant(
        "a damaged tombstone doesn't put everything in limbo",
        "a writer of a ledger that was deleted goes on, or no start succeeds",
        "fences_sound = not damaged_tombstones(txn)",
        "fences_sound = True",
        (f"{_DELETION}::test_a_damaged_tombstone_refuses_no_start_and_forgets_no_fence",),
    ),
    Mutant(
        "a damaged tombstone stays as it is",
        "each start puts everything in limbo again, and new ledgers are refused",
        "replace_damaged_tombstones(store)",
        "pass",
        (f"{_DELETION}::test_a_damaged_tombstone_refuses_no_start_and_forgets_no_fence",),
    ),
    Mutant(
        "what was stored again after a deletion committed before that is durable",
        "without a journal, a crash replays the deletion of an earlier life over the later one",
        "while self._unjournaled and (again := shard.active.dirty & self._deleting.keys()):",
        "while False and (again := shard.active.dirty & self._deleting.keys()):",
        (f"{_DELETION}::test_without_a_journal_the_deletion_of_an_earlier_life_never_strikes_a_later_one",),
    ),
    Mutant(
        "logs removed by an index that lost its rows",
        "an index that shows nothing costs all that it named",
        "whole = is_whole(txn, self._shard.row.uuid)",
        "whole = True",
        (f"{_DELETION}::test_no_log_goes_on_the_word_of_an_index_that_lost_its_rows",),
    ),
    Mutant(
        "a log's file needed to count what lives",
        "one damaged row of a log that is gone keeps a bookie from reclaiming anything",
        "except FileNotFoundError:\n    return 0",
        "except BlockingIOError:\n    return 0",
        (f"{_DELETION}::test_a_damaged_row_of_a_log_that_is_gone_holds_up_nothing",),
    ),
    Mutant(
        "a ledger without a key made of what a deleted one left in the journal",
        "nobody can store it there again until it is collected once more",
        "if self._was_deleted(ledger_id):\n    return False",
        "pass",
        (f"{_DELETION}::test_what_the_journal_has_of_a_ledger_that_is_buried_makes_no_ledger_without_a_key",),
    ),
    Mutant(
        "a recycled journal file told as damage",
        "an alarm where nothing is wrong, and a read that is answered *unknown*",
        "reader.check_there(place.log_id)",
        "pass",
        (f"{_TESTS}/space/test_kept_files.py::test_a_file_that_the_journal_writes_over_while_it_is_read_is_no_damage",),
    ),
    Mutant(
        "the bookie ended by an error of a log that is compacted",
        "one bad sector ends the bookie again and again, although nothing depends on the new log",
        "elif self._is_of_index(e):",
        "elif True:",
        (f"{_COMPACTION}::test_a_log_that_cannot_be_written_or_removed_is_told_and_tried_again",),
    ),
    Mutant(
        "a ledger hidden whose fence is not durable",
        "without a journal of entries, its deletion is journaled for a life whose fence is under way",
        "if fence is not None:  # where adds are not journaled, none of them has waited for it",
        "if False:",
        (f"{_DELETION}::test_without_a_journal_a_ledger_is_hidden_only_once_its_fence_is_durable",),
    ),
    Mutant(
        "a record's future taken for that of an earlier one of its ledger",
        "a fence is answered before it is durable, and the storage fails at the next",
        "done.set_result(None)\nif pending[ledger_id] is done:\n    del pending[ledger_id]",
        "pending.pop(ledger_id).set_result(None)",
        (f"{_DELETION}::test_fences_of_two_lives_are_each_answered_when_their_own_record_is_durable",),
    ),
    Mutant(
        "a begun journal file left where that of another journal can't be begun",
        "starts that fail for want of space on one disk fill another one",
        "begun.callback(writer.abandon_file)",
        "pass",
        (f"{_SPACE}::test_a_start_that_cannot_begin_a_file_of_one_journal_leaves_none_of_another",),
    ),
    Mutant(
        "a start that fails at the index's commit keeps what it has reserved for its journals",
        "starts that fail for want of space on one disk fill another one",
        "held.callback(journal.give_back)",
        "pass",
        (f"{_SPACE}::test_starts_that_fail_at_a_commit_of_the_index_reserve_nothing_for_good",),
    ),
    Mutant(
        "a dead log that can't be removed ends the round of reclaiming",
        "one file that can't be removed keeps all of its directory from being compacted, until the disk is full",
        "stuck = stuck or e\ncontinue",
        "raise",
        (f"{_COMPACTION}::test_a_log_that_cannot_be_removed_holds_up_no_compaction",),
    ),
    Mutant(
        "a log that could not be read once is never compacted until the bookie starts again",
        "its space does not come back though it is readable, or its damaged block was copied anew",
        "            self.compactor.forget_damages()\n",
        "",
        (
            "tests/unit/storage/space/test_compaction.py::"
            "test_a_log_that_could_not_be_read_for_a_while_is_compacted_in_the_next_major_round",
        ),
    ),
    Mutant(
        "a log that could not be read once is never compacted while the disk stays full",
        "its space does not come back though it is readable, when it is needed most",
        "if now >= self._damages_from + settings.compaction_major_interval_s:",
        "if now >= self._major_from + settings.compaction_major_interval_s:",
        (
            "tests/unit/storage/space/test_compaction.py::"
            "test_a_log_that_could_not_be_read_for_a_while_is_compacted_though_the_disk_stays_full",
        ),
    ),
]
