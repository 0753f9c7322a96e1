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
_DISPUTES: Final = "tests/unit/bookie/connection/test_key_disputes.py::"
_SALVAGE: Final = "tests/unit/storage/tools/test_salvage.py::"
_ABSENT: Final = (_RESTORE + "test_an_absent_bookie_keeps_the_restore_unconfirmed_until_it_is_given_up",)

_AGAIN: Final = (_RESTORE + "test_bookies_that_have_joined_another_restored_cluster_join_once_it_is_named",)

MUTANTS = [
    Mutant(
        "a replay makes a row without a key of an ended life",
        "where all is in limbo, no recovery's entry and no copy is taken for the ledger, which stays open",
        "if self._ledgers.untrusted and sequence <",
        "if False and sequence <",
        (
            "tests/unit/storage/space/test_deletion.py::"
            "test_an_ended_life_leaves_no_row_without_a_key_where_all_is_in_limbo",
        ),
    ),
    Mutant(
        "copies of restored ledgers are looked for at bookies that are given up",
        "a restore that goes on without a bookie, and accepts losses, waits for ever",
        "                given=read_as is not None,",
        "                given=False,",
        (_RESTORE + "test_a_ledger_that_stays_open_waits_for_no_bookie_that_is_given_up",),
    ),
    Mutant(
        "a row without a key stays without one",
        "a bookie takes no copies of a ledger of which it only has a row of an ended life",
        "        elif not info.key:\n            await self._storage.replace_key(",
        "        elif False:\n            await self._storage.replace_key(",
        (
            "tests/unit/storage/test_losses.py::"
            "test_a_row_without_a_key_gets_that_of_the_metadata_unless_it_has_entries",
        ),
    ),
    Mutant(
        "a refusal by the file of rights counts as a loss",
        "an operator who accepts losses gives up ledgers because of a missing name",
        "                unanswered = error.retriable or isinstance(error, UnauthorizedError)\n",
        "                unanswered = error.retriable\n",
        (_RESTORE + "test_a_ledger_is_not_given_up_because_bookies_do_not_allow_the_operator_to_fence_it",),
    ),
    Mutant(
        "a bookie in limbo names no damage",
        "a ledger of a restored cluster is closed before an acknowledged entry whose copies are damaged",
        "            unknown = [(first, done.examined_to), *unknown]\n",
        "            unknown = [(first, done.examined_to)]\n",
        (
            "tests/unit/storage/reads/test_reading.py::"
            "test_of_a_ledger_in_limbo_what_is_damaged_is_named_beside_the_rest",
            "tests/unit/admin/test_restore.py::test_an_entry_of_which_the_last_copy_is_damaged_keeps_the_ledger_open",
        ),
    ),
    Mutant(
        "a damaged row of the index is no damage",
        "as above, where the index is damaged",
        "            done = done._replace(unknown=[(first, done.examined_to)])\n",
        "            pass\n",
        (
            "tests/unit/storage/reads/test_reading.py::"
            "test_of_a_ledger_in_limbo_what_is_damaged_is_named_beside_the_rest",
        ),
    ),
    Mutant(
        "what bookies of a restored cluster can't tell is missing",
        "as above, by a recovery that doesn't listen",
        "            del unknown[0]  #",
        "            unknown.clear()  #",
        ("tests/unit/admin/test_restore.py::test_an_entry_of_which_the_last_copy_is_damaged_keeps_the_ledger_open",),
    ),
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
        "Adoption.MEMBER if set(instances) == {restore.instance_id} else",
        "Adoption.MEMBER if restore.instance_id in instances else",
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
        "a bookie that has lost a ledger's key counts as not fenced",
        "a ledger of a restored cluster can't be closed, though everybody has its entries",
        "if status == Status.UNKNOWN and await self._is_fenced_without_key(",
        "if False and await self._is_fenced_without_key(",
        (_RESTORE + "test_a_bookie_that_has_lost_a_ledgers_key_keeps_nobody_from_closing_it_and_shows_its_entries",),
    ),
    Mutant(
        "whoever has any key hears that a ledger whose key was lost is fenced",
        "a stranger learns what the metadata alone may decide",
        "return await self._service.key_authority.prove(ledger_id, claim.key) == Status.OK",
        "return True",
        (_DISPUTES + "test_a_ledger_whose_key_was_lost_is_fenced_for_whom_the_metadata_know_and_shows_nothing",),
    ),
    Mutant(
        "a recovery of a restored ledger asks with its key for what a bookie has",
        "a bookie that has lost the key shows nothing, and the ledger can't be closed",
        "            flags = 0  # every bookie is fenced by now",
        "            flags |= 0  # every bookie is fenced by now",
        (_RESTORE + "test_a_bookie_that_has_lost_a_ledgers_key_keeps_nobody_from_closing_it_and_shows_its_entries",),
    ),
    Mutant(
        "a bookie that can't tell why a ledger was not fenced breaks the protocol",
        "the error speaks of an array of three elements",
        "    if status == Status.UNKNOWN and m.is_refusal(reply.head):\n",
        "    if False:\n",
        ("tests/unit/protocol/wire/test_lac_reply.py::test_a_refusal_of_a_bookie_that_cannot_tell_says_why",),
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
        "ledgers of a restored cluster are closed without a bookie that has joined meanwhile",
        "acknowledged entries that only this bookie has are cut off",
        "if joined := sorted(set(await list_cookies(self._store, self._root)).difference(known)):",
        "if joined := sorted(set[str]().difference(known)):",
        (_RESTORE + "test_no_ledger_is_closed_without_a_bookie_that_joins_meanwhile",),
    ),
    Mutant(
        "a bookie of a restored cluster is registered beside the report of an earlier process",
        "the restore is confirmed, and last copies are collected, though the bookie's disk was lost since",
        "            await membership.withdraw_report()\n",
        "            pass\n",
        (_RESTORE + "test_a_bookie_that_starts_again_withdraws_its_report_before_it_is_registered",),
    ),
    Mutant(
        "a ledger that is deleted meanwhile keeps a restore unconfirmed",
        "an operator is asked to accept a loss that is none",
        "            except NoSuchLedgerError:\n                return  # deleted meanwhile, as an operator",
        "            except ZeroDivisionError:\n                return  # deleted meanwhile, as an operator",
        (_RESTORE + "test_a_ledger_that_is_deleted_while_ledgers_are_closed_is_no_obstacle",),
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
        "a restored log names a ledger that was deleted during its backup",
        "the log can't be opened any more",
        "            log_list = without_deleted(log_list, self._deleted)\n",
        "",
        (_RESTORE + "test_a_log_whose_open_ledger_is_deleted_during_a_backup_can_be_opened_behind_the_restore",),
    ),
    Mutant(
        "an open ledger behind one that was deleted stays in a restored list",
        "its entries have positions that others have had",
        "            return dataclasses.replace(log_list, segments=log_list.segments[:number])\n",
        "            kept = log_list.segments[:number] + log_list.segments[number + 1 :]\n"
        "            return dataclasses.replace(log_list, segments=kept)\n",
        (
            "tests/unit/protocol/log/test_log_opening.py"
            "::test_a_list_whose_open_ledgers_were_deleted_ends_before_the_first_of_them",
        ),
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
        "    high = newest_high + HIGHS_SKIPPED + max(0, int(age_s))\n",
        "    high = newest_high\n",
        _LATER,
    ),
    Mutant(
        "two clusters that are restored from one backup draw the same ids",
        "a new ledger meets the entries of the first cluster's",
        "    high = newest_high + HIGHS_SKIPPED + max(0, int(age_s))\n",
        "    high = newest_high + HIGHS_SKIPPED\n",
        _AGAIN,
    ),
    Mutant(
        "bookies of a cluster that is named may not join",
        "the entries of all bookies of a first restored cluster can't be reached",
        "not {restore.instance_id, restore.former, *restore.also_from}.issuperset(",
        "not {restore.instance_id, restore.former}.issuperset(",
        _AGAIN,
    ),
    Mutant(
        "a bookie of another restored cluster is a new one",
        "its start advises to empty its directories",
        "        if adoption is Adoption.STRANGER and instances:\n",
        "        if False:\n",
        _AGAIN,
    ),
    Mutant(
        "directories join a restored cluster beside a process that has their bookie's id",
        "the bookie that was rebuilt while they were away is shut out, with all that it holds",
        '        await self._await_free("it has joined the restored cluster with other directories; stop it")\n',
        "",
        (_RESTORE + "test_directories_that_are_found_again_do_not_shut_out_the_bookie_that_was_rebuilt_for_them",),
    ),
    Mutant(
        "a second call names no further cluster",
        "bookies that are refused never join",
        "        found = await _name(store, root, found, also_from, trail, settings)\n",
        "",
        (_RESTORE + "test_clusters_whose_bookies_may_join_are_recorded",),
    ),
    Mutant(
        "clusters whose bookies may join are in no record of an act",
        "nobody can tell who let them join",
        "    if wider.state is not RestoreState.WRITING:  # until",
        "    if False:  # until",
        (_RESTORE + "test_clusters_whose_bookies_may_join_are_recorded",),
    ),
    Mutant(
        "a backup is restored under the root that it is of",
        "a client of before overwrites a closed ledger",
        "        if root == header.root:\n",
        "        if False:\n",
        _ROOT,
    ),
    Mutant(
        "a backup has the list alone of a log that is deleted meanwhile",
        "once it is restored, nobody can open or delete the log, or make another one of its name",
        "            always = _always_below(name, found[0])\n",
        "            always: tuple[str, ...] = ()\n",
        (_RESTORE + "test_a_log_that_is_deleted_during_a_backup_is_deleted_again_behind_the_restore[whole-list]",),
    ),
    Mutant(
        "a backup has what is below a log that was made again meanwhile under the list of the former one",
        "once it is restored, nobody can open or delete the log, or make another one of its name",
        "self.below(always[0] if always else path, added=always)",
        "self.below(path, added=always)",
        (_RESTORE + "test_a_log_that_is_made_again_during_a_backup_is_deleted_behind_the_restore",),
    ),
    Mutant(
        "a backup is read from a pipe",
        "bkpy cluster restore calls a sound backup damaged, or waits for ever and can't be ended",
        "if files.is_stream(path):",
        "if False:",
        ("tests/unit/metadata/test_backup_file.py::test_a_pipe_is_refused_before_it_is_opened",),
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
        "            _check_free(files, path)  # that process may have ended just now\n",
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
