"""Defects in how lost bookies are found and their ledgers are marked."""

from __future__ import annotations

from tests.mutants import Mutant

_MARKS = "tests/unit/metadata/replication/test_underreplication.py"
_ELECTION = "tests/unit/metadata/replication/test_election.py"
_DECISIONS = "tests/unit/protocol/repair/test_lost_bookies.py"
_LINGERS = "tests/unit/client/write/test_closing_lingers.py"
_WHENEVER = f"{_LINGERS}::test_whenever_a_call_ends_that_closes_a_ledger_what_bookies_miss_is_recorded"
_IN_PLACE = "tests/unit/replication/worker/test_repair_in_place.py"
_AUDITOR = "tests/unit/replication/auditor/test_auditor.py"
_DIRECTORY = "tests/unit/metadata/bookies/test_directory.py"
_WORKER = "tests/unit/replication/worker/test_worker.py"
_SHARES = "tests/unit/replication/worker/test_shares.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "what bookies miss of a closed ledger is dated by the client's clock",
        "where that is ahead, a bookie that is lost and returns counts as whole",
        "        since_ms = min(closed_ms, int(self._runtime.clock.time() * 1000))\n",
        "        since_ms = int(self._runtime.clock.time() * 1000)\n",
        (
            "tests/unit/client/write/test_closing_lingers.py::"
            "test_what_a_bookie_misses_is_dated_no_later_than_the_end_of_the_ledger",
        ),
    ),
    Mutant(
        "an absence begins by the auditor's clock alone",
        "where that is ahead, what was closed without a bookie counts as whole when it returns",
        "        dated = with_stored(record, begun, await self._records.written_ms()) if begun else record\n",
        "        dated = record\n",
        (f"{_AUDITOR}::test_an_auditors_clock_that_is_ahead_ends_no_record_too_early",),
    ),
    Mutant(
        "all registrations read again for each bookie that comes or goes",
        "the start of a thousand bookies, or the loss of a rack, keeps ZooKeeper busy for minutes",
        "await self.refresh(whole=False)",
        "await self.refresh(whole=True)",
        (f"{_DIRECTORY}::test_of_bookies_that_come_and_go_only_the_new_ones_are_read",),
    ),
    Mutant(
        "a bookie that was away between two lists is not read again",
        "clients look for it at its former address for minutes",
        "if whole or made - before.made != len(wanted):",
        "if whole:",
        (f"{_DIRECTORY}::test_a_bookie_that_was_away_between_two_lists_is_read_again",),
    ),
    Mutant(
        "every worker looks at every ledger",
        "the reads of a thousand workers, which grow with the square of the cluster, keep ZooKeeper from healing it",
        "return (crc32(ledger_id.to_bytes(8)) - place) % workers < lookers",
        "return True",
        (f"{_SHARES}::test_each_record_is_read_by_its_lookers_and_by_no_other_worker",),
    ),
    Mutant(
        "a worker with nothing left does not look further",
        "ledgers wait for the workers that they are a share of, while others have nothing to do",
        "and self._leaves_some and self._further_at is None:",
        "and self._further_at is None and self._further_at:",
        (f"{_SHARES}::test_a_worker_with_nothing_left_looks_at_what_others_do_not_repair",),
    ),
    Mutant(
        "a worker with nothing left looks further at once",
        "when a bookie is lost all workers of a cluster read its first ledgers, and reach for the same locks",
        "self._further_at = self._now() + self._settings.repair_pause_min_s",
        "self._further_at = self._now()",
        (f"{_SHARES}::test_a_worker_with_nothing_left_waits_a_moment_before_it_looks_further",),
    ),
    Mutant(
        "the time to look further does not end a wait",
        "a worker with nothing left helps others a minute later",
        "if self._further_at is not None:\n    due = min(due, self._further_at)",
        "pass",
        (f"{_SHARES}::test_a_worker_with_nothing_left_looks_at_what_others_do_not_repair",),
    ),
    Mutant(
        "each news of records ends a worker's look at others' ledgers",
        "while records are added all the time, ledgers of workers that hang wait",
        "if self._further_at is None:\n    self._lookers = self._settings.repair_lookers",
        "self._lookers = self._settings.repair_lookers",
        (f"{_SHARES}::test_a_worker_with_nothing_left_looks_further_whatever_news_there_is",),
    ),
    Mutant(
        "a ledger that is tried again keeps a worker from looking further",
        "one ledger that nobody can repair now, and its only hand helps nobody else",
        "if postponed is None:  # what is tried again and again must not keep a worker from others' ledgers\n    ",
        "if True:\n    ",
        (f"{_SHARES}::test_a_failed_ledger_is_tried_again_whatever_news_there_is",),
    ),
    Mutant(
        "workers reach for locks that others have",
        "of many workers all but one write to the metadata store in vain for each ledger",
        "if locked:\n    return Repaired(RepairOutcome.LATER, LOCKED)",
        "",
        (f"{_WORKER}::test_a_lock_that_another_worker_has_is_not_reached_for",),
    ),
    Mutant(
        "ledgers that nobody can repair are read by all workers again and again",
        "a thousand workers read ten thousand stuck ledgers every minute",
        "self._leaves_some = bool(left) and not self._found_nothing",
        "self._leaves_some = bool(left)",
        (f"{_SHARES}::test_what_nobody_can_repair_is_read_again_by_its_lookers_alone",),
    ),
    Mutant(
        "news of records is no reason to look further again",
        "after the first loss that left stuck ledgers, a worker never helps others any more",
        "self._found_nothing = False\nif self._further_at is None:",
        "if self._further_at is None:",
        (f"{_SHARES}::test_what_nobody_can_repair_is_read_again_by_its_lookers_alone",),
    ),
    Mutant(
        "a failed ledger of another worker's share is not tried again while there is news",
        "a ledger whose copy failed once stays without it as long as others are recorded",
        " or self._is_due(ledger_id):",
        ":",
        (f"{_SHARES}::test_a_failed_ledger_is_tried_again_whatever_news_there_is",),
    ),
    Mutant(
        "an auditor writes marks without a check of its term",
        "an auditor that was paused for long marks what is not lost any more",
        "self._checks = () if guard is None else (Check(guard, 0),)",
        "self._checks = ()",
        (f"{_MARKS}::test_nothing_is_written_without_the_guard",),
    ),
    Mutant(
        "a suspended session ends no term",
        "two auditors are at work, as long as the one that was cut off tries",
        "if state is not SessionState.CONNECTED:\n    over.set()",
        "if state is SessionState.EXPIRED:\n    over.set()",
        (f"{_ELECTION}::test_a_leader_gives_up_when_its_session_is_suspended",),
    ),
    Mutant(
        "an auditor adds records before it says so",
        "a bookie that comes back before all are there stays in them, and small clusters repair those ledgers never",
        "record = await self._store_record(record, with_begun(record, found.due))",
        "",
        (
            f"{_AUDITOR}::test_a_bookie_that_comes_back_while_it_is_marked_is_dropped_by_the_next_auditor",
            f"{_AUDITOR}::test_a_bookie_that_is_back_before_all_is_marked_and_that_was_switched_off_is_dropped",
        ),
    ),
    Mutant(
        "an absence that has begun to be recorded is forgotten",
        "as above",
        "return AbsenceBefore.MARKED if absence.begun or absence.marked",
        "return AbsenceBefore.MARKED if absence.marked",
        (f"{_DECISIONS}::test_what_becomes_of_a_bookies_absence",),
    ),
    Mutant(
        "the stored record doesn't say what has begun",
        "as above, behind a restart of the auditor",
        '"begun": absence.begun,',
        "",
        (f"{_AUDITOR}::test_a_bookie_that_comes_back_while_it_is_marked_is_dropped_by_the_next_auditor",),
    ),
    Mutant(
        "an audit record of 0.2.0 is damaged",
        "after an upgrade the auditor forgets who is absent, and since when",
        'bool(fields.get("begun", False))',
        'bool(fields["begun"])',
        (f"{_AUDITOR}::test_a_record_of_the_version_before_is_read",),
    ),
    Mutant(
        "most bookies may be absent and are copied",
        "a cluster that was cut off from ZooKeeper for a while copies everything that it has",
        "return 2 * missing > bookies - worked_off",
        "return False",
        (
            f"{_DECISIONS}::test_while_most_are_absent_nothing_is_marked",
            f"{_AUDITOR}::test_while_most_are_absent_nothing_is_marked_and_it_is_said",
        ),
    ),
    Mutant(
        "a bookie that comes back empty has what it had",
        "the ledgers of the storage that it lost stay without their copies for good",
        "return not now or not before or set(before.split()) <= set(now.split())",
        "return True",
        (
            f"{_DECISIONS}::test_a_storage_that_has_got_directories_is_the_same",
            f"{_AUDITOR}::test_a_bookie_that_comes_back_with_another_storage_has_lost_what_it_had",
        ),
    ),
    Mutant(
        "a bookie that rebuilds itself is worked off at once",
        "all that it had is copied twice, and it comes back for nothing",
        "if not covers(is_.instance, before) and is_.presence is not Presence.HERE:",
        "if not is_.instance:",
        (
            f"{_DECISIONS}::test_a_bookie_that_rebuilds_itself_has_as_long_as_an_absent_one",
            "tests/unit/replication/test_rebuilding_beside_workers.py::test_it_is_left_alone_as_long_as_one_that_is_away",
        ),
    ),
    Mutant(
        "ledgers that were worked off are not read again",
        "a ledger that was copied to a bookie that is lost next is never marked for that one",
        "batched(sorted({*remembered.open, *also, *worked_off}), ",
        "batched(sorted(remembered.open), ",
        (
            f"{_AUDITOR}::test_a_ledger_that_comes_to_name_a_lost_bookie_is_marked_later",
            f"{_AUDITOR}::test_ledgers_that_changed_since_they_were_read_are_read_again",
        ),
    ),
    Mutant(
        "what others have announced is not heeded",
        "a ledger that was moved by another's mark is never marked for the bookie that it was moved to",
        "return remembered.complete and fresh and await self._queue.announced() == remembered.announced",
        "return remembered.complete and fresh",
        (f"{_AUDITOR}::test_marks_of_others_that_are_announced_make_all_be_read_again",),
    ),
    Mutant(
        "marks of a bookie that is back are dropped whatever they were for",
        "what a check has missed on it, or what it lost, is never copied",
        "if b in returned and loss.reason == LossReason.LOST}",
        "if b in returned}",
        (
            f"{_AUDITOR}::test_a_bookie_that_comes_back_as_it_was_is_not_lost",
            f"{_AUDITOR}::test_a_bookie_in_limbo_is_lost_though_it_is_there",
        ),
    ),
    Mutant(
        "marking from memory goes on though it was switched off",
        "somebody who works on many bookies has them copied all the same",
        "batched(sorted(of), self._settings.audit_reads_at_once):  # between them marking may be disabled",
        "(sorted(of),):",
        (f"{_AUDITOR}::test_switched_off_while_it_marks_from_memory_it_ends_as_well",),
    ),
    Mutant(
        "a ledger that has a mark is not looked at before that has gone",
        "a ledger that is stuck on one bookie loses another one, and nobody copies what that had",
        "also=recorded if due else self._some(recorded))",
        "also=recorded if due else ())",
        (f"{_AUDITOR}::test_a_marked_ledger_that_comes_to_name_another_lost_bookie_is_marked_for_that_one_too",),
    ),
    Mutant(
        "what is moved by hand is said in the first session alone",
        "the auditor relies for a day on what it has learnt of ledgers that were moved since",
        "        if state is SessionState.EXPIRED:\n            self._ended.set()\n",
        "        if state is None:\n            self._ended.set()\n",
        (f"{_AUDITOR}::test_copies_that_are_moved_by_hand_make_all_be_read_again",),
    ),
    Mutant(
        "one of two losses is acted on as soon as it has settled itself",
        "a bookie that was away for a moment with another one that is lost is copied",
        "            found[bookie] = min(alone, max(own, others[0]))\n",
        "            found[bookie] = min(alone, own)\n",
        (f"{_DECISIONS}::test_one_waits_for_the_delay_and_two_only_settle",),
    ),
    Mutant(
        "a bookie that is lost again is lost since then",
        "the oldest mark is told to be young",
        "        since_ms=min(old.since_ms, new.since_ms),\n",
        "        since_ms=max(old.since_ms, new.since_ms),\n",
        (f"{_MARKS}::test_a_bookie_that_was_lost_twice",),
    ),
    Mutant(
        "a lock outlives its holder",
        "a ledger on which a worker died is never copied again",
        "        node = Create(path, _RECORD.encode(fields), ephemeral=True)\n",
        "        node = Create(path, _RECORD.encode(fields))\n",
        (
            "tests/unit/metadata/replication/test_locks.py::test_a_lock_goes_with_its_session_and_a_successors_is_never_removed",
        ),
    ),
    Mutant(
        "marks that could not be made together count as made",
        "a ledger that had a mark, or whose marks have no node above them yet, is never copied",
        "        return isinstance(made, Done)\n",
        "        return True\n",
        (f"{_MARKS}::test_of_marks_that_are_not_all_new_none_is_made",),
    ),
    Mutant(
        "an id that a client still holds is settled by a listing",
        "a ledger that is created behind one with a higher id is not marked for up to a day",
        "        for ledger_id in ids.held:\n",
        "        for ledger_id in ():\n",
        (f"{_AUDITOR}::test_a_ledger_that_is_created_behind_one_with_a_higher_id_is_marked",),
    ),
    Mutant(
        "an id that a client still holds is forgotten when it has no ledger yet",
        "a ledger that is created two looks later is not marked for up to a day",
        "        if ledger_id not in self._held:\n",
        "        if True:\n",
        (f"{_AUDITOR}::test_a_ledger_that_is_created_behind_one_with_a_higher_id_is_marked",),
    ),
    Mutant(
        "the next listing begins one id too late",
        "a ledger that is the last one of its partition is never marked",
        "async for ledger_ids in self._catalog.partitions(remembered.settled_to + 1, skipped=self._skipped):",
        "async for ledger_ids in self._catalog.partitions(remembered.settled_to + 2, skipped=self._skipped):",
        (f"{_AUDITOR}::test_a_ledger_that_is_the_last_of_its_partition_is_marked",),
    ),
    Mutant(
        "a ledger that may not be read ends the audit",
        "one ledger whose metadata ZooKeeper refuses stops all marking",
        "UNREADABLE: Final = (CorruptDataError, UnsupportedVersionError, UnauthorizedError)",
        "UNREADABLE: Final = (CorruptDataError, UnsupportedVersionError)",
        (
            "tests/unit/replication/worker/test_worker_edges.py::test_a_mark_that_the_worker_may_not_read_holds_up_no_other",
        ),
    ),
    Mutant(
        "a ledger that could not be read is not tried again",
        "a ledger that the auditor may read again is not marked for up to a day",
        "                    self._remembered.unread(ledger_id)\n",
        "",
        (f"{_AUDITOR}::test_a_ledger_that_the_auditor_may_not_read_holds_up_no_other_and_is_marked_once_it_may",),
    ),
    Mutant(
        "a bookie whose registration is gone counts as back",
        "marks of a bookie that lost its data are dropped while it moves or stops",
        "return Presence.ABSENT  # it is in neither place, or has left meanwhile\n",
        "return Presence.HERE\n",
        (f"{_AUDITOR}::test_a_bookie_in_limbo_that_moves_or_leaves_while_it_is_looked_at_has_not_come_back",),
    ),
    Mutant(
        "a draining that may not be read is an error",
        "a bookie whose drain node it may not read ends, and ends at each start",
        "        except UnauthorizedError as error:\n            return Drain(",
        "        except ZeroDivisionError as error:\n            return Drain(",
        (
            "tests/unit/bookie/test_refused_metadata.py"
            "::test_a_draining_that_the_bookie_may_not_read_ends_neither_its_process_nor_its_start",
        ),
    ),
    Mutant(
        "a mark's value is taken for a node's name whatever it is",
        "one mark with an empty value ends the work of all workers",
        '    return name if name.isascii() and name.isalnum() else ""\n',
        "    return name\n",
        (f"{_MARKS}::test_a_mark_whose_value_names_no_node_can_not_be_read",),
    ),
    Mutant(
        "a bookie's return ends the marks of all of its ledgers",
        "a bookie misses entries that were acknowledged while it was away, until a weekly check samples them",
        "act = self._queue.end_absence if closed else self._queue.return_bookies",
        "act = self._queue.end_absence",
        (f"{_AUDITOR}::test_what_was_not_closed_when_a_bookie_was_lost_is_verified_when_it_returns",),
    ),
    Mutant(
        "a ledger whose metadata did not change was closed",
        "what an open ledger got while a bookie was away is missing there after its return",
        "return metadata.state is LedgerState.CLOSED and await",
        "return await",
        (f"{_AUDITOR}::test_what_was_not_closed_when_a_bookie_was_lost_is_verified_when_it_returns",),
    ),
    Mutant(
        "a writer that closes short marks nothing",
        "a bookie that was away for a moment misses acknowledged entries until a weekly check samples them",
        "            if short:\n                await self._record(ledger_id, short)\n            silent",
        "            silent",
        (
            "tests/unit/replication/auditor/test_returned_bookies.py"
            "::test_a_writer_that_closes_without_a_bookie_marks_it_and_workers_bring_what_it_missed",
        ),
    ),
    Mutant(
        "a closed ledger is not marked for bookies that have not answered",
        "a bookie that is slow, and then fails, misses acknowledged entries until a weekly check samples them",
        "{*failed(), *silent}",
        "{*failed()}",
        ("tests/unit/client/write/test_closing_lingers.py::test_a_bookie_that_does_not_answer_is_waited_for_so_long",),
    ),
    Mutant(
        "a closed ledger is not marked for bookies that fail behind its end",
        "a bookie that fails as a ledger is closed misses acknowledged entries until a weekly check samples them",
        "{*failed(), *silent}",
        "{*silent}",
        (
            "tests/unit/client/write/test_closing_lingers.py"
            "::test_a_bookie_that_fails_behind_the_end_of_the_ledger_is_recorded",
        ),
    ),
    Mutant(
        "a closed ledger is marked for bookies that have answered late",
        "each close of a ledger writes a record",
        " if channel.has_unanswered_appends(ledger_id)]",
        "]",
        (
            "tests/unit/client/write/test_closing_lingers.py"
            "::test_a_bookie_that_is_slower_than_the_ack_quorum_has_everything_when_the_client_is_closed",
        ),
    ),
    Mutant(
        "a closed ledger is recorded for the bookies of its last fragment alone",
        "a bookie that its writer left misses acknowledged entries until a weekly check samples them",
        "fragment in metadata.fragments for name in fragment.bookies}\nshort",
        "fragment in metadata.fragments[-1:] for name in fragment.bookies}\nshort",
        (f"{_LINGERS}::test_a_bookie_of_a_former_fragment_that_has_not_answered_is_recorded",),
    ),
    Mutant(
        "a cancelled close records nothing",
        "a log that is closed right behind a roll leaves a slow bookie without entries",
        "if not abandoned:\nself._let_go()\nawait asyncio.wait([self._following])",
        "if not abandoned:\n    self._let_go()\nawait self._following",
        (
            f"{_LINGERS}::test_a_call_that_is_cancelled_ends_no_look_for_what_bookies_miss",
            f"{_LINGERS}::test_a_log_that_is_closed_right_behind_a_roll_records_what_bookies_miss_of_both_ledgers",
        ),
    ),
    Mutant(
        "a second close returns before the first",
        "what bookies miss is not recorded when the client ends behind it",
        "                if self._following is not None:\n                    await asyncio.wait([self._following])\n",
        "",
        (f"{_LINGERS}::test_the_second_of_two_calls_returns_when_what_bookies_miss_is_recorded",),
    ),
    Mutant(
        "a recovery forgets bookies that are slower than the ack quorum",
        "what it wrote back is missing there until a weekly check samples it",
        "            stragglers.follow(closed.metadata, lambda: written.under_replicated, recorded=failed)\n",
        "",
        (f"{_LINGERS}::test_a_recovery_records_what_a_bookie_misses_that_is_slower_than_the_ack_quorum",),
    ),
    Mutant(
        "a client ends before what bookies miss is recorded",
        "a command that recovers a ledger leaves a slow bookie without entries",
        "            await self._stragglers.close()",
        "            pass",
        (f"{_LINGERS}::test_a_client_that_is_closed_meanwhile_records_what_bookies_miss",),
    ),
    Mutant(
        "a closing write that nobody waited for to its end is not followed",
        "a timeout around `close` or `recover_ledger` leaves a ledger short, and nobody knows",
        "self._start(self._follow_if_closed(ledger_id, failed, set(recorded)), ledger_id)",
        "pass",
        (f"{_WHENEVER}[close-the call is cancelled]",),
    ),
    Mutant(
        "a client ends before the write that closes a ledger",
        "a ledger is closed, and what bookies miss of it is recorded nowhere",
        "self._under_way.add(write)",
        "pass",
        (f"{_WHENEVER}[close-the client is closed]",),
    ),
    Mutant(
        "a record ends with the call that made it",
        "a timeout around `recover_ledger` leaves a bookie without entries, and nobody knows",
        "await asyncio.wait([self._start(self._record(ledger_id, bookie_ids), ledger_id)])",
        "await self._record(ledger_id, bookie_ids)",
        (f"{_WHENEVER}[recovery-the call is cancelled]",),
    ),
    Mutant(
        "a cancelled closing write is forgotten",
        "a second close says that nothing was written, where the first has closed the ledger",
        "self._end_in_doubt = True  # the write may be on its way",
        "pass",
        (
            "tests/unit/client/write/test_appends_in_doubt.py"
            "::test_a_close_that_was_cancelled_in_its_write_leaves_the_next_one_in_doubt",
        ),
    ),
    Mutant(
        "what a silent bookie has is called unreadable",
        "an operator accepts the loss of entries that a live bookie has",
        "silent[name] = error  # another one may do",
        "pass",
        ("tests/unit/replication/auditor/test_held_entries.py::test_what_a_silent_bookie_may_have_is_in_doubt",),
    ),
    Mutant(
        "a slow bookie is waited for in doubled steps alone",
        "closing takes up to twice as long as the setting says, and a client ends before",
        "min(pause_s, until - now())",
        "pause_s",
        (f"{_LINGERS}::test_a_client_that_is_closed_meanwhile_records_what_bookies_miss",),
    ),
    Mutant(
        "a bookie is trusted with what it has not synced",
        "its record is removed, and then it loses power",
        " or not await self._syncs(metadata, copy)",
        "",
        (f"{_IN_PLACE}::test_a_bookie_that_returns_what_it_has_not_synced_stays_recorded",),
    ),
    Mutant(
        "a bookie that restarted is trusted with what it returned before",
        "it has lost that, and its record is removed",
        "return channel.up and channel.generation == generation",
        "return True",
        (f"{_IN_PLACE}::test_a_bookie_that_restarts_behind_what_it_returned_is_not_taken_for_one_that_has_it",),
    ),
    Mutant(
        "the look of a worker has no time to notice the end of its session",
        "an operator is asked to report a defect that there is not",
        "timeout=2 * self._settings.repair_pause_min_s",
        "timeout=self._settings.repair_pause_min_s",
        (
            "tests/unit/replication/worker/test_worker_edges.py"
            "::test_a_session_that_ends_with_a_failure_of_the_look_is_no_defect",
        ),
    ),
    Mutant(
        "a recovery that closes short marks nothing",
        "a bookie that was away for a moment misses acknowledged entries until a weekly check samples them",
        "            if failed:\n                await stragglers.record(self._ledger_id, failed)\n",
        "",
        ("tests/unit/recovery/test_recovery.py::test_a_bookie_that_nothing_could_be_written_back_to_is_marked",),
    ),
    Mutant(
        "a bookie that returned keeps its place unverified",
        "what it missed while it was away is never copied",
        "            if missing(copy.share, following, held.examined_to, held.intact):\n                return False\n"
        "            await self._rate",
        "            await self._rate",
        (
            "tests/unit/replication/auditor/test_returned_bookies.py"
            "::test_a_writer_that_closes_without_a_bookie_marks_it_and_workers_bring_what_it_missed",
        ),
    ),
    Mutant(
        "of two places that have nowhere to go one is stuck",
        "a bookie that an open ledger still names is taken off the mark",
        "CopyBlocker.NO_TARGET, first, first, 0, ()) for i in leave]",
        "CopyBlocker.NO_TARGET, first, first, 0, ()) for i in leave[:1]]",
        (
            "tests/unit/protocol/repair/test_rereplication.py"
            "::test_an_open_ledger_is_left_to_its_writer_if_nobody_could_take_the_place_of_the_lost_ones",
        ),
    ),
    Mutant(
        "bookies that nobody knows are nobody's",
        "a ledger that names a decommissioned bookie never gets its copies back",
        "        self.named(self._scan.named)\n",
        "",
        (f"{_AUDITOR}::test_a_bookie_that_ledgers_name_and_nobody_knows_is_lost",),
    ),
    Mutant(
        "the periodic checks keep the bookies' names to themselves",
        "while no bookie is lost, a ledger that names a decommissioned one never gets its copies back",
        "            self._named({bookie for fragment in metadata.fragments for bookie in fragment.bookies})\n",
        "",
        (
            "tests/unit/replication/auditor/test_periodic_checks.py::test_it_tells_the_auditor_which_bookies_ledgers_name",
        ),
    ),
    Mutant(
        "a mark that stays makes every absence urgent",
        "a bookie that restarts for 31 seconds is copied elsewhere as a whole",
        "if stalled_ms >= _STALLED_AFTER_DELAYS * self._settings.lost_bookie_recovery_delay_s * 1000:",
        "if False:",
        (f"{_AUDITOR}::test_marks_that_stay_leave_others_the_time_to_restart",),
    ),
    Mutant(
        "a bookie is worked off only when all are",
        "the mark of one lost bookie makes others urgent, of whom nothing is missed",
        "elif missed is not None:",
        "elif missed == frozenset():",
        (f"{_AUDITOR}::test_marks_that_stay_leave_others_the_time_to_restart",),
    ),
    Mutant(
        "slow repair counts as none",
        "two lost copies are waited for, five minutes each",
        "if progress != self._progress or now_ms < self._progress_ms:",
        "if now_ms < self._progress_ms:",
        (f"{_AUDITOR}::test_while_marks_go_a_second_loss_is_urgent",),
    ),
    Mutant(
        "records of a storage that is gone stay when its bookie is back",
        "where no other bookie can take its place, the ledgers stay under-replicated for good",
        "some = as_it_was or list(back)",
        "some = as_it_was\nif not some:\n    return",
        (f"{_AUDITOR}::test_a_lost_bookie_that_got_back_all_it_had_on_another_storage_is_verified",),
    ),
    Mutant(
        "a bookie that has copied back what it had leaves to workers what the auditor has looked at",
        "workers read all entries of a rebuilt bookie, which knows by its index that they are there",
        "(LossReason.LOST, LossReason.REBUILDING, LossReason.RETURNED)",
        "(LossReason.LOST, LossReason.REBUILDING)",
        ("tests/unit/replication/test_integrity.py::test_the_mark_of_a_ledger_that_is_whole_again_goes[returned]",),
    ),
    Mutant(
        "what a bookie has missed begins again with the time that it may take",
        "ledgers that were written without it while most were absent miss a copy until a weekly check samples them",
        "since_ms=now_ms, began_ms=absence.missing_since_ms)",
        "since_ms=now_ms)",
        (
            f"{_AUDITOR}::test_what_was_written_while_most_were_absent_is_verified_when_its_bookie_returns",
            f"{_DECISIONS}::test_when_most_are_back_the_clocks_of_the_others_begin_again",
        ),
    ),
    Mutant(
        "the stored record doesn't say when an absence began",
        "as above, behind a restart of the auditor",
        '**({} if absence.began_ms is None else {"began_ms": absence.began_ms}),',
        "",
        (f"{_AUDITOR}::test_what_was_written_while_most_were_absent_is_verified_when_its_bookie_returns",),
    ),
    Mutant(
        "a candidate that is refused once stands no more, and keeps its place",
        "the cluster has no auditor until that process is restarted",
        'log.debug("the election goes on later: %s", error)',
        'if not error.retriable:\n    return\nlog.debug("the election goes on later: %s", error)',
        (f"{_ELECTION}::test_a_candidate_that_may_not_read_the_line_for_a_while_keeps_nobody_from_leading",),
    ),
    Mutant(
        "a place in line that can't be removed now is forgotten",
        "as above",
        "isinstance(left, Gone) or isinstance(left.error, ClientClosedError)",
        "isinstance(left, Gone) or not left.error.retriable",
        (f"{_ELECTION}::test_a_candidate_that_may_not_read_the_line_for_a_while_keeps_nobody_from_leading",),
    ),
    Mutant(
        "a bookie that returns stays in the record of a ledger that can't be read at that moment",
        "where no other bookie can take its place, the ledger stays under-replicated for good",
        "as_it_was) and await self._closed_before(ledger_id, since_ms)",
        "as_it_was) and await self._catalog.closed_before(ledger_id, since_ms)",
        (f"{_AUDITOR}::test_a_bookie_that_returns_is_verified_where_the_ledger_cannot_be_read_at_that_moment",),
    ),
    Mutant(
        "a bookie whose cookie was removed is not looked at any more",
        "when it dies, its ledgers miss a copy until the next check",
        "named=self._named | record.bookies,",
        "named=self._named,",
        (f"{_AUDITOR}::test_one_whose_cookie_is_removed_and_that_goes_then_is_lost",),
    ),
    Mutant(
        "a registered bookie without a cookie is not looked at",
        "as above, where the auditor's record was damaged or is new",
        "filter(paths.is_bookie_id, {*cookies, *places, *named})",
        "filter(paths.is_bookie_id, {*cookies, *named})",
        (f"{_AUDITOR}::test_a_registered_one_that_no_record_knows_is_lost_when_it_goes",),
    ),
    Mutant(
        "whatever lies among the cookies is a bookie",
        "a node of somebody else's ends each term of the auditor, and nothing is re-replicated",
        "bookies = sorted(filter(paths.is_bookie_id, {*cookies, *places, *named}))",
        "bookies = sorted({*cookies, *places, *named} - {'readonly'})",
        ("tests/unit/metadata/bookies/test_membership.py::test_who_is_looked_at",),
    ),
    Mutant(
        "a bookie whose cookie was removed is looked at for ever",
        "the audit record grows by each bookie that was ever decommissioned",
        "return record if missed is None else without_gone(record, seen, but=missed)",
        "return record",
        (f"{_AUDITOR}::test_one_whose_cookie_is_removed_and_that_goes_then_is_lost",),
    ),
    Mutant(
        "a bookie whose cookie was removed is forgotten while records name it",
        "a later scan finds it again, as one that never had a cookie, which may suspend re-replication for ever",
        "if absence.worked_off and bookie not in but and bookie in seen and _is_gone(seen[bookie])",
        "if absence.worked_off and bookie in seen and _is_gone(seen[bookie])",
        (f"{_AUDITOR}::test_bookies_whose_cookies_were_removed_are_remembered_while_records_name_them",),
    ),
    Mutant(
        "a registered bookie is forgotten with its cookie",
        "when it dies, its ledgers miss a copy until the next check",
        "if absence.worked_off and bookie not in but and bookie in seen and _is_gone(seen[bookie])",
        "if absence.worked_off and bookie not in but and bookie in seen and not seen[bookie].has_cookie",
        (f"{_DECISIONS}::test_only_what_is_gone_with_its_cookie_is_forgotten",),
    ),
    Mutant(
        "bookies whose cookies were removed count among the half that is absent",
        "a cluster that has shrunk by more than half heals nothing any more",
        "removed = {bookie for bookie, is_ in seen.items() if instances[bookie] and _is_gone(is_)}",
        "removed: set[str] = set()",
        (f"{_DECISIONS}::test_bookies_without_a_cookie_count_among_the_half_that_is_absent_unless_they_had_one",),
    ),
    Mutant(
        "bookies that never had a cookie don't count among the half that is absent",
        "a cluster that is being restored copies what its bookies have, before they are back",
        "removed = {bookie for bookie, is_ in seen.items() if instances[bookie] and _is_gone(is_)}",
        "removed = {bookie for bookie, is_ in seen.items() if _is_gone(is_)}",
        (f"{_DECISIONS}::test_bookies_without_a_cookie_count_among_the_half_that_is_absent_unless_they_had_one",),
    ),
    Mutant(
        "a bookie that was decommissioned makes another one's absence urgent for minutes",
        "after each decommissioning, a restart of half a minute makes a whole bookie be copied",
        "(settle_ms if bookie in removed else max(settle_ms, delay_ms))",
        "max(settle_ms, delay_ms)",
        (f"{_DECISIONS}::test_a_bookie_whose_cookie_was_removed_is_lost_when_it_goes",),
    ),
]
