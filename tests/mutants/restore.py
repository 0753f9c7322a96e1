"""A cluster that was restored from a backup: it denies, collects or loses what the bookies still have."""

from __future__ import annotations

from typing import Final

from tests.mutants import Mutant

_RESTORE: Final = "tests/unit/admin/test_restore.py::"
_BEFORE: Final = (_RESTORE + "test_nothing_is_denied_written_or_collected_before_the_confirmation",)
_MOVED: Final = (_RESTORE + "test_copies_that_were_moved_come_back_from_wherever_they_are",)
_CHANGED: Final = (_RESTORE + "test_entries_behind_a_changed_ensemble_are_found_and_written_back",)
_LATER: Final = (_RESTORE + "test_a_ledger_that_was_created_later_is_kept_until_an_operator_decides",)
_ORPHAN: Final = (_RESTORE + "test_a_ledger_that_its_log_does_not_name_in_the_backup_is_no_orphan",)
_ROOT: Final = (_RESTORE + "test_a_root_that_is_not_empty_or_the_former_one_is_refused",)
_SALVAGE: Final = "tests/unit/storage/tools/test_salvage.py::"
_ABSENT: Final = (_RESTORE + "test_an_absent_bookie_keeps_the_restore_unconfirmed_until_it_is_given_up",)

