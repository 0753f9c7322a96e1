"""Defects in re-replication: copies that are not whole, swaps that come too early, marks that get lost."""

from __future__ import annotations

from typing import Final

from tests.mutants import Mutant

_PLAN: Final = "tests/unit/protocol/repair/test_rereplication.py::"
_REPAIR: Final = "tests/unit/replication/worker/test_ledger_repair.py::"
_DRAIN: Final = "tests/unit/admin/test_drain_work.py::"
_HELD: Final = "tests/unit/replication/auditor/test_held_entries.py::"
_RETURNED: Final = "tests/unit/replication/auditor/test_returned_bookies.py::"
_WORKER: Final = "tests/unit/replication/worker/test_worker.py::"
_INTEGRITY: Final = "tests/unit/replication/test_integrity.py"
_IN_PLACE: Final = "tests/unit/replication/worker/test_repair_in_place.py::"
_EDGES: Final = "tests/unit/replication/worker/test_worker_edges.py::"
_REMEMBERED: Final = "tests/unit/replication/auditor/test_remembered_ledgers.py::"

_BACKLOG: Final = "tests/unit/replication/worker/test_backlog.py::"
_NODES: Final = "tests/unit/metadata/replication/test_worker_nodes.py::"
_REMOVED: Final = "tests/unit/bookie/test_removed_directories.py::"

