"""Defects in what is written of named logs, and in what is taken out of them."""

from __future__ import annotations

from tests.mutants import Mutant

_LISTS = "tests/unit/metadata/logs/test_log_lists.py"
_CONSUMERS = "tests/unit/metadata/logs/test_log_consumers.py"
_MAINTENANCE = "tests/unit/metadata/logs/test_log_maintenance.py"
_RETENTION = "tests/unit/protocol/log/test_log_retention.py"
_KEEPER = "tests/unit/log/test_log_keeper.py"
_PAGES = "tests/unit/protocol/log/test_log_pages.py"
_PAGED = "tests/unit/metadata/logs/test_paged_logs.py"
_LONG = "tests/unit/log/test_paged_log.py"
_RARE = "tests/unit/log/test_rare_log_steps.py"
_ROLLING = "tests/unit/log/test_rolling.py"
_TAKEOVERS = "tests/unit/log/test_takeovers.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "a deletion that was cut short is none of the next call's business",
        "the log is said not to be there, while its writer isn't fenced and its name can't be used",
        "if log_list.deleted:  # by a call that has not come to its end: perhaps its writer isn't fenced yet\n"
        "                return\n",
        'if log_list.deleted:\n                raise NoSuchLogError(f"log {name} has been deleted")\n',
        (f"{_MAINTENANCE}::test_a_deletion_that_was_cut_short_is_completed_by_the_next_call",),
    ),
    Mutant(
        "an opener that was overtaken takes the lease of its successor",
        "until its next retention, the log's writer is fenced by a client that was not to wait for it",
        "if log_list is None or log_list.writer != token:",
        "if log_list is None:",
        (
            f"{_LISTS}::test_an_opener_that_was_overtaken_leaves_its_successor_the_lease",
            f"{_TAKEOVERS}::test_the_lease_is_that_of_the_writer_whenever_another_client_comes_in_between",
        ),
    ),
    Mutant(
        "an opener that is overtaken while it takes the lease removes that of its successor's successor",
        "until its next retention, the log's writer is fenced by a client that was not to wait for it",
        "Delete(path, found.version), present, attempts_max=1)",
        "Delete(path, found.version), attempts_max=1)",
        (f"{_LISTS}::test_an_opener_that_was_overtaken_leaves_its_successor_the_lease",),
    ),
    Mutant(
        "one log that can't be maintained ends the maintenance of those behind it",
        "with one unreadable list nothing is truncated, deleted or swept any more",
        """                if _concerns_all(error):
                    raise
                log.warning("failed to maintain log %s: %s", name, error)
""",
        "                raise\n",
        (f"{_KEEPER}::test_a_log_that_can_not_be_read_holds_up_no_other",),
    ),
    Mutant(
        "the auditor always begins with the same log",
        "a log for which the store never answers keeps all behind it from their retention",
        "for name in names[begin:] + names[:begin]:",
        "for name in names:",
        (f"{_KEEPER}::test_a_log_for_which_the_store_is_always_away_holds_up_no_other",),
    ),
    Mutant(
        "an unreadable ledger counts as belonging to no log",
        "the note that its log was deleted is removed, and the ledger is kept for ever",
        "if found.unreadable.count:  # it may belong to any log",
        "if False:",
        (f"{_KEEPER}::test_a_ledger_that_can_not_be_read_may_belong_to_any_log",),
    ),
    Mutant(
        "one list that may not be read ends the listing of logs",
        "bkpy log list fails for everybody",
        "except (CorruptDataError, UnsupportedVersionError, UnauthorizedError):  # it is there, though unreadable",
        "except (CorruptDataError, UnsupportedVersionError):",
        (f"{_LISTS}::test_a_list_that_may_not_be_read_is_listed_with_the_others",),
    ),
    Mutant(
        "retention deletes what one of two limits keeps",
        "entries of the last week are deleted because the log is large, though a week was promised",
        "return bool(limits) and all(limits)",
        "return any(limits)",
        (f"{_RETENTION}::test_what_retention_keeps",),
    ),
    Mutant(
        "retention counts the stamps of entries",
        "of small entries a fraction of the bytes is kept that was asked for",
        "return self.length - STAMP_SIZES[self.stamp] * self.entries if self.sealed else 0",
        "return self.length if self.sealed else 0",
        (f"{_RETENTION}::test_the_bytes_that_are_kept_are_those_of_entries",),
    ),
    Mutant(
        "a consumer in front of a gap is taken for one that has something to read there",
        "a consumer that has read everything holds back truncation",
        "if log_list.behind(position) < before)",
        "if position < before)",
        (f"{_RETENTION}::test_a_consumer_before_a_gap_has_read_what_lies_below_it",),
    ),
    Mutant(
        "a list is written over that of another log of the same name",
        "a log that was made anew has the ledgers of the deleted one, and none of its own",
        "                same,\n                *checks,\n                *operations,\n",
        "                *checks,\n                *operations,\n",
        (f"{_LISTS}::test_a_write_that_was_meant_for_another_log_of_that_name_is_refused",),
    ),
    Mutant(
        "a truncation doesn't notice a consumer that registers",
        "what the consumer was promised is deleted",
        "checks = [registered.check]",
        "checks = []",
        (f"{_MAINTENANCE}::test_whatever_another_does_meanwhile_nothing_is_lost",),
    ),
    Mutant(
        "a registration doesn't notice a truncation",
        "the consumer is registered at a position that is gone",
        "self._committed(known.all_version, create, self._logs.list_check(self._log, version))",
        "self._committed(known.all_version, create)",
        (f"{_CONSUMERS}::test_a_registration_that_knows_nothing_of_a_truncation_is_refused",),
    ),
    Mutant(
        "a ledger that gets into the list at that moment is deleted as an orphan",
        "the log has a hole",
        "outcome = await self._catalog.delete(ledger_id, unchanged)",
        "outcome = await self._catalog.delete(ledger_id)",
        (f"{_MAINTENANCE}::test_nor_one_that_gets_into_it_at_that_moment",),
    ),
    Mutant(
        "the last ledgers of a deleted log are not fenced",
        "its writer is told for hours that its appends are durable",
        "if log_list.deleted and fence is not None:",
        "if False:",
        (f"{_MAINTENANCE}::test_a_deleted_log_leaves_nothing",),
    ),
    Mutant(
        "whatever has the names of a log's ledger is deleted as left over",
        "somebody's own ledger, copied from a log's, is lost",
        "if not made_by_log(metadata, belongs.uid, log_list):",
        "if False:",
        (f"{_MAINTENANCE}::test_a_ledger_that_no_log_made_stays",),
    ),
    Mutant(
        "what is doomed is forgotten",
        "space that truncation and retention should free is never freed",
        "problem = await self._delete_ledgers(left, gone)",
        "problem = gone.update(left)",
        (f"{_MAINTENANCE}::test_a_truncation_deletes_whole_ledgers",),
    ),
    Mutant(
        "a consumer in the middle of a ledger doesn't hold it back",
        "the consumer loses what it had yet to read",
        "needed is not None and needed < row.end_position and not",
        "needed is not None and needed <= row.first_position and not",
        (f"{_RETENTION}::test_what_retention_keeps",),
    ),
    Mutant(
        "a consumer doesn't know again what it has written",
        "once the reply to a commit was lost it can never go on",
        "if known.state is None or (known.state != expected and known.state.token != self._token):",
        "if known.state is None or known.state != expected:",
        (f"{_CONSUMERS}::test_one_whose_commit_was_not_told_of_goes_on",),
    ),
    Mutant(
        "what was deleted is deleted again whenever the list has changed",
        "a log that rolls all the time is never truncated",
        "left = [ledger_id for ledger_id in log_list.pending_delete if ledger_id not in gone]",
        "left = list(log_list.pending_delete)",
        (f"{_MAINTENANCE}::test_many_ledgers_are_deleted_though_the_log_rolls_meanwhile",),
    ),
    Mutant(
        "that a list is missing is taken for a deletion",
        "one who removes a node by hand, or puts an old copy back, loses the whole log",
        "return Orphan.DELETE if deleted else Orphan.KEEP_FOR_LOST_LIST",
        "return Orphan.DELETE",
        (f"{_MAINTENANCE}::test_of_a_log_whose_list_was_lost_nothing_is_deleted",),
    ),
    Mutant(
        "the list of a deleted log is removed before that is noted",
        "what is left of its ledgers is kept for ever",
        "            await self._deletions.note(name, log_list.uid)\n",
        "",
        (f"{_MAINTENANCE}::test_a_list_is_not_removed_before_the_deletion_is_noted",),
    ),
    Mutant(
        "a deletion is forgotten while there are ledgers of the log",
        "what is left of its ledgers is kept for ever",
        "if note.uid not in found.seen:",
        "if True:",
        (f"{_KEEPER}::test_a_deletion_is_noted_for_as_long_as_there_may_be_ledgers",),
    ),
    Mutant(
        "a consumer may be past what is there",
        "retention deletes what it never read",
        "        await self._check_end(position)\n        leased = ",
        "        leased = ",
        ("tests/unit/log/test_log_consumer.py::test_no_consumer_gets_past_what_is_there",),
    ),
    Mutant(
        "one ledger that can't be deleted keeps all that are gone on the list",
        "a list that only grows, until it is too long",
        "removed = tuple(ledger_id for ledger_id in log_list.pending_delete if ledger_id in gone)",
        "removed = log_list.pending_delete if problem is None else ()",
        (f"{_MAINTENANCE}::test_a_ledger_that_can_not_be_deleted_keeps_no_other_one_on_the_list",),
    ),
    Mutant(
        "the consumers of a log are not counted",
        "who makes a new one each time fills the metadata store, and no truncation ends",
        "            await self._check_number()\n",
        "",
        (f"{_CONSUMERS}::test_there_are_no_more_than_the_setting_allows",),
    ),
    Mutant(
        "pages of a list never get into pages of the next level",
        "the list of a log with many ledgers gets too long for the store",
        "most = 2 * rows_max + OPEN_MAX if level == 0 else rows_max",
        "most = 2 * rows_max + OPEN_MAX if level == 0 else 10**9",
        (f"{_PAGES}::test_a_log_of_any_length_keeps_a_short_list_and_all_segments",),
    ),
    Mutant(
        "a segment that is open gets into a page",
        "where it ends is never known, and the log can't be opened any more",
        "most = 2 * rows_max + OPEN_MAX if level == 0 else rows_max",
        "most = 0 if level == 0 else rows_max",
        (f"{_PAGES}::test_open_segments_stay_in_the_list",),
    ),
    Mutant(
        "the number of a page is used again",
        "a page that the list refers to is replaced by another one: ledgers are forgotten",
        "    next_page = log_list.next_page + len(pages)\n",
        "    next_page = log_list.next_page + 1\n",
        (
            f"{_PAGES}::test_writing_it_all_at_once_makes_the_same_segments",
            f"{_PAGED}::test_a_large_write_is_done_in_small_transactions",
        ),
    ),
    Mutant(
        "any page is taken for the one that the list refers to",
        "after a mistake of an operator's, readers get entries of other positions",
        "if page.uid != uid or not page.rows or page.reference() != ref:",
        "if not page.rows:",
        (f"{_PAGES}::test_what_is_not_the_page_is_refused",),
    ),
    Mutant(
        "pages are written ahead whatever the list is by then",
        "a page that another list refers to already is changed",
        "result = await attempt(store.multi([unchanged, *operations]))",
        "result = await attempt(store.multi([*operations]))",
        (f"{_PAGED}::test_a_refused_large_write_changes_no_page",),
    ),
    Mutant(
        "what was written ahead isn't looked at when the list is written",
        "the list refers to pages that another client has replaced meanwhile",
        "operations.append(Check(path, found[1]))",
        "pass",
        (f"{_PAGED}::test_of_two_large_writes_at_once_one_is_refused_and_its_pages_do_no_harm",),
    ),
    Mutant(
        "a large write is one transaction",
        "ZooKeeper refuses it, and the log can't be written any more",
        "if sum(map(_size, operations)) > room:",
        "if False:",
        (f"{_PAGED}::test_a_large_write_is_done_in_small_transactions",),
    ),
    Mutant(
        "a page is deleted before its ledgers",
        "ledgers are forgotten when that is cut short",
        """        problem = await self._delete_ledgers(ledger_ids, gone)
        if problem is not None:
            if not""",
        """        if ref.end_position <= end:
            node = f"{pages_path(self._logs.root, name, log_list.uid)}/{ref.number}"
            _check_done(await delete_certainly(self._store, node, attempts_max=self._attempts_max))
        problem = await self._delete_ledgers(ledger_ids, gone)
        if problem is not None:
            if not""",
        (f"{_PAGED}::test_what_is_cut_short_anywhere_is_finished_by_the_auditor",),
    ),
    Mutant(
        "a page goes as soon as some of it does",
        "the ledgers behind are forgotten, and their entries can't be found",
        """        if ref.end_position <= end:
            node = f"{pages_path""",
        """        if True:
            node = f"{pages_path""",
        (f"{_PAGED}::test_a_truncation_deletes_ledgers_and_pages",),
    ),
    Mutant(
        "a ledger that can't be deleted goes with its page",
        "nothing names it any more, and it is never deleted",
        "            await self._note_stuck(name, log_list.uid, [i for i in ledger_ids if i not in gone], problem)\n",
        "",
        (f"{_PAGED}::test_a_ledger_that_can_not_be_deleted_keeps_no_page",),
    ),
    Mutant(
        "a ledger that a page names is an orphan",
        "the auditor deletes what the log has",
        "or await self._pages.segment_of(name, log_list, ledger_id) is not None",
        "or any(segment.ledger_id == ledger_id for segment in log_list.segments)",
        (f"{_PAGED}::test_a_ledger_in_a_page_is_no_orphan",),
    ),
    Mutant(
        "a missing page names no ledger",
        "the auditor deletes what an operator could have saved by putting the page back",
        """                page = await self.read(name, log_list.uid, row)
                if (found""",
        """                try:
                    page = await self.read(name, log_list.uid, row)
                except PageMissingError:
                    continue
                if (found""",
        (f"{_PAGED}::test_an_unreadable_page_keeps_every_ledger_that_it_may_name",),
    ),
    Mutant(
        "a walk over pages that fails begins where the page would end",
        "entries are left out, without an error",
        """        rows = all_rows = self._list.rows
        index = index_ending_behind(rows, self.position)
        while""",
        """        rows = all_rows = self._list.rows
        index = index_ending_behind(rows, self.position)
        if index < len(rows) and isinstance(rows[index], PageRef):
            self.position, former = rows[index].end_position, self.position
            await self._pages.read(self._name, self._list.uid, rows[index])
            self.position = former
        while""",
        (f"{_PAGED}::test_a_walk_that_fails_goes_on_where_it_was",),
    ),
    Mutant(
        "a block that was read is lost when the next page can't be",
        "a reader is cancelled once, and never gets some entries",
        """            if block is None:
                await self._begun.popleft().close()
                if not self._begun:
                    await self._ranges.load()
            self._begin_more()
""",
        """            if block is None:
                await self._begun.popleft().close()
            await self._ranges.load()
            self._begin_more()
""",
        (
            f"{_LONG}::test_iterators_over_pages_are_cancelled_and_go_on",
            f"{_LONG}::test_a_lost_page_is_an_error_of_what_it_has_alone",
        ),
    ),
    Mutant(
        "an opener makes its ledger when it has fenced the writer",
        "without enough bookies a client ends the one that works",
        """        created = self._created or await self._parts.create(new_ledger(self._name, log_list, self._producer))
        self._created = created
        ledger_id = created.metadata.ledger_id
        try:
            ends = {
                segment.ledger_id: await closed_end(self._parts, self._password, segment)
                for segment in log_list.open_segments
            }
""",
        """        try:
            ends = {
                segment.ledger_id: await closed_end(self._parts, self._password, segment)
                for segment in log_list.open_segments
            }
            created = self._created or await self._parts.create(new_ledger(self._name, log_list, self._producer))
            self._created = created
            ledger_id = created.metadata.ledger_id
""",
        (f"{_LONG}::test_an_opener_that_gets_nowhere_fences_nobody",),
    ),
    Mutant(
        "openers delete nothing of what earlier ones have left",
        "two programs that take a log from each other fill the metadata store",
        "ready = ready.without_pending_delete(await self._delete_some(log_list.pending_delete))",
        "pass",
        (f"{_LONG}::test_ledgers_of_takeovers_go_with_the_next_openings",),
    ),
    Mutant(
        "a client that is fenced early opens the log again at once",
        "two programs that insist make ten ledgers a second",
        "        await self._parts.turns.wait(self._name)\n",
        "",
        (f"{_LONG}::test_two_writers_that_take_turns_slow_down_and_say_so",),
    ),
    Mutant(
        "the search for orphans goes by pages that were deleted since",
        "such ledgers stay for as long as the auditor does",
        "            with contextlib.suppress(PageMissingError):  # truncated since: the present list tells\n",
        "            with contextlib.suppress(KeyError):  # truncated since: the present list tells\n",
        (f"{_PAGED}::test_an_orphan_goes_though_a_page_of_the_list_as_it_was_is_gone",),
    ),
    Mutant(
        "a listing of a log's ledgers ends when the log is truncated",
        "bkpy log show says that the metadata were lost",
        "                if error.end_position > log_list.first_position:\n                    raise  # the page",
        "                if True:\n                    raise  # the page",
        (f"{_LONG}::test_the_ledgers_of_a_log_are_listed_though_it_is_truncated_meanwhile",),
    ),
    Mutant(
        "a listing of a log's ledgers goes on without a page that was lost",
        "an operator waits for ever",
        "                if error.end_position > log_list.first_position:\n                    raise  # the page",
        "                if False:\n                    raise  # the page",
        (f"{_LONG}::test_the_ledgers_of_a_log_are_listed_though_it_is_truncated_meanwhile",),
    ),
    Mutant(
        "a ledger that can't be maintained ends the search",
        "what deleted logs left is never deleted",
        '            log.exception("failed to maintain ledger %d of log %s", ledger_id, belongs.name)\n',
        "            raise\n",
        (f"{_RARE}::test_a_ledger_that_can_not_be_maintained_and_a_note_that_is_others_hold_up_nothing",),
    ),
    Mutant(
        "what was truncated in an open ledger of a log is never deleted",
        "the ledger takes its space until somebody truncates the log again",
        "        left = log_list.truncated(log_list.first_position) != log_list  #",
        "        left = False  #",
        (f"{_ROLLING}::test_a_ledger_that_is_truncated_while_it_is_open_goes_once_the_log_has_rolled",),
    ),
    Mutant(
        "a write of a log's list that was done counts as one that lost",
        "a truncation that was done raises where one conflict is allowed",
        "if not finished.pending_delete and not finished.pages_pending:\nreturn finished\n",
        "",
        ("tests/unit/log/test_taking_out.py::test_what_meets_no_conflict_is_done_at_the_first_try",),
    ),
    Mutant(
        "a log that is gone is looked for once more",
        "a deletion that was done raises where one conflict is allowed",
        "_check_done(outcome)\nif isinstance(outcome, Gone):\nreturn\n",
        "_check_done(outcome)\n",
        ("tests/unit/log/test_taking_out.py::test_what_meets_no_conflict_is_done_at_the_first_try",),
    ),
    Mutant(
        "a truncation needs a page that has nothing for it",
        "a log whose first page was lost can't be read from its beginning, nor truncated to the page's end",
        "                    if any(position < before for position in consumers.values()):\n",
        "                    if True:\n",
        ("tests/unit/log/test_paged_log.py::test_a_log_is_truncated_up_to_the_end_of_a_lost_page",),
    ),
]
