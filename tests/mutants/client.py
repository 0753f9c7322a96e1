"""The client: whose acknowledgements count, what is sent, what is asked again, what an idle writer costs."""

from __future__ import annotations

from typing import Final

from tests.mutants import Mutant

_UNIT: Final = "tests/unit/"
_LACKING: Final = _UNIT + "client/write/test_under_replication.py::"
_COUNTED: Final = _UNIT + "client/write/test_counted_acknowledgements.py::"
_FRAMES: Final = _UNIT + "client/write/test_frame_limits.py::"
_LAC: Final = _UNIT + "client/read/test_last_add_confirmed.py::"
_STATUSES: Final = _UNIT + "client/test_unknown_statuses.py::"
_CONNECTIONS: Final = _UNIT + "client/bookies/test_connections.py::"
_IDLE: Final = _UNIT + "client/write/test_idle_writers.py::"
_WINDOW: Final = _UNIT + "client/write/test_append_window.py::"
_LIFETIME: Final = _UNIT + "client/test_lifetime.py::"
_NAMES: Final = _UNIT + "client/test_names_of_arguments.py::"
_THREADS: Final = _UNIT + "client/test_threads.py::"
_ARGUMENTS: Final = _UNIT + "client/test_bad_arguments.py::"
_OUTCOMES: Final = _UNIT + "client/write/test_appends_in_doubt.py::"
_LAC_REPLY: Final = "tests/unit/protocol/wire/test_lac_reply.py::"
_FORCE: Final = "tests/unit/client/write/test_caller_ids.py"
_BLOCKS: Final = "tests/unit/protocol/wire/test_block_scan.py::"
_SHORTFALL: Final = "tests/unit/protocol/ledger/test_shortfall.py::"
_ITERATION: Final = _UNIT + "client/test_iteration.py::"
_PIPELINE: Final = _UNIT + "client/read/test_range_pipeline.py::"
_RARE = "tests/unit/client/test_rare_client_steps.py"

_RIGHTS: Final = (
    "tests/unit/recovery/test_recovery_answers.py::"
    "test_a_bookie_whose_file_of_rights_lacks_the_client_holds_up_no_recovery_while_others_are_enough"
)
_TOLD_AGAIN: Final = "tests/unit/client/write/test_idle_writers.py::test_what_too_few_bookies_were_told_is_told_again"

_CLOSED: Final = (_LIFETIME + "test_a_call_under_way_says_that_the_client_was_closed_and_not_that_bookies_are_away",)

