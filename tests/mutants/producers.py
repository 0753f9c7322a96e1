"""Defects in appends that can be repeated, and in what a log remembers of their producers."""

from __future__ import annotations

from tests.mutants import Mutant

_PURE = "tests/unit/protocol/log/test_log_producers.py"
_RECORDS = "tests/unit/protocol/wire/test_records.py"
_WRITER = "tests/unit/log/test_producers.py"
_RARE = "tests/unit/log/test_rare_log_steps.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "each attempt of an opening judges anew which producers are idle",
        "a writer is fenced for one that is refused, because its producer's time passed meanwhile",
        "self._judged_ms = now_ms if self._judged_ms is None else self._judged_ms",
        "self._judged_ms = now_ms",
        (f"{_WRITER}::test_a_producer_whose_time_passes_while_its_writer_opens_the_log_is_not_forgotten",),
    ),
    Mutant(
        "an opening counts as use of its producer when it begins, not when it succeeds",
        "a producer is forgotten whose writer had the log open a moment ago",
        "ready.producers.opened(self._producer, *limits).active(self._producer, now_ms)",
        "ready.producers.opened(self._producer, *limits)",
        (f"{_WRITER}::test_an_opening_that_took_long_is_no_time_without_the_producer",),
    ),
    Mutant(
        "a cancelled batch whose writer fails is complained of",
        "the log of a service says that an exception was never retrieved, with nothing that anybody could have done",
        "            batch.whole.exception()  # retrieved",
        "            # retrieved",
        ("tests/unit/log/test_producers.py::test_a_cancelled_batch_whose_writer_fails_then_is_nothing_to_complain_of",),
    ),
    Mutant(
        "an opener does not read the numbers of ledgers that it closes",
        "an append that survived its writer is appended once more",
        "            if segment.stamp == NUMBERED:\n                producer, sequence",
        "            if False:\n                producer, sequence",
        (f"{_WRITER}::test_the_next_writer_of_the_producer_goes_on_where_the_log_ends",),
    ),
    Mutant(
        "a roll does not count the numbers of the ledger that it ends",
        "the next writer appends them once more",
        "        numbering = None if index is None else Numbering(index, writer.pending.first_sequence)\n",
        "        numbering = None\n",
        (f"{_WRITER}::test_the_next_writer_of_the_producer_goes_on_where_the_log_ends",),
    ),
    Mutant(
        "a lower number that is not known is appended",
        "an old append is in the log twice",
        "        position = self._producer.position_of(sequence)\n        if position is None:\n",
        "        position = self._producer.position_of(sequence)\n        if False:\n",
        (f"{_PURE}::test_numbers_ascend_by_one_from_any_first_one",),
    ),
    Mutant(
        "a number behind the next one is appended",
        "an entry is missing, and nobody learns of it",
        "        if sequence > self.next:\n",
        "        if False:\n",
        (f"{_PURE}::test_numbers_ascend_by_one_from_any_first_one",),
    ),
    Mutant(
        "a repeat does not wait for the outcome of the first append",
        "an append is acknowledged that is lost with its writer",
        "        if position >= self._appends.acknowledged:\n            try:\n",
        "        if False:\n            try:\n",
        (f"{_WRITER}::test_a_repeat_of_what_is_pending_waits_for_that_outcome",),
    ),
    Mutant(
        "a repeat fails with its writer though the entry is acknowledged",
        "an application doesn't learn the position of what it has appended",
        "            except BookKeeperError:\n"
        "                if position >= self._appends.acknowledged:\n                    raise\n",
        "            except BookKeeperError:\n                raise\n",
        (f"{_WRITER}::test_a_repeat_of_what_is_confirmed_while_it_waits_succeeds",),
    ),
    Mutant(
        "a forgotten producer begins as a new one",
        "what it repeats is in the log twice",
        "        if not new and (found is not None or name in self.forgotten or self.others_forgotten):\n",
        "        if False:\n",
        (f"{_PURE}::test_a_producer_that_was_idle_is_forgotten_and_refused",),
    ),
    Mutant(
        "forgotten names beyond the bound are taken for new ones",
        "what such a producer repeats is in the log twice",
        "        more = self.others_forgotten or len(forgotten) > forgotten_max\n",
        "        more = self.others_forgotten\n",
        (f"{_PURE}::test_names_that_were_forgotten_are_bounded_and_then_any_unknown_one_is_refused",),
    ),
    Mutant(
        "a run goes on over a hole in the positions",
        "a repeated append is told the position of another entry",
        "        if (\n            runs\n            and runs[-1].end == run.first_sequence\n"
        "            and runs[-1].first_position + runs[-1].entries == run.first_position\n        ):\n",
        "        if runs and runs[-1].end == run.first_sequence:\n",
        (f"{_PURE}::test_runs_that_touch_become_one_and_the_oldest_go",),
    ),
    Mutant(
        "an index is used for two producers",
        "the numbers of one are taken for those of the other",
        "            found, index = Producer(index, now_ms), index + 1\n",
        "            found = Producer(index, now_ms)\n",
        (f"{_PURE}::test_a_producer_that_was_idle_is_forgotten_and_refused",),
    ),
    Mutant(
        "a writer that is idle lets its producer be forgotten",
        "a service that comes back after a quiet month can't append",
        "                await self._stay_known()\n",
        "",
        (f"{_WRITER}::test_a_writer_that_is_idle_keeps_its_producer_known",),
    ),
    Mutant(
        "an append that waits is withdrawn when its call is cancelled",
        "those behind it get the numbers of others",
        "            added = await asyncio.shield(waiting.added)\n",
        "            added = await waiting.added\n",
        (f"{_WRITER}::test_appends_that_wait_for_room_keep_their_order_and_go_on_when_cancelled",),
    ),
    Mutant(
        "numbers of a striped ledger ascend in each write set",
        "readers see the numbers of other entries",
        "        return [pack(producer, first + stride * i) + stamp + payload for i, payload in enumerate(payloads)]\n",
        "        return [pack(producer, first + i) + stamp + payload for i, payload in enumerate(payloads)]\n",
        (f"{_RECORDS}::test_numbers_lie_before_the_times_of_entries",),
    ),
    Mutant(
        "a batch is appended in two parts with others in between",
        "append_batch returns positions of somebody else's entries",
        "            if following != begin + known:\n",
        "            if False:\n",
        (f"{_WRITER}::test_a_batch_is_not_torn_where_others_came_in_between",),
    ),
    Mutant(
        "an append that waits is refused by a ledger whose bookies take less",
        "entries behind it get its number, and later ones are acknowledged and not written",
        "                await self._appends.admit(0, one.size, len(one.payloads))\n",
        "                await self._appends.admit(max(map(len, one.payloads)), one.size, len(one.payloads))\n",
        (f"{_WRITER}::test_an_append_that_waits_is_as_good_in_a_ledger_whose_bookies_take_less",),
    ),
    Mutant(
        "an append that waits is taken for added before it is",
        "its caller waits for ever if there is no memory for it",
        "                batcher = self._batcher_from(one.sequence)\n",
        "                waiting.popleft()\n                batcher = self._batcher_from(one.sequence)\n",
        (f"{_RARE}::test_an_append_that_fails_where_it_gets_its_room_ends_the_writer_and_nobody_waits_for_ever",),
    ),
    Mutant(
        "an append that can't be added leaves its writer as it was",
        "the numbers behind it lie behind a gap",
        "            if self._appends.error is None:\n",
        "            if False:\n",
        (f"{_RARE}::test_an_append_that_fails_where_it_gets_its_room_ends_the_writer_and_nobody_waits_for_ever",),
    ),
    Mutant(
        "a repeat of an append that waits for room doesn't wait",
        "a producer is told a position at which nothing is yet",
        "        while self._waiting and self._appends.next_position <= position:\n",
        "        while False:\n",
        (f"{_RARE}::test_a_repeat_of_an_append_that_waits_for_room_waits_as_well",),
    ),
    Mutant(
        "a writer that closes takes numbers",
        "an append is neither written nor refused",
        '        if self._closing:\n            raise ClientClosedError(f"the writer of log {self._name} is closed")\n'
        "        self._appends.check(largest)\n",
        "        self._appends.check(largest)\n",
        (f"{_RARE}::test_a_writer_that_closes_adds_what_waits_and_nothing_more",),
    ),
    Mutant(
        "the end of a ledger is forgotten with the write of a list that doesn't have it yet",
        "a log never rolls again, and no producer can open it once it is closed",
        "in self._unsealed.items() if ledger_id in still_open}\n",
        "in {}.items()}\n",
        (f"{_WRITER}::test_a_ledger_that_is_closed_while_the_list_is_written_for_its_producer_is_sealed_later",),
    ),
    Mutant(
        "a writer whose log has a ledger that can't be deleted stops renewing its lease and its producer",
        "another client takes the log over unasked, and the producer is forgotten",
        "        except (MetadataUnavailableError, NoSuchLogError):\n            raise\n"
        "        except BookKeeperError as error:  # of one",
        "        except BookKeeperError:\n            raise\n        except ValueError as error:  # of one",
        (f"{_WRITER}::test_a_writer_keeps_its_lease_and_its_producer_though_a_ledger_can_not_be_deleted",),
    ),
    Mutant(
        "a writer says only as often as it applies retention that its producer has the log open",
        "a producer that has the log open is forgotten",
        "            pause_s = min(pause_s, self._settings.log_producer_idle_s / _ACTIVE_WRITES)\n",
        "            pass\n",
        (f"{_WRITER}::test_a_writer_that_is_idle_keeps_its_producer_known",),
    ),
    Mutant(
        "only the first number of a batch is checked",
        "numbers get into the log that no stamp of a later ledger can hold",
        "self._sequences.check(first + len(payloads) - 1)",
        "pass",
        ("tests/unit/log/test_producers.py::test_a_batch_whose_last_number_is_none_is_refused",),
    ),
]