MUTANTS: list[Mutant] = [
    Mutant(
        "a worker takes a refusal of ZooKeeper's for a defect of its own",
        "its operator is asked to report it, again and again",
        "            except ClientClosedError:\n                return\n"
        "            except BookKeeperError as error:\n                level",
        "            except BookKeeperError as error:\n                if not error.retriable:\n"
        "                    return\n                level",
        ("tests/unit/replication/worker/test_worker_edges.py::test_a_switch_that_may_not_be_read_is_no_defect",),
    ),
    Mutant(
        "a bookie whose directory was removed goes on",
        "it acknowledges what it writes into a file that nobody can open again",
        'if not self._files.exists(f"{directory}/{COOKIE_NAME}") and self._has_gone(directory):',
        "if False:",
        (_REMOVED + "test_it_ends_and_says_which_one_is_gone",),
    ),
    Mutant(
        "marks that others took away are counted for ever",
        "an alarm for ledgers that have all their copies",
        "        for ledger_id in gone:\n            self.drop(ledger_id)\n        return gone",
        "        return gone",
        (_BACKLOG + "test_those_whose_marks_are_not_listed_any_more_are_dropped",),
    ),
    Mutant(
        "a worker doesn't look whether its node is still there",
        "after the end of its session nobody hears of it again",
        "if self._version is not None and value == self._stored and await self._store.exists(self._path):",
        "if self._version is not None and value == self._stored:",
        (_NODES + "test_it_goes_with_the_session_and_is_made_anew_though_nothing_changed",),
    ),
    Mutant(
        "a bookie that leaves takes what recoveries write back",
        "a share is copied to a bookie that is gone before it is swapped in",
        "    return not leaves and (recovery or not read_only)",
        "    return recovery or not (leaves or read_only)",
        (_DRAIN + "test_it_is_draining_after_a_restart_before_it_serves_anybody",),
    ),
    Mutant(
        "a bookie that is started doesn't look whether it is draining",
        "it takes an entry after it has said that it takes none",
        "        if await membership.draining():\n",
        "        if not await membership.draining() and self.service.storage.untrusted:\n",
        (_DRAIN + "test_it_is_draining_after_a_restart_before_it_serves_anybody",),
    ),
    Mutant(
        "those who move copies are not waited for",
        "a ledger comes to name a bookie that is gone",
        "            held &= await self._held()",
        "            held.clear()",
        (_DRAIN + "test_who_moves_copies_meanwhile_is_waited_for",),
    ),
    Mutant(
        "a ledger that is being recovered needs nobody",
        "its closing write names a bookie that is gone",
        "    return BookieReference.UNSETTLED if metadata.state is LedgerState.IN_RECOVERY else BookieReference.NONE",
        "    return BookieReference.NONE",
        (_DRAIN + "test_ledgers_in_recovery_are_settled_first",),
    ),
    Mutant(
        "the mark of a bookie that is away is void when it isn't draining any more",
        "a ledger stays a copy short for good",
        "    return not draining and here",
        "    return not draining",
        (_DRAIN + "test_the_mark_of_one_that_went_away_meanwhile_is_kept",),
    ),
    Mutant(
        "a writer that appends nothing stays on a bookie that leaves",
        "its ledger is closed for it, and the writer fails",
        "return bool(directory.draining or directory.absent_since) or any(",
        "return bool(directory.draining and directory.absent_since) or any(",
        (_DRAIN + "test_without_other_bookies_nothing_fails_and_it_is_said_what_is_in_the_way",),
    ),
    Mutant(
        "a last fragment may be moved while it can grow",
        "an acknowledged entry is cut off by a recovery that asks the new bookie",
        "if fragment_index == len(self.fragments) - 1 and self.state is not LedgerState.CLOSED:",
        "if fragment_index == len(self.fragments) - 1 and self.state is LedgerState.IN_RECOVERY:",
        (_PLAN + "test_the_last_fragment_of_a_ledger_that_is_not_closed_is_never_moved",),
    ),
    Mutant(
        "a look through a bookie recovers what is open",
        "`bkpy bookie integrity --now` ends all writers that the bookie serves",
        "to_end = self._ends_its_writer(ledger_id, demand, in_limbo=in_limbo)",
        "to_end = True",
        (f"{_INTEGRITY}::test_a_look_through_a_sound_bookie_ends_no_writer",),
    ),
    Mutant(
        "a bookie takes away what a check has found",
        "bytes that are damaged on its disk, where the index is sound, are never copied anew",
        "loss.reason in (LossReason.LOST, LossReason.REBUILDING, LossReason.RETURNED)",
        "loss.reason != LossReason.DRAINING",
        (f"{_INTEGRITY}::test_the_mark_of_a_ledger_that_is_whole_again_goes",),
    ),
    Mutant(
        "a bookie is swapped in though its copy came to nothing",
        "a copy is lost for good, and nobody knows",
        "        if not isinstance(copied, Copied):\n",
        "        if isinstance(copied, Unreadable):\n",
        (_REPAIR + "test_a_target_that_fails_is_left_for_another_one",),
    ),
    Mutant(
        "a bookie that lacks entries has to be replaced, whatever bookies there are",
        "in a cluster as large as its ensembles what a check has found is never mended",
        "    return CopyMethod.IN_PLACE if incomplete and takes else CopyBlocker.NO_TARGET\n",
        "    return CopyBlocker.NO_TARGET\n",
        (_IN_PLACE + "test_a_ledger_each_of_whose_bookies_is_named_already_is_whole_again",),
    ),
    Mutant(
        "who was mended in one fragment counts as mended in all",
        "its mark goes while it still lacks entries",
        "if RepairedInPlace(number, index, names[index], held.first_entry, held.last_entry) in repaired_in_place:\n",
        "if any(names[index] == one.bookie_id for one in repaired_in_place):\n",
        (_PLAN + "test_what_was_mended_counts_for_that_fragment_and_that_bookie_alone",),
    ),
    Mutant(
        "a bookie that is away, or is to leave, merely lacks entries",
        "it is taken off the mark, and stays in the ensembles though it goes",
        "for bookie_id, loss in self.lost.items() if loss.reason in _INCOMPLETE)",
        "for bookie_id, loss in self.lost.items())",
        (_IN_PLACE + "test_a_bookie_that_is_to_go_gets_nothing",),
    ),
    Mutant(
        "the swap does not check the lock",
        "a bookie is named for what it has just collected",
        "            self._store, path, metadata.encode(), expected_version, held, attempts_max=self._attempts_max\n",
        "            self._store, path, metadata.encode(), expected_version, attempts_max=self._attempts_max\n",
        (_REPAIR + "test_without_its_lock_nothing_is_swapped",),
    ),
    Mutant(
        "a newer mark is removed than the one that was read under the lock",
        "a ledger keeps a lost bookie, and nothing says so",
        "                ledger.released = await self._records.remove_with(record, ledger.lock)\n",
        "                record = await self._records.read(record.ledger_id)\n"
        "                ledger.released = await self._records.remove_with(record, ledger.lock)\n",
        (_WORKER + "test_a_new_mark_during_the_work_is_not_lost",),
    ),
    Mutant(
        "mark and lock are said to be gone though only somebody else's removal was found",
        "a ledger stays locked until the session ends, and nobody can repair it",
        "*lock.nodes, *self._checks, attempts_max=1)",
        "*lock.nodes, *self._checks, attempts_max=self._attempts_max)",
        (
            "tests/unit/metadata/replication/test_underreplication.py::test_that_both_are_gone_is_said_only_if_it_is_certain",
        ),
    ),
    Mutant(
        "the lock is kept that went with no mark",
        "a ledger stays locked until the session ends, and nobody can repair it",
        "            if not ledger.released:\n                await self._locks.release(lock)\n",
        "            if ledger.released:\n                await self._locks.release(lock)\n",
        (_REPAIR + "test_the_lost_share_is_copied_and_the_new_bookie_named",),
    ),
    Mutant(
        "an entry that no readable bookie has does not stop its share",
        "a bookie is named for entries that it never got",
        "        sources=not gone,\n",
        "        sources=not len(gone) == len(living) > 1,\n",
        (_PLAN + "test_every_lost_place_of_a_fragment_with_an_end_is_copied_or_it_is_said_what_is_missing",),
    ),
    Mutant(
        "a stuck ledger is tried again all the time",
        "a cluster reads in vain for ever",
        "one.stuck, one.due = True, max(one.due, now + settings.repair_pause_max_s)\n",
        "one.stuck = True\n",
        (_WORKER + "test_failures_are_tried_again_less_and_less_often_and_then_only_now_and_then",),
    ),
    Mutant(
        "what a ledger was stuck by is noted down when that may have changed",
        "a ledger stays under-replicated though all is there that it needs",
        "_signature(ended.record, *ended.judged, bookies)",
        "_signature(ended.record, *ended.judged, self._context.bookies())",
        (_EDGES + "test_who_comes_right_behind_the_look_is_not_missed",),
    ),
    Mutant(
        "a ledger that is worked on is due all the time",
        "a long copy costs the metadata store all that it can do",
        "for i, one in self._postponed.items() if not self._in_hand(i)), default",
        "for one in self._postponed.values()), default",
        (_EDGES + "test_a_ledger_that_is_being_worked_on_again_is_not_looked_at_all_the_time",),
    ),
    Mutant(
        "a mark counts as a sign that all older ledgers were listed",
        "a ledger of a lost bookie gets no mark",
        "remembered.settle(worked_off.intersection(some) - self._just_added)",
        "remembered.settled_to = max(remembered.settled_to, some[-1])",
        (_REMEMBERED + "test_a_mark_of_somebody_elses_hides_no_new_ledger",),
    ),
    Mutant(
        "a worker sleeps past what it has postponed",
        "a ledger that only waits for its writer stays under-replicated for a minute more",
        "        if not one.stuck and one.due < self._wakes_at:\n",
        "        if one.stuck and one.due < self._wakes_at:\n",
        (_WORKER + "test_a_ledger_that_is_postponed_while_nothing_else_is_due_is_tried_in_time",),
    ),
    Mutant(
        "failed work is tried again as soon as before",
        "a cluster without room is busy with failures",
        "backoff_s(max(attempts, locked) - 1, settings",
        "backoff_s(max(0, locked) - 1, settings",
        (_WORKER + "test_failures_are_tried_again_less_and_less_often_and_then_only_now_and_then",),
    ),
    Mutant(
        "the entries that nobody returns are told as one range",
        "people are told that entries are lost which they have",
        "            if entry_id not in absent:\n                open_range = False\n",
        "            if entry_id not in absent:\n                pass\n",
        (_HELD + "test_entries_that_are_damaged_everywhere_are_named_and_no_others",),
    ),
    Mutant(
        "only the first bookie is asked what it returns",
        "people are told that entries are lost which others have",
        "        if not absent:\n            break\n",
        "        if end is not None:\n            break\n",
        (_HELD + "test_entries_that_are_damaged_everywhere_are_named_and_no_others",),
    ),
    Mutant(
        "all hands copy beside clients",
        "appends wait behind every copy that is made",
        "        beside_clients = now - self._changed_at < settings.foreground_idle_s\n",
        "        beside_clients = False\n",
        (
            "tests/unit/replication/worker/test_copy_turns.py::test_beside_clients_few_do_and_when_they_have_gone_all_again",
        ),
    ),
    Mutant(
        "clients never leave",
        "a cluster that nobody writes to heals as slowly as one that is busy",
        "            self._counted, self._changed_at = count, now\n",
        "            self._changed_at = now\n",
        (
            "tests/unit/replication/worker/test_copy_turns.py::test_beside_clients_few_do_and_when_they_have_gone_all_again",
        ),
    ),
    Mutant(
        "copies are appends of clients",
        "workers slow each other down, although nobody else is there",
        "        if not columns.flags & _RECOVERY:\n            self.appended += 1\n",
        "        self.appended += 1\n",
        (
            "tests/unit/replication/worker/test_appends_of_clients.py::test_appends_of_clients_are_counted_and_copies_are_not",
        ),
    ),
    Mutant(
        "the pause of a ledger that fails for days has no bound",
        "after 1,025 failures of one ledger a hand ends, and after a month all of them",
        "doublings = min(max(0, failures), 100)",
        "doublings = max(0, failures)",
        (
            _PLAN + "test_pauses_double_up_to_their_bound_for_ever",
            _EDGES + "test_a_ledger_that_fails_for_days_ends_no_hand",
        ),
    ),
    Mutant(
        "a hand that ends is not replaced",
        "after a few defects nothing is copied any more, and nothing says so",
        "                    tasks[self._begin(name, parts[name], self._settings.repair_pause_min_s)] = name\n",
        "                    pass\n",
        (_EDGES + "test_a_task_of_the_worker_that_ends_is_logged_counted_and_replaced",),
    ),
    Mutant(
        "the lock of a cancelled hand stays",
        "a ledger can't be repaired until the session ends",
        "        try:\n"
        "            try:\n"
        "                yield ledger\n"
        "            except Exception:\n"
        "                await self._locks.release(lock)\n"
        "                raise\n"
        "            if not ledger.released:\n"
        "                await self._locks.release(lock)\n"
        "        except asyncio.CancelledError:\n"
        "            self._locks.abandon(lock)\n"
        "            raise\n",
        "        try:\n"
        "            try:\n"
        "                yield ledger\n"
        "            except Exception:\n"
        "                await self._locks.release(lock)\n"
        "                raise\n"
        "            if not ledger.released:\n"
        "                await self._locks.release(lock)\n"
        "        except asyncio.CancelledError:\n"
        "            raise\n",
        (_EDGES + "test_the_lock_of_a_cancelled_hand_is_released_in_the_same_session",),
    ),
    Mutant(
        "a drain that ends keeps the locks of its worker",
        "a ledger can't be repaired until the client that drained closes",
        "        working.add_done_callback(lambda ended: locks.release_abandoned_later())\n\n        async def end()",
        "\n        async def end()",
        (_DRAIN + "test_a_drain_that_ends_inside_of_a_ledger_leaves_it_to_others",),
    ),
    Mutant(
        "a recovery of a bookie that ends keeps the locks of its worker",
        "a ledger can't be repaired until the client that recovered closes",
        "            working.add_done_callback(lambda ended: locks.release_abandoned_later())\n            try:",
        "            try:",
        ("tests/unit/admin/test_admin_client.py::test_a_recovery_that_ends_inside_of_a_ledger_leaves_it_to_others",),
    ),
    Mutant(
        "a rebalancing that is cancelled keeps its locks",
        "a ledger can't be repaired until the client that rebalanced closes",
        "            hand.add_done_callback(lambda ended: self._locks.release_abandoned_later())\n",
        "            pass\n",
        ("tests/unit/admin/test_rebalancer.py::test_one_that_is_cancelled_inside_of_ledgers_leaves_them_to_others",),
    ),
    Mutant(
        "abandoned locks that are to be released later never are",
        "a ledger can't be repaired until the session ends",
        "        if self._abandoned:\n            self._runtime.spawn(self.release_abandoned()",
        "        if not self._abandoned:\n            self._runtime.spawn(self.release_abandoned()",
        (_DRAIN + "test_a_drain_that_ends_inside_of_a_ledger_leaves_it_to_others",),
    ),
    Mutant(
        "a bookie that stays after all is not verified",
        "acknowledged entries have one copy less than they should, once a drain was begun and cancelled",
        "        if await self._context.cluster.catalog.closed_before(ledger_id, since_ms):\n",
        "        if True:\n",
        (_RETURNED + "test_what_it_missed_is_copied_though_draining_it_was_begun_and_cancelled",),
    ),
    Mutant(
        "a bookie that is back is not waited for",
        "copies are moved away from a bookie that was restarted",
        "if first_attempt and self._may_be_back(record):",
        "if False:",
        (_WORKER + "test_a_copy_that_a_returned_bookie_has_stays_where_it_is_at_first",),
    ),
    Mutant(
        "the grace period of one lost bookie counts for the next one",
        "a writer is ended before it had the time to leave",
        "            if one.waiting_for != ended.waiting_for:\n"
        "                one.waiting_since, one.waiting_for = now, ended.waiting_for\n",
        "            if not one.waiting_for:\n"
        "                one.waiting_since = now\n"
        "            one.waiting_for = ended.waiting_for\n",
        (_WORKER + "test_a_writer_has_the_whole_time_for_each_bookie_that_is_lost",),
    ),
    Mutant(
        "the grace period goes on while the bookie is back",
        "a bookie that restarts twice within half a minute ends the writers of its ledgers",
        "if before is not None and ended.why != BACK:",
        "if before is not None:",
        (_WORKER + "test_a_writer_has_the_whole_time_for_each_bookie_that_is_lost",),
    ),
    Mutant(
        "a recovery doesn't look whether the bookie is back",
        "`bkpy bookie recover` of a bookie that was restarted ends all writers that it serves",
        "returned = self._repair.here(scope.absent) if metadata.state is LedgerState.OPEN else frozenset[str]()",
        "returned = frozenset[str]()",
        (_WORKER + "test_a_bookie_that_comes_back_in_time_ends_no_writer",),
    ),
    Mutant(
        "an open ledger is closed though no bookie could take the place",
        "with three bookies, the loss of one ends every writer, for nothing",
        "            if leave and _gains_nothing(metadata, names, unclosed, leaving, bookies):\n",
        "            if False:\n",
        (
            _PLAN + "test_an_open_ledger_is_left_to_its_writer_if_nobody_could_take_the_place_of_the_lost_ones",
            _WORKER + "test_no_writer_is_ended_where_no_bookie_could_take_the_place_of_the_lost_one",
        ),
    ),
    Mutant(
        "a bookie in limbo counts as one that goes on",
        "its limbo never ends in a small cluster",
        "    if not bookies.in_limbo.isdisjoint(unclosed):\n        return False\n",
        "",
        (_PLAN + "test_a_bookie_in_limbo_gets_its_ledgers_closed_though_nobody_could_take_its_place",),
    ),
    Mutant(
        "one failed attempt of the integrity check ends a writer",
        "a damaged row on one bookie ends a healthy writer",
        "        return ledger_id in self._to_recover\n",
        "        return ledger_id in self._to_recover or ledger_id in self._left or ledger_id in self._waiting\n",
        (f"{_INTEGRITY}::test_a_failed_attempt_ends_no_writer",),
    ),
    Mutant(
        "ledgers that fail take all hands",
        "thirty ledgers that can't be repaired, and no other one is copied any more",
        "        failed = bool(self._failed) and (may_fail or not self._untried)\n",
        "        failed = bool(self._failed)\n",
        (
            _WORKER + "test_ledgers_that_have_failed_take_at_most_half_of_the_hands_while_others_wait",
            _WORKER + "test_an_ordinary_ledger_is_copied_beside_more_endangered_ones_that_fail",
        ),
    ),
    Mutant(
        "the scan of records waits for room for ledgers that fail",
        "marks that are listed behind a hundred thousand hopeless ones are not looked at for hours",
        "            if postponed is not None and failed:  # ledgers that have not failed",
        "            if postponed is None and failed:  # ledgers that have not failed",
        (_WORKER + "test_an_ordinary_ledger_is_copied_beside_more_endangered_ones_that_fail",),
    ),
    Mutant(
        "a copy counts though the connection was made anew meanwhile",
        "a bookie without a journal is named for entries that it has forgotten",
        "if not channel.up or channel.generation != generation:",
        "if not channel.up:",
        (_REPAIR + "test_a_copy_on_a_connection_that_was_made_anew_does_not_count",),
    ),
    Mutant(
        "records of striped copies are not verified",
        "a damaged copy takes the place of one that was intact",
        "                self._codec.check(frame.body, header.offset, header.end)\n"
        "                found[header.entry_id] = frame.body[header.offset : header.end]\n",
        "                found[header.entry_id] = frame.body[header.offset : header.end]\n",
        (_REPAIR + "test_a_damaged_record_of_a_striped_ledger_is_not_copied",),
    ),
    Mutant(
        "a copy is not counted",
        "a bookie is named for entries that it never got",
        "        if copied != self._copy.share.entries:\n",
        "        if False:\n",
        (_REPAIR + "test_a_copy_that_misses_some_of_its_share_is_an_error",),
    ),
    Mutant(
        "a safety check is an assert",
        "`python -O` leaves it out",
        "        if self.sealed is not None:\n"
        '            raise AssertionError("the generation sealed before is not flushed yet")\n',
        "        assert self.sealed is None\n",
        ("tests/unit/test_architecture.py::test_no_safety_check_is_an_assert",),
    ),
    Mutant(
        "limbo ends when the ledger's lock was given back",
        "a copy from before the loss is swapped in, and its bookie denies what it lost",
        "                await self._end_locked(ledger_id)\n",
        "                await self._locks.release(lock)\n                await self._end_locked(ledger_id)\n",
        (f"{_INTEGRITY}::test_limbo_ends_under_the_lock_of_its_ledger",),
    ),
    Mutant(
        "what a bookie rebuilds itself is no work",
        "operators restart the next bookie while one has nothing of what it had",
        '"ledgers": len(counts.marked) + _unmarked(counts, rebuilding),',
        '"ledgers": len(counts.marked),',
        (f"{_INTEGRITY}::test_what_is_left_to_rebuild_is_reported_from_the_start",),
    ),
    Mutant(
        "the metrics of a rebuild come when it is over",
        "an alarm sees nothing while a bookie has nothing of what it had",
        "self._metrics.to_rebuild(to_rebuild, in_doubt=self._losses.all_in_doubt)",
        "self._metrics.to_rebuild(0, in_doubt=False)",
        (f"{_INTEGRITY}::test_what_is_left_to_rebuild_is_reported_from_the_start",),
    ),
    Mutant(
        "a drain ends without a last look at all ledgers",
        "a bookie is said to be drained while ledgers that came to name it meanwhile still do",
        "                if not progress.ledgers:\n"
        "                    progress = await self.look()  # other ledgers may name the bookie by now\n",
        "",
        (_DRAIN + "test_what_comes_to_name_the_bookie_while_it_drains_goes_as_well",),
    ),
    Mutant(
        "what nobody can copy is not left",
        "a drain that waits for a bookie says that 0 bytes are left",
        "            entries += sum(stuck.entries for stuck in planned.stuck)\n",
        "",
        (_DRAIN + "test_what_is_missing_is_said_at_once_with_ways_out_and_exact_bytes",),
    ),
    Mutant(
        "a drain says nothing of a missing bookie",
        "an operator waits for ever for a drain that can't end",
        "            self._advise(progress, planned)\n",
        "",
        (_DRAIN + "test_what_is_missing_is_said_at_once_with_ways_out_and_exact_bytes",),
    ),
    Mutant(
        "a bookie that was replaced while it was away is waited for",
        "the mark of a whole ledger stays as long as the bookie is away, and its alarm never ends",
        "away &= frozenset() if metadata is None else named_bookies(metadata)",
        "pass",
        (
            _RETURNED + "test_a_writer_that_closes_after_the_lost_bookie_was_replaced_leaves_no_mark",
            _RETURNED + "test_of_two_that_are_away_the_one_that_is_named_is_waited_for",
        ),
    ),
    Mutant(
        "a record is removed with the first of its bookies that is repaired",
        "a ledger misses another copy, and nobody makes it",
        "return RecordUpdate.DROP_BOOKIES if repaired else RecordUpdate.KEEP",
        "return RecordUpdate.REMOVE if repaired else RecordUpdate.KEEP",
        (_PLAN + "test_a_record_goes_only_with_the_last_bookie_that_it_names",),
    ),
    Mutant(
        "a lock counts as released though its record was not removed",
        "a ledger stays locked until the session ends, and nobody can repair it",
        "return ledger.released or await self._drop(record, repaired)",
        "ledger.released = True",
        (_WORKER + "test_a_new_mark_during_the_work_is_not_lost",),
    ),
    Mutant(
        "a bookie that is away and unverified counts as lost",
        "a bookie that restarts has all that it holds copied away",
        "return None if away == record.lost.keys() else frozenset(record.lost) - away",
        "return frozenset(record.lost)",
        (_RETURNED + "test_of_two_that_are_away_the_one_that_is_named_is_waited_for",),
    ),
    Mutant(
        "the writer of an open ledger is ended though the bookies that it lost are back",
        "appends fail after each restart of a bookie",
        "        if all_returned:\n            return RepairStep.KEEP_WRITER\n",
        "",
        (
            _PLAN + "test_every_look_has_a_next_step",
            _WORKER + "test_a_bookie_that_comes_back_in_time_ends_no_writer",
        ),
    ),
    Mutant(
        "an answer without a fence counts as one",
        "a recovery ends a ledger that its writer goes on with",
        "if not answer.proven.fenced:",
        "if False:",
        ("tests/unit/recovery/test_recovery_answers.py::test_an_answer_without_a_fence_counts_for_nothing",),
    ),
    Mutant(
        "a ledger whose last acknowledged entry is gone is closed with a length of zero",
        "the stored length is wrong for ever",
        'if self._giving_up is None:\nraise self._undecided("the last acknowledged entry is on none',
        'if False:\n    raise self._undecided("the last acknowledged entry is on none',
        (
            "tests/unit/recovery/test_recovery_answers.py::"
            "test_the_length_of_a_ledger_whose_last_acknowledged_entry_is_gone_is_not_guessed",
        ),
    ),
    Mutant(
        "a recovery goes on though its mark was never stored",
        "the writer changes its ensemble meanwhile, and the ledger is closed without what is there",
        "if self._metadata.state is LedgerState.OPEN:\nraise MetadataConflictError",
        "if False:\n    raise MetadataConflictError",
        (
            "tests/unit/recovery/test_recovery.py::"
            "test_metadata_that_keep_changing_end_a_recovery_that_has_fenced_nobody",
        ),
    ),
    Mutant(
        "a bookie's failure counts after its answer",
        "a bookie that has everything is replaced",
        'will not answer: unreachable, timed out, or failing as a whole."""\nif self._answered >> index & 1:',
        'will not answer: unreachable, timed out, or failing as a whole."""\nif False:',
        ("tests/unit/protocol/ledger/test_acks.py::test_a_bookie_fails_once_and_not_after_its_answer",),
    ),
    Mutant(
        "an extension is looked into for headers of arrays",
        "a message of 64 KiB costs a bookie 32 MiB",
        "return True  # a large map or an extension, of which no message has any",
        "pass",
        ("tests/unit/protocol/wire/test_messages.py::test_an_extension_hides_no_arrays_behind_it",),
    ),
    Mutant(
        "callbacks go on behind one that failed",
        "entries are acknowledged that the memtable doesn't have",
        "self._on_failure(e)",
        "pass",
        ("tests/unit/storage/test_under_way.py::test_behind_an_error_of_a_callback_nothing_is_acknowledged",),
    ),
    Mutant(
        "entries without a key make a ledger in a sound journal",
        "damage that no checksum shows makes a ledger that anybody may write to",
        "if not self._ledgers.untrusted:\nraise CorruptDataError(",
        "if False:\n    raise CorruptDataError(",
        (
            "tests/unit/storage/test_under_way.py::"
            "test_entries_of_a_ledger_without_a_key_in_a_sound_journal_are_refused_at_the_next_start",
        ),
    ),
]