MUTANTS = [
    Mutant(
        "a bookie collects before the restore is confirmed",
        "ledgers and copies that the old metadata don't name are deleted",
        "        elif not is_confirmed(self._restore):\n",
        "        elif False:\n",
        _BEFORE,
    ),
    Mutant(
        "a bookie collects ledgers that were created after the backup",
        "the only copies of acknowledged entries are deleted",
        "        if is_kept(self._restore, ledger_id):\n",
        "        if False:\n",
        _LATER,
    ),
    Mutant(
        "a bookie joins a restored cluster without limbo",
        "it denies entries that moved, and recoveries cut ledgers short",
        "            _put_in_limbo(settings, runtime, directory.path, directory.uuid)\n",
        "            pass\n",
        (*_BEFORE, _RESTORE + "test_a_bookie_that_is_interrupted_as_it_joins_is_in_limbo_once_it_has_joined"),
    ),
    Mutant(
        "a bookie has the cookie of a restored cluster before its ledgers are in limbo",
        "a crash in between leaves a bookie that denies",
        "    if restore is None or restore.former not in instances:\n",
        "    if restore is None or restore.former not in instances or restore.instance_id in instances:\n",
        (_RESTORE + "test_a_bookie_some_of_whose_directories_have_joined_goes_on",),
    ),
    Mutant(
        "limbo ends before the restore is confirmed",
        "bookies deny, and take entries, while nobody has looked at what was restored",
        "        if found is not None and not is_confirmed(found.restore):\n",
        "        if False:\n",
        _BEFORE,
    ),
    Mutant(
        "a recovery of a restored ledger asks only the bookies that the metadata name",
        "entries behind a change of the ensemble are lost",
        "return self._metadata if self._everywhere is None else widened(self._metadata, self._everywhere.bookies)",
        "return self._metadata",
        _CHANGED,
    ),
    Mutant(
        "a recovery of a restored ledger writes back only what is not known to be acknowledged",
        "acknowledged entries of a closed ledger are on too few of the bookies that it names",
        "        return confirmed if self._everywhere is None else fragment.first_entry - 1\n",
        "        return confirmed\n",
        (_RESTORE + "test_a_ledger_is_closed_with_its_entries_on_ack_quorums_of_the_bookies_that_it_names",),
    ),
    Mutant(
        "a restored ledger ends before an acknowledged entry that is nowhere",
        "a loss is hidden as the end of the ledger",
        "forward.next <= self._acknowledged and self._everywhere is not None",
        "False",
        (_RESTORE + "test_an_acknowledged_entry_that_is_nowhere_keeps_the_ledger_open",),
    ),
    Mutant(
        "a ledger of a restored cluster is given up though a bookie gave no answer",
        "the entries that only this bookie has are collected: a loss was accepted that was none",
        "        retriable = self._without_answer if self._everywhere is not None else None\n",
        "        retriable = False if self._everywhere is not None else None\n",
        (_RESTORE + "test_a_ledger_is_not_given_up_because_a_bookie_gives_no_answer",),
    ),
    Mutant(
        "bookies copy for a restored cluster only from those that the metadata name",
        "copies that were moved after the backup are collected, and the entries lost",
        "await self._copy(metadata, missing_ranges, widened(metadata, sources))",
        "await self._copy(metadata, missing_ranges)",
        _MOVED,
    ),
    Mutant(
        "losses are accepted while a bookie that failed may have the entries",
        "the last copies of entries are collected, though the bookie that has them was away for a moment",
        "not self.left or (not self.retried and (",
        "not self.left or ((",
        (_RESTORE + "test_entries_are_not_given_up_because_a_bookie_that_has_them_fails_for_a_while",),
    ),
    Mutant(
        "losses are accepted before a bookie was asked that has joined since",
        "the last copies of entries are collected, which this bookie has",
        "self.asked is None or self.asked.issuperset(expected)",
        "True",
        (_RESTORE + "test_entries_are_not_given_up_that_a_bookie_has_which_joins_late",),
    ),
    Mutant(
        "a restore is confirmed though bookies miss entries",
        "copies that are needed are collected, and nobody has been told",
        "        if missing and not accept_loss:\n",
        "        if False:\n",
        (_RESTORE + "test_a_deleted_ledger_comes_back_unreadable_and_is_named_before_the_restore_ends",),
    ),
    Mutant(
        "a restore is confirmed without an absent bookie",
        "entries that only it has are lost when open ledgers are closed",
        "        if bookie_id not in registered:\n            found.append",
        "        if False:\n            found.append",
        _ABSENT,
    ),
    Mutant(
        "nobody takes the places of bookies that are gone",
        "the copies of bookies that nothing names are collected, and were the last ones",
        "                metadata = metadata.replace_bookie(number, place, free.pop())\n",
        "                pass\n",
        (_RESTORE + "test_entries_are_kept_though_all_bookies_that_the_backup_names_are_gone",),
    ),
    Mutant(
        "reports count that are of before bookies were given up",
        "nobody copies for the bookies that are gone, and the last copies are collected",
        "            if of_version == version:\n",
        "            if of_version <= version:\n",
        (_RESTORE + "test_bookies_that_are_gone_since_a_former_call_are_replaced_as_well",),
    ),
    Mutant(
        "a backup leaves out whatever is named like a lease",
        "the cookie of a bookie, or the position of a consumer, is not restored",
        "    if top != paths.LOGS:\n        return False\n    match rest:",
        '    if rest and rest[-1].startswith("lease"):\n        return True\n    match rest:',
        (_RESTORE + "test_all_nodes_that_outlive_sessions_are_in_a_backup_whatever_their_names_are",),
    ),
    Mutant(
        "a new bookie joins before the restore is confirmed",
        "clients write to a cluster that nobody has looked at",
        "        if known.storage_cookie is None and not is_confirmed(restore):\n",
        "        if False:\n",
        (_RESTORE + "test_a_new_bookie_waits_for_the_confirmation",),
    ),
    Mutant(
        "ids go on where they were in the backup",
        "a new ledger meets the entries of a former one",
        "    high = newest_high + HIGHS_SKIPPED\n",
        "    high = newest_high\n",
        _LATER,
    ),
    Mutant(
        "a backup is restored under the root that it is of",
        "a client of before overwrites a closed ledger",
        "        if root == header.root:\n",
        "        if False:\n",
        _ROOT,
    ),
    Mutant(
        "another backup completes a restore that was interrupted",
        "the metadata are a mixture of two states",
        "    if found.restore.checksum != checksum:\n",
        "    if False:\n",
        _ROOT,
    ),
    Mutant(
        "a restored log goes on at the end that the backup knows",
        "positions are given out a second time, for other entries",
        "                return with_lost_end(log_list).encode()\n",
        "                return node.data\n",
        (_RESTORE + "test_a_log_without_a_writer_at_the_backup_gives_out_no_position_twice",),
    ),
    Mutant(
        "bookies' reports count though others' places were given to them since",
        "a confirmed restore names bookies that miss the entries, and the last copies are collected",
        "found = await write_restore(self._store, self._root, found.restore.with_fewer(), found.version)",
        "found = found._replace(restore=found.restore.with_fewer())",
        (_RESTORE + "test_a_bookie_that_was_given_up_in_vain_and_is_back_keeps_the_last_copies",),
    ),
    Mutant(
        "each call gives up the same bookies once more",
        "calls that have less time than bookies' looks never end, as reports of before never count",
        "RestoreState.CLOSED and given_up and given_up != found.restore.given_up:",
        "RestoreState.CLOSED and given_up:",
        (_RESTORE + "test_reports_stay_when_a_confirmation_that_gives_up_a_bookie_is_interrupted",),
    ),
    Mutant(
        "once bookies were given up, others that are given up are not replaced",
        "a confirmed restore names bookies that never come back, and the last copies are collected",
        "RestoreState.CLOSED and given_up and given_up != found.restore.given_up:",
        "RestoreState.CLOSED and given_up and not found.restore.given_up:",
        (_RESTORE + "test_a_bookie_that_is_given_up_in_place_of_another_one_is_replaced_as_well",),
    ),
    Mutant(
        "a confirmation waits for reports of a version that another call has ended",
        "the operator's command waits for ever",
        "            if found.version != version:\n",
        "            if False:\n",
        (_RESTORE + "test_of_two_confirmations_the_one_whose_reports_will_never_come_ends",),
    ),
    Mutant(
        "a bookie is recovered before a restore is confirmed",
        "copies are made and removed by metadata that are older than the disks",
        'await check_confirmed(self._store, self._root, "recovering a bookie")',
        "pass",
        (_RESTORE + "test_nothing_is_denied_written_or_collected_before_the_confirmation",),
    ),
    Mutant(
        "a bookie is drained before a restore is confirmed",
        "copies are made and removed by metadata that are older than the disks",
        'await check_confirmed(self._store, self._root, "draining a bookie")',
        "pass",
        (_RESTORE + "test_nothing_is_denied_written_or_collected_before_the_confirmation",),
    ),
    Mutant(
        "copies are moved to new bookies before a restore is confirmed",
        "copies are made and removed by metadata that are older than the disks",
        'await check_confirmed(self._store, self._root, "moving copies")',
        "pass",
        (_RESTORE + "test_nothing_is_denied_written_or_collected_before_the_confirmation",),
    ),
    Mutant(
        "what a restore makes depends on when it is made",
        "a restore that was interrupted never goes on: what is there is not as the backup has it",
        "with_later_loss(metadata, self._time_ms).encode()",
        "with_later_loss(metadata, int(self._store.runtime.clock.time() * 1000)).encode()",
        (_RESTORE + "test_a_restore_goes_on_though_time_has_passed",),
    ),
    Mutant(
        "a restored log goes on behind its open segment",
        "positions are given out a second time, for other entries",
        "leaves_gap=log_of(metadata) is not None",
        "leaves_gap=False",
        (_RESTORE + "test_a_log_that_rolled_gives_out_no_position_twice",),
    ),
    Mutant(
        "the auditor deletes ledgers that the list in the backup doesn't name",
        "segments that were added during the backup are lost",
        "if self._restore is not None and not self._restore.collects_later and ledger_id <= self._restore.kept_to:",
        "if False:",
        _ORPHAN,
    ),
    Mutant(
        "the auditor maintains logs before the restore is confirmed",
        "retention deletes ledgers by metadata that nobody has looked at",
        'if not await self._tried("maintaining logs", self._read_restore) or not is_confirmed(self._restore):',
        'if not await self._tried("maintaining logs", self._read_restore):',
        (_RESTORE + "test_retention_waits_for_the_confirmation",),
    ),
    Mutant(
        "a salvage takes an entry for acknowledged that only follows acknowledged ones",
        "somebody relies on an entry that a recovery would cut off",
        "    if entry_id <= acknowledged:\n        return Certainty.ACKNOWLEDGED\n",
        "    if entry_id <= acknowledged + 1:\n        return Certainty.ACKNOWLEDGED\n",
        (_SALVAGE + "test_every_acknowledged_entry_is_found_once_with_the_bookies_that_have_it",),
    ),
    Mutant(
        "a salvage writes entries whose checksums are wrong",
        "damaged bytes are taken for what was stored",
        "                codec.check(data, header.offset, header.end)\n                yield header\n",
        "                yield header\n",
        (_SALVAGE + "test_a_record_that_is_wrong_in_a_sound_block_is_left_out",),
    ),
    Mutant(
        "a salvage reads directories of a running bookie",
        "logs that are compacted meanwhile are missed",
        '            held.enter_context(files.lock(f"{directory}/{LOCK_NAME}"))\n',
        "            pass\n",
        (_SALVAGE + "test_a_running_bookie_a_file_that_exists_and_other_directories_are_refused",),
    ),
    Mutant(
        "two salvages write to one file at the same time",
        "a file of the name that was given has half of the other one's entries, and none of its own",
        "        held.enter_context(_alone(files, path, temporary))",
        "        open(temporary, 'ab').close()",
        (_SALVAGE + "test_one_salvage_at_a_time_is_written_to_a_file",),
    ),
    Mutant(
        "a salvage replaces one that ended just now",
        "the entries of another machine's bookies are gone again",
        "            _check_free(files, path)  # the other process may have ended since",
        "            pass",
        (_SALVAGE + "test_a_salvage_that_ends_as_another_one_begins_is_not_written_over",),
    ),
    Mutant(
        "a salvage keeps one of two copies that differ",
        "the other one, which may be right, is lost",
        "        for record, bookies in by_bytes.items():\n",
        "        for record, bookies in list(by_bytes.items())[:1]:\n",
        (_SALVAGE + "test_copies_that_differ_are_both_written",),
    ),
    Mutant(
        "a backup ends without its checksum being compared",
        "a damaged backup is restored",
        "        if end.checksum != checksum or end.nodes != nodes:\n",
        "        if False:\n",
        ("tests/unit/metadata/test_backup_file.py::test_a_changed_line_and_a_newer_version_are_refused",),
    ),
    Mutant(
        "a bookie reports a ledger as complete that it has failed to look at",
        "a restore is confirmed, and the only copies of acknowledged entries are collected as not needed",
        "                left += set(some) - complete\n",
        '                left += [i for i in set(some) - complete if self._left[i].startswith("no bookie")]\n',
        (_RESTORE + "test_a_ledger_that_a_bookie_fails_to_look_at_is_not_reported_as_complete",),
    ),
    Mutant(
        "two backups are written to the same unfinished file",
        "one gets the name of the other, half of which was written",
        "held.enter_context(files.lock(temporary))",
        "files.open(temporary, create=not files.exists(temporary)).close()",
        ("tests/unit/metadata/test_backup_file.py::test_one_backup_at_a_time_is_written_to_a_file",),
    ),
    Mutant(
        "a backup doesn't look again once it has the lock",
        "it replaces the one that another process has just written",
        "            _check_free(files, path)  # the other process may have ended since\n",
        "            pass\n",
        ("tests/unit/metadata/test_backup_file.py::test_a_backup_that_ends_as_another_one_begins_is_not_written_over",),
    ),
    Mutant(
        "a confirmation gives up ledgers that it could not close because the metadata store was away",
        "they are never closed with the entries that other bookies have, which are collected",
        "            except (MetadataUnavailableError, ClientClosedError):\n"
        "                raise  # of that, nothing follows for the ledger",
        "            except ClientClosedError:\n                raise  # of that, nothing follows for the ledger",
        (_RESTORE + "test_a_ledger_is_not_given_up_because_the_metadata_store_is_away",),
    ),
]
