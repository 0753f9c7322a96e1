"""Defects in what is written of named logs, and in what is taken out of them."""

from __future__ import annotations

from tests.mutants import Mutant

_LISTS = "tests/unit/metadata/logs/test_log_lists.py"
_CONSUMERS = "tests/unit/metadata/logs/test_log_consumers.py"
_MAINTENANCE = "tests/unit/metadata/logs/test_log_maintenance.py"
_RETENTION = "tests/unit/protocol/log/test_log_retention.py"
_KEEPER = "tests/unit/log/test_log_keeper.py"

MUTANTS: list[Mutant] = [
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
        "behind = sum(segment.payload_bytes for segment in log_list.segments)",
        "behind = sum(segment.length for segment in log_list.segments)",
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
        "self.store, path, data, expected_version, same, *checks, attempts_max=self._attempts_max",
        "self.store, path, data, expected_version, *checks, attempts_max=self._attempts_max",
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
        "outcome = await self._catalog.delete(metadata.ledger_id, unchanged)",
        "outcome = await self._catalog.delete(metadata.ledger_id)",
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
        "if needed is not None and needed < segment.end_position and",
        "if needed is not None and needed <= segment.first_position and",
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
        "        await self._check_end(position)\n        state = ",
        "        state = ",
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
]
