"""Defects in what is read of named logs, and in how they are followed."""

from __future__ import annotations

from tests.mutants import Mutant

_READER = "tests/unit/log/test_log_reader.py"
_TAIL = "tests/unit/log/test_log_tail.py"
_READING = "tests/unit/protocol/log/test_log_reading.py"
_RARE = "tests/unit/log/test_rare_log_steps.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "the tail that polls follow holds their reader",
        "a reader that is polled and forgotten goes on for ever, with six tasks and long polls",
        "LogPoll(self._follow_apart)",
        "LogPoll(self._following)",
        ("tests/unit/log/test_log_poll.py::test_a_reader_that_was_polled_leaves_nothing_behind",),
    ),
    Mutant(
        "the average of an open ledger's entries stays that of the first length that was told",
        "a stream's batch that is bounded in bytes has many times as many",
        "self._measured = max(self._measured, confirmed.measured)",
        "self._measured = self._measured if self._measured[0] >= 0 else confirmed.measured",
        (
            f"{_READER}::test_what_an_open_ledger_has_goes_by_the_entries_themselves",
            "tests/unit/client/read/test_last_add_confirmed.py"
            "::test_what_entries_have_on_average_follows_the_entries_themselves",
        ),
    ),
    Mutant(
        "the bytes up to an entry are taken for those up to what it confirms",
        "a ledger's entries seem larger than they are",
        "measured = max(measured, (confirmed if is_explicit else header.entry_id, header.length))",
        "measured = max(measured, (confirmed, header.length))",
        ("tests/unit/protocol/wire/test_lac_reply.py::test_what_verifies_is_proven_to_both",),
    ),
    Mutant(
        "what a closed ledger has is forgotten before the list says it",
        "a stream's batch that is bounded in bytes has all of a ledger whose writer died",
        "self._readers = {i: reader for i, reader in (self._readers | readers).items() if i in still_open}",
        "self._readers = {i: reader for i, reader in readers.items() if i in still_open}",
        (f"{_READER}::test_what_a_ledger_has_is_known_until_the_list_says_it",),
    ),
    Mutant(
        "a segment is read though the one before it ended short",
        "readers are given entries that are no part of the log, at positions that others will get",
        "if following is None or following.first_position != log_list.behind(end):",
        "if following is None:",
        (
            f"{_READING}::test_a_segment_is_followed_only_if_the_one_before_ends_where_it_begins",
            f"{_READER}::test_a_segment_that_is_to_be_dropped_is_not_read",
        ),
    ),
    Mutant(
        "a tail waits in a ledger that the log has done without",
        "it is given nothing any more, though the log goes on",
        "if self._followed is not None and self._moved_on(self._followed[0]):",
        "if False:",
        (f"{_TAIL}::test_a_segment_that_is_dropped_while_it_is_followed_is_left_at_once",),
    ),
    Mutant(
        "a tail's position stays at what its consumer works on",
        "a truncation meanwhile ends the tail, as if its reader had been closed",
        """                        self._position = block.positions.stop  # first: the consumer may take its time
                        self._snapshot.advance(self._position)
                        yield block
""",
        """                        self._snapshot.advance(block.positions.stop)
                        yield block
                        self._position = block.positions.stop
""",
        (f"{_TAIL}::test_truncation_of_what_a_consumer_still_works_on_does_not_disturb_its_tail",),
    ),
    Mutant(
        "an entry has the time of its writer's clock though the segment began later",
        "times go back within a log, and a search by time finds the wrong position",
        'array("d", [max(begun_ms, stamp_at(buffer, start)) / 1000 for start in self.block.starts])',
        'array("d", [stamp_at(buffer, start) / 1000 for start in self.block.starts])',
        (f"{_READER}::test_an_entry_has_no_time_before_its_segment_began",),
    ),
    Mutant(
        "another log of the same name is taken for this one",
        "a reader goes on with entries that have nothing to do with those before",
        "if log_list.uid != self.list.uid:",
        "if False:",
        (f"{_READER}::test_deletion_under_a_reader",),
    ),
    Mutant(
        "a lag that a truncation overtakes is an error",
        "consumers have no lag while retention works",
        "                continue  # meanwhile; what is there begins later\n",
        "                raise\n",
        (f"{_RARE}::test_a_lag_is_measured_again_behind_what_is_truncated_meanwhile",),
    ),
    Mutant(
        "a poll whose reader is closed ends as if the log did",
        "an iterator that polls takes it for the end, and what comes is never read",
        "        except StopAsyncIteration:  # `close` has ended its tail, which has no other end\n"
        "            raise self._closed_error() from None\n",
        "        finally:\n            pass\n",
        ("tests/unit/log/test_log_poll.py::test_a_poll_whose_reader_is_closed_says_so",),
    ),
    Mutant(
        "a log is opened for reading by a list that may be old",
        "the password of a log that was made again is refused",
        "await parts.logs.read(checked_name(name), fresh=True)\n",
        "await parts.logs.read(checked_name(name))\n",
        (f"{_RARE}::test_a_log_that_was_made_again_is_not_taken_for_the_one_before",),
    ),
    Mutant(
        "a page that a truncation has deleted is missed",
        "a tail that is overtaken by a truncation tells of a missing page, as if something was lost",
        "if missing.end_position > self.list.first_position:\nraise\nreturn False",
        "raise",
        ("tests/unit/log/test_paged_log.py::test_a_ledger_whose_page_was_deleted_with_it_is_not_missed",),
    ),
    Mutant(
        "a writer that was overtaken knows where the log ends",
        "its consumers can never go on to what another writer appends",
        "if self.usable or position <= self._appends.acknowledged:",
        "if True:",
        (
            "tests/unit/log/test_consumer_lease.py"
            "::test_a_consumer_of_a_writer_that_another_one_follows_goes_on_to_what_that_appends",
        ),
    ),
    Mutant(
        "a poll begins to look for the next block only when it is asked for it",
        "polls that wait for nothing return nothing each second time though there are entries",
        "self._tail.begin()",
        "pass",
        ("tests/unit/log/test_log_poll.py::test_polls_that_wait_for_nothing_find_what_came_since_the_last_one",),
    ),
    Mutant(
        "a list of ranges ends where it is cancelled",
        "a program that goes on after a time-out believes that it has seen the whole log",
        "return ResumableIterator(parts, alone, self._guard)",
        "return self._list_ranges(first, last)",
        ("tests/unit/log/test_paged_log.py::test_a_list_of_ranges_that_is_cancelled_goes_on_where_it_was",),
    ),
]
