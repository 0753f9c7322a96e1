"""Defects in becoming a log's writer, in rolling, and in what is told meanwhile."""

from __future__ import annotations

from tests.mutants import Mutant

_BETWEEN = "tests/unit/log/test_between_steps.py"
_DECISIONS = "tests/unit/protocol/log/test_log_opening.py"
_RECORDS = "tests/unit/protocol/wire/test_records.py"
_ROLLING = "tests/unit/log/test_rolling.py"
_TAKEOVERS = "tests/unit/log/test_takeovers.py"

_GIVEN_UP = "tests/unit/log/test_given_up.py"
_ROOM = "tests/unit/log/test_writer_ends.py"
_WRITER_STATES = "tests/unit/protocol/ledger/test_writer_state.py"
_LOG_STATES = "tests/unit/protocol/log/test_log_writer_state.py"
_RARE = "tests/unit/log/test_rare_log_steps.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "the ledger of a roll stays when its writer has ended",
        "a ledger that no log names stays open until the auditor deletes orphans",
        "if not writing or self.appends.error is None:",
        "if self.appends.error is None:",
        (f"{_ROOM}::test_the_ledger_of_a_roll_whose_writer_ends_before_the_list_is_written_goes",),
    ),
    Mutant(
        "a log that was made in vain stays",
        "a later call finds a log of sizes that nobody can open",
        "            if self._uid and self._made:\n                await self._unmake()\n",
        "",
        (f"{_ROOM}::test_a_log_that_can_not_be_opened_is_not_made",),
    ),
    Mutant(
        "a log is removed though another client has used it",
        "a client that failed to open a log deletes it with what others have appended",
        'nodes = Delete(f"{own}/consumers", 0), Delete(own, 0), Delete(path, 0)',
        'nodes = Delete(f"{own}/consumers"), Delete(own), Delete(path)',
        (f"{_ROOM}::test_a_log_that_another_client_uses_is_not_removed_again",),
    ),
    Mutant(
        "gaps of a log that touch stay two",
        "after two accepted losses in a row no client can open the log",
        "    if gaps and gaps[-1][1] >= begin:\n",
        "    if False:\n",
        (f"{_DECISIONS}::test_two_losses_in_a_row_leave_one_gap",),
    ),
    Mutant(
        "a gap between truncated segments of a log is forgotten",
        "after an accepted loss below what was truncated no client can open the log",
        "    first = max(log_list.first_position, begin)\n",
        "    first = begin = max(log_list.first_position, begin)\n",
        (f"{_DECISIONS}::test_a_loss_below_what_is_truncated_leaves_the_ledger_behind_it",),
    ),
    Mutant(
        "the gap before the beginning of a log is forgotten",
        "a consumer that has read everything gets an error about entries that it never saw",
        "gaps = tuple(gap for gap in self.gaps if gap[1] >= before)",
        "gaps = tuple(gap for gap in self.gaps if gap[1] > before)",
        (f"{_GIVEN_UP}::test_a_consumer_that_has_read_everything_goes_on_behind_the_gap",),
    ),
    Mutant(
        "an opener of a log doesn't look for room in its list",
        "a working writer is fenced by a client that can't take its place",
        "        self._logs.check_fits(self._name, longest_opened(with_producer, now_ms))\n",
        "",
        (f"{_ROOM}::test_a_full_list_has_room_for_the_next_writer",),
    ),
    Mutant(
        "a roll leaves no room in the list for the next writer",
        "when the writer of a log with a full list dies, no other client can go on",
        "        self._logs.check_fits(self._name, longest_opened(rolled, self._clock()))\n",
        "        self._logs.check_fits(self._name, rolled)\n",
        (f"{_ROOM}::test_a_full_list_has_room_for_the_next_writer",),
    ),
    Mutant(
        "an opener of a log underestimates the list that it will store",
        "a working writer is fenced by a client that finds no room for its own ledger then",
        "        ends[segment.ledger_id] = SegmentEnd(entries - lost, LENGTH_MAX, TIME_MAX_MS, lost)\n",
        "        ends[segment.ledger_id] = SegmentEnd(0, 0, 0)\n",
        (f"{_DECISIONS}::test_an_opener_never_stores_a_longer_list_than_was_foreseen",),
    ),
    Mutant(
        "a held ledger tells what it has confirmed",
        "a tail reads entries behind a hole that the next writer finds",
        "        if state is _HELD or state is _HELD_CHANGING:\n",
        "        if False:\n",
        (f"{_ROLLING}::test_a_held_ledger_tells_nothing_and_is_dropped_if_the_one_before_ends_short",),
    ),
    Mutant(
        "a change of the ensemble releases a held ledger",
        "a tail reads entries behind a hole that the next writer finds",
        "    (WriterState.HELD, Event.CHANGE): WriterState.HELD_CHANGING,\n",
        "    (WriterState.HELD, Event.CHANGE): WriterState.CHANGING,\n",
        (f"{_WRITER_STATES}::test_a_held_ledger_confirms_nothing_before_it_is_released_and_is_released_once",),
    ),
    Mutant(
        "a log rolls again before its former ledger is closed",
        "three ledgers are open, and the next writer fences two of them",
        "    (_S.HOLDING, _E.RELEASE): _S.ENDING_FORMER,\n",
        "    (_S.HOLDING, _E.RELEASE): _S.SERVING,\n",
        (f"{_LOG_STATES}::test_a_third_ledger_is_never_open",),
    ),
    Mutant(
        "a log that is closed in the middle of a roll forgets its former ledger",
        "the log has no writer, and an open ledger",
        "    (_S.CLOSING_HOLDING, _E.RELEASE): _S.CLOSING_FORMER,\n",
        "    (_S.CLOSING_HOLDING, _E.RELEASE): _S.CLOSING,\n",
        (f"{_LOG_STATES}::test_a_third_ledger_is_never_open",),
    ),
    Mutant(
        "a writer of a log that is closed after a failure takes appends",
        "appends are never answered",
        "    (_S.FAILED, _E.CLOSE): _S.CLOSING_FAILED,\n",
        "    (_S.FAILED, _E.CLOSE): _S.CLOSING,\n",
        (f"{_LOG_STATES}::test_a_writer_that_takes_no_appends_never_takes_any_again",),
    ),
    Mutant(
        "appends enter while their log rolls",
        "an append goes to a ledger behind the position at which the next one begins",
        "        return self in _TAKES_APPENDS and self not in _SWITCHING\n",
        "        return self in _TAKES_APPENDS\n",
        (f"{_LOG_STATES}::test_what_a_state_says_agrees",),
    ),
    Mutant(
        "a ledger that begins behind a hole is kept",
        "the log has a hole, and positions that name nothing",
        "        if following is not None and segment.first_position > following and not lost:\n",
        "        if False:\n",
        (f"{_DECISIONS}::test_what_survives_of_two_ledgers_is_a_prefix",),
    ),
    Mutant(
        "a log goes on where a ledger ends of which a part was given up",
        "positions that readers were told are used again",
        "            following = segment.first_position + LEDGER_ENTRIES_MAX\n",
        "            pass\n",
        (f"{_DECISIONS}::test_behind_an_accepted_loss_no_position_is_used_again",),
    ),
    Mutant(
        "a log goes back to its former ledger after a write that may have been made",
        "entries get positions that the next ledger's have as well",
        "                    outcome = escalate_unknown(outcome, doubt)\n",
        "                    pass\n",
        (f"{_ROLLING}::test_a_roll_in_doubt_appends_nothing_until_it_is_known",),
    ),
    Mutant(
        "a refused roll is taken for done",
        "a writer that was taken over goes on, in a ledger that is no part of the log",
        "    ListState.OTHERS: OpeningStep.FENCED,\n",
        "    ListState.OTHERS: OpeningStep.SERVE,\n",
        (f"{_DECISIONS}::test_nobody_serves_before_the_list_names_him_and_his_ledger",),
    ),
    Mutant(
        "times go back with the next writer's clock",
        "a log's times fall, and searching them finds anything",
        "    begun_ms = max(now_ms, log_list.last_ms)\n",
        "    begun_ms = now_ms\n",
        (f"{_DECISIONS}::test_times_never_fall_from_one_ledger_to_the_next",),
    ),
    Mutant(
        "the parts of a large batch have times of their own",
        "in a striped ledger, times fall from one entry to the next",
        "chunk.payloads, chunk.first_id, chunk.stride, self.lac.sent, chunk.lengths, stamp",
        "chunk.payloads, chunk.first_id, chunk.stride, self.lac.sent, chunk.lengths, self._codec.stamp()",
        (f"{_ROLLING}::test_times_never_fall_in_a_striped_ledger",),
    ),
    Mutant(
        "a log that is closed leaves its empty ledger",
        "readers wait for a ledger that nobody will ever write to",
        "if not log_list.segments or log_list.segments[-1].ledger_id != ledger_id or log_list.segments[-1].entries:\n",
        "if True:\n",
        (f"{_DECISIONS}::test_whoever_closes_the_log_leaves_no_empty_ledger",),
    ),
    Mutant(
        "a ledger that was made for a deleted log gets into another one of its name",
        "whoever looks for ledgers of logs that are gone deletes it, with all that was appended",
        """        if self._uid not in ("", log_list.uid):
""",
        "        if False:\n",
        (f"{_BETWEEN}::test_a_ledger_that_was_made_for_a_deleted_log_gets_into_no_other",),
    ),
    Mutant(
        "a held ledger counts as busy though all of it is on its ack quorum",
        "a writer fails, as if bookies were too slow, while the ledger before gets on",
        """        if self.replication.state.held:
            return self.next_id > self.replication.confirmed + 1
""",
        "",
        (f"{_BETWEEN}::test_a_held_ledger_whose_entries_are_all_on_their_quorums_does_not_stall",),
    ),
    Mutant(
        "a next ledger is used though it has failed",
        "appends are never answered",
        "        if (error := following.replication.error) is not None:  # it has failed already",
        "        if False:  # it has failed already",
        (f"{_BETWEEN}::test_a_next_ledger_that_has_failed_before_it_is_used_ends_the_writer",),
    ),
    Mutant(
        "the times of what was truncated are forgotten",
        "with the next writer's clock, a log's times fall",
        "        begun_ms = max(self._logs.now_ms(), log_list.last_ms)\n",
        "        begun_ms = max(self._logs.now_ms(), ready.last_ms)\n",
        (f"{_BETWEEN}::test_times_do_not_go_back_though_nothing_is_left_of_what_had_them",),
    ),
    Mutant(
        "a flush doesn't wait for the ledger before the present one",
        "what was flushed may still be lost",
        """        if former is not None:
            await former.flush()
""",
        """        if former is None:
            await last.flush()
""",
        (f"{_BETWEEN}::test_a_flush_waits_for_the_former_ledger_though_nothing_follows",),
    ),
    Mutant(
        "a writer that failed while the list was written begins its next ledger",
        "that one's writer is never let go",
        "                    if self.appends.error is not None:  # meanwhile\n",
        "                    if False:  # meanwhile\n",
        (f"{_BETWEEN}::test_a_writer_that_fails_while_the_list_is_written_begins_no_ledger",),
    ),
    Mutant(
        "a log can't be closed again after a call that was cancelled",
        "who tries again hears of a failure, though all is well",
        "if any(replication.error and replication.state is not WriterState.CLOSED for replication in replications):",
        "if any(replication.error for replication in replications):",
        ("tests/unit/log/test_interrupted.py::test_closing",),
    ),
    Mutant(
        "a writer truncates its log before what is no position",
        "nobody can read the log's list any more",
        '        check_position("before", before)\n        await self._roller.truncate(int(before), ',
        "        await self._roller.truncate(before, ",
        ("tests/unit/client/test_bad_arguments.py::test_a_bad_position_of_a_log_is_refused_at_the_call",),
    ),
    Mutant(
        "an administrator truncates a log before what is no position",
        "nobody can read the log's list any more",
        '        check_position("before", before)\n        async with',
        "        async with",
        ("tests/unit/client/test_bad_arguments.py::test_a_bad_position_of_a_log_is_refused_at_the_call",),
    ),
    Mutant(
        "an opening that is cancelled at its end keeps the lease",
        "the log counts as written until the client ends, though nobody writes it",
        "            drop_lease_later(name, opened.log_list.uid, opened.token, parts)\n",
        "",
        ("tests/unit/log/test_interrupted.py::test_opening",),
    ),
    Mutant(
        "an opener leaves no room for the numbers of producers",
        "it fences the writer, and then the list is too long",
        'numbers += "x" * NUMBERS_CHARS_MAX * (segment.stamp == NUMBERED)\n',
        "pass\n",
        (f"{_DECISIONS}::test_an_opener_foresees_the_numbers_of_producers",),
    ),
    Mutant(
        "a client remembers all logs whose writers were fenced",
        "its memory grows with each log",
        "            if len(self._counts) > settings.log_turns_remembered_max:\n",
        "            if False:\n",
        (f"{_RARE}::test_a_client_remembers_the_fencing_of_so_many_logs",),
    ),
    Mutant(
        "a cancelled opener keeps the lease",
        "nobody who doesn't want to fence others can open the log while the client lives",
        "                drop_lease_later(self._name, self._uid, self._token, self._parts)\n",
        "                pass\n",
        (f"{_RARE}::test_an_opening_that_does_not_wait_and_is_cancelled_leaves_no_lease",),
    ),
    Mutant(
        "a writer whose close is cancelled at its end keeps the lease",
        "the log counts as written until the client ends, though nobody writes it: nothing of it is deleted",
        "    except asyncio.CancelledError:\n        drop_lease_later(name, uid, token, parts)\n        raise\n",
        "",
        (f"{_ROOM}::test_a_close_that_is_cancelled_at_any_step_leaves_no_lease",),
    ),
    Mutant(
        "a writer whose request to end its lease was lost keeps it",
        "the log counts as written until the client ends, though nobody writes it: nothing of it is deleted",
        '        log.info("failed to give up the lease of log %s, retrying: %s", name, error)\n'
        "        drop_lease_later(name, uid, token, parts)\n",
        '        log.info("failed to give up the lease of log %s: %s", name, error)\n',
        (f"{_ROOM}::test_a_close_with_trouble_at_any_request_leaves_no_lease",),
    ),
    Mutant(
        "a lease is given up once",
        "a writer that ends while the store is away keeps others out for as long as its client lives",
        "                await self.drop_lease(name, uid, token)\n"
        "            except MetadataUnavailableError:\n"
        "                await asyncio.sleep(pause_s)\n",
        "                await self.drop_lease(name, uid, token)\n",
        (f"{_ROOM}::test_an_abandoned_writer_gives_up_its_lease_when_the_store_is_back",),
    ),
    Mutant(
        "an opening that fails and is cancelled then ends what it undoes",
        "a lease or a log stays that nobody can use",
        "await ended(self._parts.shared.runtime.spawn(self._undo(), ",
        "await (self._parts.shared.runtime.spawn(self._undo(), ",
        (f"{_ROOM}::test_an_opening_that_fails_and_is_cancelled_then_leaves_neither_lease_nor_log",),
    ),
    Mutant(
        "a flush waits for appends that come after it",
        "where some always wait for room, it never returns",
        "        if self._waiting:\n            await asyncio.shield(self._waiting[-1].added)\n",
        "        while self._waiting:\n            await asyncio.shield(self._waiting[-1].added)\n",
        ("tests/unit/log/test_producers.py::test_a_flush_returns_though_others_wait_for_room_all_the_time",),
    ),
    Mutant(
        "another log of the name is taken for the writer's own",
        "a writer whose log was deleted is told of another writer",
        "        if log_list.uid != self.log_list.uid:\n            self._failed(",
        "        if False:\n            self._failed(",
        (f"{_RARE}::test_a_writer_that_was_cut_off_hears_of_another_log_of_its_name",),
    ),
    Mutant(
        "the look for a page, after a write whose outcome is unknown, says that nothing was written",
        "a writer goes on in a ledger behind which the list has the next one: nobody can open the log any more",
        "        except BookKeeperError as error:  # of a read of pages: no write before it can take effect any more\n"
        "            return NotDone(error)\n",
        "        finally:\n            pass\n",
        (f"{_ROLLING}::test_a_roll_in_doubt_that_moves_ledgers_into_a_page_appends_nothing_until_it_is_known",),
    ),
    Mutant(
        "a writer whose cancelled close has written the list takes it for another client's",
        "the client's next opening of the log makes room for a client that isn't there",
        "if log_list.writer != self._token and not (closing and not log_list.writer):",
        "if log_list.writer != self._token:",
        (
            "tests/unit/log/test_writer_ends.py"
            "::test_a_writer_whose_close_is_cancelled_and_repeated_was_overtaken_by_nobody",
        ),
    ),
    Mutant(
        "what isn't a sequence gets into a batch",
        "a raw TypeError in place of a clear one",
        'raise ConfigError(f"entries are a sequence of bytes, not {type(entries).__name__}") from None',
        "raise",
        ("tests/unit/log/test_log_writer.py::test_a_writer_takes_whatever_holds_bytes_and_keeps_a_copy",),
    ),
    Mutant(
        "a writer removes its successor's lease",
        "an opener that would leave the log to a writer fences it",
        "others = () if found.version else (Put(path, lease_value, 0),)",
        "pass",
        (
            "tests/unit/metadata/logs/test_log_lists.py::"
            "test_a_writer_that_gives_up_its_lease_takes_none_from_its_successor",
        ),
    ),
    Mutant(
        "a log that was made in vain is removed without a note",
        "its ledger is kept for good, and reported as that of a list that was lost",
        "await self._logs.unmake(self._name, self._uid, note)",
        "await self._logs.unmake(self._name, self._uid)",
        (f"{_ROOM}::test_of_a_log_that_is_removed_again_nothing_stays_though_its_opener_ends_then",),
    ),
]