MUTANTS: list[Mutant] = [
    # --- a client that is closed during a call ----------------------------------------------------------------------
    Mutant(
        "a request is told that its bookie is away as the client is closed",
        "callers try again what can never succeed",
        'self._went_down(ClosedMeanwhileError("the client was',
        'self._went_down(BookieUnavailableError("the client was',
        _CLOSED,
    ),
    Mutant(
        "an error of a closed client looks as if it could pass",
        "callers try again what can never succeed",
        'as if this one were away."""\n\n    retriable = False\n',
        'as if this one were away."""\n',
        _CLOSED,
    ),
    Mutant(
        "a reader takes the end of its client for bookies that are away",
        "callers try again what can never succeed",
        "            if isinstance(error, ClientClosedError):\n                raise error.renewed(",
        "            if False:\n                raise error.renewed(",
        _CLOSED,
    ),
    Mutant(
        "a recovery takes the end of its client for bookies that are away",
        "callers try again what can never succeed",
        "        if isinstance(error, ClientClosedError):\n            raise error\n",
        "",
        _CLOSED,
    ),
    # --- iterators that survive a time-out --------------------------------------------------------------------------
    Mutant(
        "a bookie's refusal ends every recovery",
        "one bookie whose file of rights lacks the client keeps ledgers open, and logs without a writer",
        "            if self._giving_up is not None or self._everywhere is not None:\n                raise error",
        "            if True:\n                raise error",
        (f"{_RIGHTS}[nothing]",),
    ),
    Mutant(
        "a bookie that doesn't let a recovery write ends it",
        "one bookie whose file of rights has the client for reading alone keeps ledgers open",
        "        if self._recovers and isinstance(error, UnauthorizedError):",
        "        if False and isinstance(error, UnauthorizedError):",
        (f"{_RIGHTS}[reads]",),
    ),
    Mutant(
        "a bookie that a recovery can't connect to for want of rights ends it",
        "one bookie whose file of rights lacks the client keeps ledgers open",
        "isinstance(error, UnauthorizedError) and not self._recovers:",
        "isinstance(error, UnauthorizedError):",
        (f"{_RIGHTS}[nothing]",),
    ),
    Mutant(
        "last add confirmed that nobody took is never published again",
        "a short trouble of the network hides acknowledged entries of an idle writer from readers for good",
        "            self.sent = -1\n            self._rests",
        "            self._rests",
        (_TOLD_AGAIN,),
    ),
    Mutant(
        "a sender that asks for another look while it rests starts a second ticker",
        "idle writers that can't publish take all of the processor",
        "        if self._ticker is None and (self._resting or self._active):",
        "        if self._resting or self._active:",
        (_TOLD_AGAIN,),
    ),
    Mutant(
        "the cancellation of a consumer is lost when its iterator is closed",
        "a consumer that was stopped goes on behind its loop, as if it had read everything",
        "                raise  # also if it was closed meanwhile: a caller that is cancelled has not read all\n",
        "                if self._ended is None:\n                    raise\n",
        (_ITERATION + "test_a_consumer_that_is_cancelled_as_its_iterator_is_closed_is_cancelled",),
    ),
    Mutant(
        "each that closes an iterator closes its generator",
        "a consumer ends with a RuntimeError because another task closes its iterator as well",
        "        await ended(self._closing)\n        self._closing.result()\n",
        "        await self._close()\n",
        (_ITERATION + "test_two_close_an_iterator_at_once",),
    ),
    Mutant(
        "a cancelled call ends the step that it awaited",
        "a tail that was interrupted by a time-out ends without an error",
        "    if not task.done():\n        await asyncio.wait((task,))\n",
        "    if not task.done():\n        await task\n",
        (
            _ITERATION + "test_a_cancelled_call_loses_and_repeats_nothing",
            _PIPELINE + "test_a_cancelled_call_leaves_its_range_to_the_next_one",
        ),
    ),
    Mutant(
        "an iterator forgets the error that ended it",
        "a consumer takes an error for the end",
        "            self._ended, self._traceback = error, error.__traceback__\n",
        "            self._ended = StopAsyncIteration()\n",
        (_ITERATION + "test_an_error_stays",),
    ),
    Mutant(
        "a dropped iterator's step goes on",
        "each time-out around a tail leaves long polls and watches behind",
        "        if self._step is not None:\n            cancel_dropped(self._step)\n",
        "        pass\n",
        (_ITERATION + "test_a_tail_that_is_dropped_or_closed_while_it_waits_leaves_nothing_behind",),
    ),
    # --- blocks verified at once -----------------------------------------------------------------------------------
    Mutant(
        "the ids in a block are not looked at",
        "a reader gets other entries than the ones it asked for",
        "if (ids != np.arange(first, first + count)).any():",
        "if ids is None:",
        (_BLOCKS + "test_records_that_belong_elsewhere_are_no_entries_of_the_block",),
    ),
    Mutant(
        "of a block only the last record is verified",
        "damaged entries are returned",
        "right = crc32c(buffer[: edges[-1]], _ONES) == stored[-1]",
        "right = crc32c(buffer[edges[-2] + _BODY_AT : edges[-1]], _ONES) == stored[-1]",
        (_BLOCKS + "test_every_flip_of_a_byte_is_found",),
    ),
    Mutant(
        "a block that is not right stays as it was changed",
        "the loop over its entries finds none of the good ones, and a replica is blamed for damage",
        "    words[head], words[checksum], words[body] = sizes, stored, low_ids\n    if not right:\n        return 0\n",
        "    if not right:\n        return 0\n    words[head], words[checksum], words[body] = sizes, stored, low_ids\n",
        (_BLOCKS + "test_every_flip_of_a_byte_is_found",),
    ),
    Mutant(
        "MACs are not looked at in a block",
        "entries are returned that somebody without the password has written",
        "if self._mac is not None or len(view) < HEADER_BYTES:",
        "if len(view) < HEADER_BYTES:",
        (_BLOCKS + "test_a_ledger_with_macs_has_each_of_them_checked",),
    ),
    # --- threads, loops and processes -------------------------------------------------------------------------------
    Mutant(
        "calls are taken in any event loop",
        "the call raises, and the entry is in the ledger all the same",
        "        if asyncio._get_running_loop() is not self.loop:\n",
        "        if False:\n",
        (_THREADS + "test_every_call_in_another_thread_is_refused_and_does_nothing",),
    ),
    Mutant(
        "a log takes appends of any thread while its own has a batch open",
        "under load, an append that raises is in the log all the same",
        "        if batcher.open_batch is None or this_thread() != batcher.guard.thread:\n"
        "            batcher.guard.check()\n"
        "        if (\n            batcher.next_id >= window.ids_end\n"
        "            or batcher.added_bytes + size > window.bytes_end\n"
        "            or size > batcher.replication.entry_bytes_max\n        ):\n            appends.check(size)\n",
        "        if batcher.open_batch is None:\n            batcher.guard.check()\n"
        "        if (\n            batcher.next_id >= window.ids_end\n"
        "            or batcher.added_bytes + size > window.bytes_end\n"
        "            or size > batcher.replication.entry_bytes_max\n        ):\n            appends.check(size)\n",
        (_THREADS + "test_an_append_in_another_thread_beside_one_of_the_loop_writes_nothing",),
    ),
    Mutant(
        "a forked process may use its parent's client",
        "two processes write to the same connections",
        "        guard.loop, guard.thread = _FORKED, _NO_THREAD\n",
        "        guard.thread = _NO_THREAD\n",
        (_THREADS + "test_every_call_in_a_forked_process_is_refused_and_does_nothing",),
    ),
    Mutant(
        "a process that was forked beside an append may go on appending",
        "two processes write to the same connections",
        "        guard.loop, guard.thread = _FORKED, _NO_THREAD\n",
        "        guard.loop = _FORKED\n",
        (_THREADS + "test_an_append_in_a_process_that_was_forked_beside_one_writes_nothing",),
    ),
    Mutant(
        "a closed event loop is taken for one of another thread",
        "the error sends users of asyncio.run to threads",
        "        if self.loop.is_closed():\n            return _CLOSED\n",
        "",
        (_THREADS + "test_every_call_after_its_event_loop_has_ended_says_so",),
    ),
    Mutant(
        "an iterator is stepped in any thread",
        "a task of the client's loop is made in another one",
        "    async def _first_of_following(self) -> T:\n        if self._guard is not None:\n",
        "    async def _first_of_following(self) -> T:\n        if False:\n",
        (_THREADS + "test_every_call_in_a_second_event_loop_is_refused_and_does_nothing",),
    ),
    Mutant(
        "a thread waits for the event loop that it runs itself",
        "the program hangs",
        "        if this_thread() == self.thread:\n",
        "        if False:\n",
        (_THREADS + "test_threads_append_and_read_by_threadsafe",),
    ),
    Mutant(
        "a thread waits for a loop that has ended",
        "the thread hangs",
        "                        return future.result()\n                    self._guard.loop_for_threads()\n",
        "                        return future.result()\n",
        (_THREADS + "test_a_thread_that_waits_for_a_loop_that_ends_is_released",),
    ),
    Mutant(
        "a thread's call that ends by a time-out of its own is waited for again",
        "the thread hangs",
        "                    if future.done():  # just now, or by a time-out of its own\n"
        "                        return future.result()\n",
        "",
        (_THREADS + "test_an_error_of_time_of_the_call_itself_is_raised",),
    ),
    Mutant(
        "a numbered append is taken in any thread",
        "the call raises, and the number is in the log all the same",
        "        self._appends.batcher.guard.check()\n"
        "        if self._numbered is None:\n            raise ConfigError(\n",
        "        if self._numbered is None:\n            raise ConfigError(\n",
        (_THREADS + "test_every_call_in_another_thread_is_refused_and_does_nothing",),
    ),
    Mutant(
        "an iterator of an administrator can be stepped in any thread",
        "a task of the client's loop is made in another one",
        '        found = Stepwise(self._segments(name), self._runtime, name=f"ledgers of log {name}")\n'
        "        return ResumableIterator(found, alone, self._guard)\n",
        '        found = Stepwise(self._segments(name), self._runtime, name=f"ledgers of log {name}")\n'
        "        return ResumableIterator(found, alone)\n",
        (_THREADS + "test_every_call_in_a_second_event_loop_is_refused_and_does_nothing",),
    ),
    Mutant(
        "a wrong name of a setting is pydantic's to refuse",
        "a typing error is refused without the name that was meant",
        "        if unknown := values.keys() - cls.model_fields.keys():\n",
        "        if unknown := set[str]():\n",
        (_NAMES + "test_a_wrong_name_of_a_setting_of_an_administrator_is_refused_at_once",),
    ),
    Mutant(
        "an administrator's call is taken in any thread",
        "a drain is begun though the call raises",
        "        self._guard.check()\n        await self._drain(bookie_id).begin()\n",
        "        await self._drain(bookie_id).begin()\n",
        (_THREADS + "test_every_call_in_a_second_event_loop_is_refused_and_does_nothing",),
    ),
    # --- what counts --------------------------------------------------------------------------------------------------
    Mutant(
        "what was done during a change stays done though its bookies are replaced next",
        "an entry is acknowledged with one living copy",
        """            elif batch.done:
                undone.append(batch)
""",
        "",
        (_COUNTED + "test_what_was_done_during_a_change_is_pending_again_when_its_bookies_are_replaced_too",),
    ),
    Mutant(
        "a replaced bookie's late answer counts",
        "an entry is acknowledged that the bookies in the metadata don't have",
        "            if batch not in released:\n                self.acknowledged()\n                batch.owner",
        "            if True:\n                self.acknowledged()\n                batch.owner",
        (_COUNTED + "test_a_late_answer_of_a_bookie_that_was_replaced_makes_up_no_quorum",),
    ),
    Mutant(
        "the lowest last add confirmed is taken",
        "acknowledged entries stay invisible",
        "                self._snapshot.advance(answer)\n",
        "                if len(answered) == 1 or answer.entry_id < self._snapshot.confirmed:\n"
        "                    self._snapshot.confirmed = answer.entry_id\n",
        (_LAC + "test_the_highest_answer_counts_once_the_ack_quorums_are_represented",),
    ),
    Mutant(
        "one bookie more is asked for last add confirmed than is needed",
        "a ledger can't be opened while one of its bookies is away",
        "if covered(answered, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum):",
        "if covered(answered, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum - 1):",
        (_LAC + "test_the_highest_answer_counts_once_the_ack_quorums_are_represented",),
    ),
    Mutant(
        "a last add confirmed is believed without its digest",
        "readers see entries that were never acknowledged",
        """            codec.check(reply.body, header.offset, header.end)
            confirmed =""",
        """            confirmed =""",
        (_LAC + "test_a_damaged_last_add_confirmed_proves_nothing",),
    ),
    Mutant(
        "a bookie that can't tell speaks for its ack quorums",
        "a reader takes a ledger for shorter than what was acknowledged",
        "    if parsed.flaw is not None:\n",
        "    if False:\n",
        (_LAC_REPLY + "test_a_flawed_reply_tells_a_recovery_of_the_fence_and_a_reader_nothing",),
    ),
    Mutant(
        "an append that is cancelled when it is given room keeps it",
        "the window shrinks until the writer hangs",
        """                self._go_on(size, count)  # admitted and cancelled at once: pass the room on
                self.give_room()
""",
        "                self._go_on(size, count)\n",
        (
            _UNIT + "client/test_cancellation.py::test_an_append_that_is_cancelled_when_it_is_given_room_passes_it_on",
            _WINDOW + "test_an_append_that_is_cancelled_when_it_is_given_room_passes_it_on",
        ),
    ),
    # --- the window of a writer -------------------------------------------------------------------------------------
    Mutant(
        "an append that finds room enters before those that wait",
        "a large append waits for ever behind small ones that came later",
        "        if self.waiters or not self._owner.enters_at_once or not self.fits(size, count):\n",
        "        if not self._owner.enters_at_once or not self.fits(size, count):\n",
        (_WINDOW + "test_appends_are_admitted_in_order_of_arrival",),
    ),
    Mutant(
        "an append that was given room is not counted until it goes on",
        "more is unacknowledged than the window has, and memory grows",
        """                    self._reserved_entries += count
                    self._reserved_bytes += size
                    admitted.set_result(None)
""",
        "                    admitted.set_result(None)\n",
        (_WINDOW + "test_room_of_an_append_that_has_not_gone_on_is_taken",),
    ),
    Mutant(
        "an append that was cancelled while it waited stays in the queue",
        "the appends behind it wait for room that it would need, and `close` with them",
        "while waiters and (waiters[0][2].done() or self.fits(waiters[0][0], waiters[0][1])):",
        "while waiters and self.fits(waiters[0][0], waiters[0][1]):",
        (_WINDOW + "test_an_append_that_is_cancelled_while_it_waits_holds_up_nobody",),
    ),
    Mutant(
        "appends are given room while their log rolls",
        "an append goes to a ledger behind the position at which the next one begins",
        "        if waiters and self._owner.admits:\n",
        "        if waiters:\n",
        (_WINDOW + "test_while_the_state_admits_none_nothing_is_given_room",),
    ),
    Mutant(
        "the former ledger of a log is not in the window",
        "a log that rolls often has several windows unacknowledged",
        "            entries += former.next_id - former.confirmed_entries\n",
        "            pass\n",
        (
            _WINDOW + "test_two_ledgers_of_a_log_have_one_window",
            _UNIT + "log/test_rolling.py::test_the_window_counts_the_entries_of_both_ledgers",
        ),
    ),
    Mutant(
        "appends that wait are not told of a failure",
        "they wait for ever",
        "                admitted.set_exception(failure())\n",
        "                pass\n",
        (_WINDOW + "test_a_failure_reaches_each_that_waits_with_an_error_of_its_own",),
    ),
    Mutant(
        "an append that is taken while others wait moves the ends of the window",
        "appends enter before those that wait",
        "        if self.waiters or not self._owner.enters_at_once:\n",
        "        if not self._owner.enters_at_once:\n",
        (_WINDOW + "test_appends_are_admitted_in_order_of_arrival",),
    ),
    Mutant(
        "a frozen writer is not watched",
        "a writer whose change can't be stored, with nothing pending, never ends",
        "        self._dispatcher.watch(self)\n        changed = False\n",
        "        changed = False\n",
        (_COUNTED + "test_a_change_that_can_not_be_stored_ends_the_writer_though_nothing_is_pending",),
    ),
    Mutant(
        "an append's outcome is what the error's class says",
        "an append that is in the ledger is reported as one that is not",
        "self._fail_batch(batch, outcome_unknown=index < sent)",
        "self._fail_batch(batch, outcome_unknown=error.outcome_unknown)",
        (
            _OUTCOMES + "test_what_one_bookie_refuses_for_good_another_may_have",
            _OUTCOMES + "test_what_was_never_sent_is_known_not_to_be_in_the_ledger",
        ),
    ),
    # --- what is lacking ----------------------------------------------------------------------------------------------
    Mutant(
        "a bookie that takes entries again lacks nothing",
        "entries on fewer bookies than they should be on are not told of",
        "        if first is None or first <= confirmed:\n",
        "        if first is None:\n",
        (_SHORTFALL + "test_what_was_acknowledged_without_a_bookie_is_lacking_for_good",),
    ),
    Mutant(
        "a bookie of which one batch is accepted lacks nothing",
        "entries on fewer bookies than they should be on are not told of",
        """            awaited.discard(batch)
            if not awaited:
                del""",
        """            awaited.discard(batch)
            if True:
                del""",
        (_SHORTFALL + "test_what_is_accepted_later_is_not_lacking",),
    ),
    Mutant(
        "a bookie that was replaced is forgotten",
        "entries on fewer bookies than they should be on are not told of",
        "for b, first in self._first.items() if b in metadata.fragment_of(first).bookies}",
        "for b, first in self._first.items() if b in metadata.fragments[-1].bookies}",
        (
            _SHORTFALL + "test_a_bookie_that_was_replaced_lacks_what_is_still_its_own",
            _LACKING + "test_a_bookie_that_was_replaced_lacks_what_was_acknowledged_before",
        ),
    ),
    # --- what is sent -------------------------------------------------------------------------------------------------
    Mutant(
        "a batch is cut by the client's own limit alone",
        "appends fail, and all writers lose their bookies, where bookies take small frames",
        "*(m.batches_bytes_max(channel.frame_bytes_max) for channel in channels)]",
        "]",
        (_FRAMES + "test_a_large_batch_is_cut",),
    ),
    Mutant(
        "the heads of batches take no room",
        "a turn of many writers costs all of them their bookies, where these take small frames",
        "* HEADER_BYTES // (HEADER_BYTES + _BATCH_HEAD_BYTES)",
        "* HEADER_BYTES // HEADER_BYTES",
        (_FRAMES + "test_what_is_said_to_fit_fits",),
    ),
    Mutant(
        "keys are presented in one frame, however many",
        "a client of many ledgers loses its bookies, where these take small frames",
        "count = m.keys_max(self.frame_bytes_max)",
        "count = len(keys) or 1",
        (_FRAMES + "test_so_are_the_keys_of_many_ledgers",),
    ),
    Mutant(
        "what is sent once more is not cut",
        "a bookie that takes smaller frames can't replace another",
        "pieces = batch.sent.sent_batch(batch).cut(bytes_max)",
        "pieces = [batch.sent.sent_batch(batch)]",
        (_FRAMES + "test_what_was_sent_to_others_is_cut_for_the_bookie_that_takes_their_place",),
    ),
    Mutant(
        "a batch that is sent in pieces is accepted with the first",
        "an entry is acknowledged that too few bookies have",
        "left = self._to_come.get(batch, 1) - 1",
        "left = 0",
        (_FRAMES + "test_a_batch_in_pieces_is_accepted_with_the_last_of_them",),
    ),
    Mutant(
        "frames are sent that the bookie has said it doesn't take",
        "one writer's pending batch costs all others the connection",
        "if add.body_bytes + len(add.buffers[0]) > self.frame_bytes_max:",
        "if add.body_bytes + len(add.buffers[0]) > 1 << 62:",
        (_FRAMES + "test_bookies_that_come_back_with_a_smaller_limit",),
    ),
    Mutant(
        "frames are written to a connection that is closing",
        "a line in the log for each of them",
        "if not transport.is_closing():  # else",
        "if True:  # else",
        (_CONNECTIONS + "test_nothing_is_written_to_a_connection_that_is_gone",),
    ),
    # --- what is asked again ------------------------------------------------------------------------------------------
    Mutant(
        "an attempt to connect that had begun before counts",
        "a bookie that has just come back is taken for one that can't be reached",
        "under_way = self._attempting and not again",
        "under_way = self._attempting",
        (_CONNECTIONS + "test_whoever_wants_one_more_attempt_is_not_told_of_one_that_had_begun_before",),
    ),
    Mutant(
        "a status that isn't known raises in the middle of an answer",
        "a writer hears of a bookie that failed only when its quorum times out",
        "                error = m.refusal(code, ledger_id=batch.ledger_id, bookie=name)\n                batch.owner",
        "                error = m.error_of(m.status_of(code), ledger_id=batch.ledger_id, bookie=name)\n"
        "                batch.owner",
        (_STATUSES + "test_without_another_bookie_the_append_fails_and_says_why",),
    ),
    Mutant(
        "a read that is refused is tried again",
        "a bad request goes to every replica for as long as a read may take",
        "return Miss(MissKind.REFUSED, e.message)",
        "return Miss(MissKind.UNAVAILABLE, e.message)",
        (_STATUSES + "test_a_read_that_all_bookies_refuse_is_asked_of_each_once",),
    ),
    Mutant(
        "the rest of a range that was cut short is not asked for",
        "a scan or a recovery goes on behind entries that it has left out",
        "if answered_to < range_last:",
        "if False:",
        (_UNIT + "client/read/test_range_pipeline.py::test_a_range_that_is_cut_short_is_continued_first",),
    ),
    Mutant(
        "the bookies that are asked of a striped ledger leave out some of its entries",
        "these are read one at a time",
        "for k in range(0, ensemble_size, write_quorum))",
        "for k in range(0, ensemble_size, write_quorum + 1))",
        (
            "tests/unit/protocol/ledger/test_quorum.py::test_the_bookies_of_the_stripes_hold_every_entry_and_each_gets_its_turn",
        ),
    ),
    Mutant(
        "True is an id",
        "what can't be meant is sent to bookies",
        "    if not isinstance(value, int) or isinstance(value, bool):",
        "    if not isinstance(value, int):",
        (_ARGUMENTS + "test_a_bad_id_is_refused_at_the_call",),
    ),
    Mutant(
        "an iterator whose task was cancelled goes on behind what that was to fetch",
        "a reader takes a part of a ledger or of a list for all of it",
        'if task.cancelled():\n        raise ClientClosedError(f"the task',
        'if False:\n        raise ClientClosedError(f"the task',
        (_ITERATION + "test_a_consumer_whose_iterators_tasks_are_cancelled_takes_that_for_no_end",),
    ),
    Mutant(
        "infinity is a time",
        "a list of ledgers ends with an error that doesn't say which argument is wrong",
        "if not -sys.float_info.max <= seconds <= sys.float_info.max:",
        "if seconds != seconds:",
        (_ARGUMENTS + "test_a_bad_time_is_refused_at_the_call",),
    ),
    Mutant(
        "the last fragment ends at 2^62",
        "a read of the highest ids is malformed, and costs all writers their connections",
        "return fragments[-1], ENTRY_ID_MAX",
        "return fragments[-1], 1 << 62",
        (_ARGUMENTS + "test_the_highest_ids_there_can_be_harm_nobody",),
    ),
    # --- what idle writers cost ---------------------------------------------------------------------------------------
    Mutant(
        "all writers that pause publish at once",
        "whatever else their client asks of bookies waits behind them",
        "if waiting.tasks < self._in_flight_max:",
        "if waiting.tasks < 1 << 62:",
        (_IDLE + "test_thousands_that_pause_at_once_leave_room_for_reads",),
    ),
    Mutant(
        "writers that have published are watched for ever",
        "a client of many idle writers is busy with them",
        "            if sender.busy():\n                self._active[sender] = None\n                continue\n",
        "            self._active[sender] = None\n            if sender.busy():\n                continue\n",
        (_IDLE + "test_a_restart_of_bookies_is_no_work_for_idle_writers",),
    ),
    Mutant(
        "a writer's time counts from when it was last busy",
        "an append after a long pause fails at once",
        "        self._since = since\n        for writer",
        "        self._since |= since\n        for writer",
        (_IDLE + "test_time_counts_from_the_first_look_at_which_a_writer_was_busy",),
    ),
    Mutant(
        "a writer at rest keeps its queues",
        "an idle writer takes half as much memory again",
        "        if not self._queue:\n            self._queue = AT_REST\n",
        "        pass\n",
        (_IDLE + "test_an_idle_writer_is_small",),
    ),
    Mutant(
        "writers that were left open are not told of",
        "a ledger waits for somebody to recover it, and nobody knows",
        "        if left_open and not self._closed:\n",
        "        if self._closed:\n",
        (_LIFETIME + "test_a_client_that_is_closed_tells_of_writers_that_were_not",),
    ),
    Mutant(
        "a key that a bookie asks for isn't presented right before the request",
        "with few keys remembered, a recovery is refused though its key is right",
        "present=ledger_id, timeout_s=timeout_s, renew=True)",
        "present=ledger_id, timeout_s=timeout_s)",
        (
            "tests/unit/bookie/connection/test_forgotten_keys.py::test_a_key_that_is_asked_for_is_presented_right_before_the_request",
        ),
    ),
    # --- the write that closes a ledger -----------------------------------------------------------------------------
    Mutant(
        "the first write that closes a ledger counts as a repetition",
        "with a single repetition, a writer never closes what others have changed before",
        "    for _ in range(conflicts_max + 1):\n",
        "    for _ in range(conflicts_max):\n",
        (
            _UNIT + "client/test_closing_write.py::"
            "test_with_a_single_repetition_it_closes_what_others_changed_before_and_gives_up_when_they_go_on",
        ),
    ),
    Mutant(
        "a writer goes on where somebody has moved what it has written",
        "what was acknowledged is not where the ledger's metadata say",
        "        if fresh.fragments[-1].first_entry > fragment.confirmed + 1 or (\n",
        "        if False and (\n",
        (f"{_RARE}::test_a_writer_ends_where_somebody_has_moved_what_it_has_written",),
    ),
    Mutant(
        "a connection that has died of an unexpected error is never made again",
        "the client can't use that bookie until it is restarted",
        "            self._state = _State.IDLE  # no background attempt follows: the next use connects\n",
        "            pass\n",
        (f"{_RARE}::test_a_connection_that_dies_of_an_error_nobody_expects_is_made_again_by_the_next_use",),
    ),
    Mutant(
        "a bookie that nobody uses is dialled for ever",
        "a client that lives for long dials each bookie that there ever was, about every second",
        "                        self._state = _State.IDLE\n                        return\n",
        "                        pass\n",
        (_CONNECTIONS + "test_a_bookie_that_is_gone_is_not_dialled_for_ever",),
    ),
    Mutant(
        "a writer that waits for a bookie lets it be dialled no more",
        "its appends stay unacknowledged though the bookie is back",
        "if self._pool.channel(b).reached()]",
        "if self._pool.channel(b).up]",
        (_CONNECTIONS + "test_a_bookie_that_is_used_is_dialled_for_as_long",),
    ),
    Mutant(
        "decommissioned bookies are never forgotten",
        "a client that lives for long has its writers looked at for each bookie that there ever was",
        "                    await self._forget_gone()\n",
        "",
        (_CONNECTIONS + "test_a_directory_forgets_bookies_without_a_cookie",),
    ),
    Mutant(
        "bookies that are away are forgotten like decommissioned ones",
        "idle writers stay at a lost bookie",
        "kept = {*await list_cookies(self._store, self._root), *self.in_use()}",
        "kept = {*self.in_use()}",
        (_CONNECTIONS + "test_a_directory_forgets_bookies_without_a_cookie",),
    ),
    Mutant(
        "a bookie is forgotten though a writer names it",
        "the writer stays there until it appends",
        "kept = {*await list_cookies(self._store, self._root), *self.in_use()}",
        "kept = {*await list_cookies(self._store, self._root)}",
        (_CONNECTIONS + "test_a_bookie_that_a_writer_names_is_not_forgotten",),
    ),
    Mutant(
        "an overloaded client asks second replicas",
        "its reads take the slots that its other reads wait for",
        "            if channel is None:  # this client itself is overloaded: more reads would not help\n",
        "            if False:\n",
        (f"{_RARE}::test_a_client_that_is_overloaded_asks_no_second_replica",),
    ),
    Mutant(
        "a read waits for a slot at the first replica, though another one has some",
        "a hung bookie holds reads up for as long as other requests wait for it",
        "        return next((channel for channel in channels if not channel.slots.locked()), None)\n",
        "        return next(channels)\n",
        (f"{_RARE}::test_a_replica_without_a_free_slot_is_passed_over",),
    ),
    Mutant(
        "a read that waits for a slot waits at one replica alone",
        "a hung bookie holds reads up though slots of others come free",
        "            self._queue.rotate(-1)\n",
        "",
        (f"{_RARE}::test_a_read_that_waits_for_a_slot_waits_for_each_replica_in_turn",),
    ),
    Mutant(
        "a force that a bookie refuses is taken for one that was carried out",
        "entries are taken for durable that no disk has",
        "        elif status != Status.OK:\n"
        "            raise m.error_of(status, ledger_id=ledger_id, bookie=bookie_id)\n",
        "",
        (f"{_RARE}::test_a_force_of_a_ledger_that_a_bookie_does_not_know_is_its_error",),
    ),
    Mutant(
        "a writer whose last appends have failed doesn't close its ledger",
        "somebody has to recover it",
        "                return  # those appends have failed; the ledger ends before them\n",
        "                raise\n",
        (f"{_RARE}::test_closing_ends_a_ledger_before_what_nobody_acknowledged",),
    ),
    Mutant(
        "a part of a block begins with the block",
        "a table of Spark has rows twice",
        "        low = max(low, 0)\n        return Block(",
        "        low = 0\n        return Block(",
        (f"{_RARE}::test_a_part_of_a_block_is_what_lies_in_it",),
    ),
    Mutant(
        "a writer gives up where it can't read again what somebody has changed",
        "a store that is away for a moment ends it",
        "                if fragment.error is not None:\n                    raise\n",
        "                raise\n",
        (
            f"{_RARE}::test_metadata_that_somebody_has_changed_are_read_when_the_store_is_back_unless_the_writer_has_ended",
        ),
    ),
    Mutant(
        "a bookie that was taken in is recorded at the first try or never",
        "a worker copies what the bookie has",
        "            if isinstance(outcome, Done | Missing):\n                return\n            await asyncio.sleep(",
        "            return\n            await asyncio.sleep(",
        (f"{_RARE}::test_a_bookie_is_taken_in_though_that_can_not_be_recorded_at_once",),
    ),
    Mutant(
        "a ledger whose missing copies can't be recorded is not closed",
        "its writer gets an error for what is stored",
        "        except (BookKeeperError, UnsupportedVersionError) as error:\n"
        '            log.warning("ledger %d: failed to mark it under-replicated on %s: %s"',
        "        except UnsupportedVersionError as error:\n"
        '            log.warning("ledger %d: failed to mark it under-replicated on %s: %s"',
        (f"{_RARE}::test_a_ledger_is_closed_though_nobody_can_be_told_of_missing_copies",),
    ),
    Mutant(
        "a request that a bookie refuses for having too many is not sent again",
        "the ranges of one recovery refuse each other at bookies that serve few requests, and it never ends",
        "if long_poll or m.reply_status(reply.head) != Status.TOO_MANY_REQUESTS:",
        "if True:",
        (
            "tests/unit/recovery/test_recovery.py::"
            "test_bookies_that_serve_one_request_at_a_time_let_a_recovery_with_many_end",
        ),
    ),
    Mutant(
        "a bookie that refuses until a request's time is up counts as silent",
        "reads prefer other bookies, and nobody learns of the bound",
        "            if refusal is not None:\n                return refusal\n",
        "",
        (_CONNECTIONS + "test_a_request_that_is_refused_until_its_time_is_up_ends_as_refused",),
    ),
    Mutant(
        "a client that is being closed counts as closed",
        "the other call returns while the session still holds its leases",
        "            await self._over.wait()\n",
        "",
        (_UNIT + "client/test_cancellation.py::test_of_several_who_close_a_client_each_returns_when_all_is_closed",),
    ),
    Mutant(
        "force overtakes appends that a bookie has not answered",
        "a bookie may lose what it acknowledged behind that, and nobody knows that it misses it",
        "await channel.appends_answered(ledger_id, timeout_s=self._timeout_s)",
        "pass",
        (f"{_FORCE}::test_what_a_bookie_has_not_answered_is_forced_there_too",),
    ),
    Mutant(
        "force waits for appends that come while it waits",
        "beside a writer that appends all the time it never ends",
        "while sent := sent.intersection(add.correlation_id for add in self._pending_appends()):",
        "while sent and (sent := {add.correlation_id for add in self._pending_appends()}):",
        (f"{_FORCE}::test_force_waits_for_what_was_sent_before_it_alone",),
    ),
    Mutant(
        "what is lost with a connection counts as synced",
        "force says that every bookie has synced what one has lost",
        "if generation != self._generations[bookie_id]:",
        "if False:",
        (f"{_FORCE}::test_a_bookie_that_was_away_may_have_lost_what_was_not_forced",),
    ),
    Mutant(
        "a writer with deferred sync knows only the connections of its last force",
        "it fails for good when a bookie was away while everything was forced",
        "batcher.on_first_unforced = self._begin",
        "pass",
        (f"{_FORCE}::test_a_bookie_that_was_away_while_nothing_was_unforced_costs_nothing",),
    ),
    Mutant(
        "the next connection to a bookie that is away counts as the one which it was written over",
        "force says that every bookie has synced what one was never sent",
        "if channel.up:\nself._generations[bookie_id] = channel.generation",
        "self._generations[bookie_id] = channel.generation + (not channel.up)",
        (f"{_FORCE}::test_what_a_bookie_was_not_sent_is_not_forced",),
    ),
    Mutant(
        "each append begins anew what could be lost with a connection",
        "force says that every bookie has synced what one has lost",
        "if self.on_first_unforced is not None and self._acks.last_sent == self.lac.entry:",
        "if self.on_first_unforced is not None:",
        (f"{_FORCE}::test_what_a_bookie_was_not_sent_is_not_forced",),
    ),
    Mutant(
        "requests to a bookie that can't be reached share an error",
        "its traceback grows with each of them",
        "return self._error.renewed(bookie=self.bookie_id)",
        "return self._error",
        (f"{_CONNECTIONS}test_every_request_to_a_bookie_whose_address_is_not_known_gets_an_error_of_its_own",),
    ),
    Mutant(
        "custom metadata are whatever makes a dict",
        "a bare error of Python's says nothing about the argument",
        "    if given is not None and not isinstance(given, Mapping):\n",
        "    if False:\n",
        (_ARGUMENTS + "test_custom_metadata_are_a_mapping",),
    ),
    Mutant(
        "a read of unconfirmed entries takes no end",
        "a bare error of Python's as it begins",
        "        check_first(first, self.ledger_id)\n        check_last(last, self.ledger_id)\n        return",
        "        self._check_ids(first, last)\n        return",
        (_ARGUMENTS + "test_a_bad_id_is_refused_at_the_call",),
    ),
    Mutant(
        "two tasks enter the context of one connect",
        "the first that leaves it closes the client of the other",
        "        if self._entered:\n",
        "        if False:\n",
        (_ARGUMENTS + "test_one_connect_is_the_context_of_one_task_at_a_time",),
    ),
]
