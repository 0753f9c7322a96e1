"""Defects in the creation of ledgers without a bookie, and in what makes them whole."""

from __future__ import annotations

from tests.mutants import Mutant

_ABSENT = "tests/unit/client/write/test_absent_bookies.py::"
_RECORDS = "tests/unit/metadata/replication/test_underreplication.py::"
_WHOLE = _ABSENT + "test_three_bookies_are_enough_for_a_new_ledger_while_one_is_away"

MUTANTS: list[Mutant] = [
    Mutant(
        "too few bookies of a write set are there",
        "no recovery can end without the absent bookie",
        "return max(ack_quorum, write_quorum - ack_quorum + 1)",
        "return ack_quorum",
        (
            "tests/unit/protocol/ledger/test_quorum.py::test_an_ensemble_is_arranged_whenever_that_can_be",
            _ABSENT + "test_enough_of_each_write_set_are_there",
        ),
    ),
    Mutant(
        "a ledger is created with absent bookies and no record",
        "it stays under-replicated when its bookie is back",
        "others = (id_node, *marks.nodes_of(ledger_id, lost), *(op for one in absent for op in self._stays(one)))",
        "others = (id_node, *(op for one in absent for op in self._stays(one)))",
        (_WHOLE,),
    ),
    Mutant(
        "a creation doesn't check that its absent bookie is known",
        "it names a bookie that was decommissioned meanwhile",
        "            Check(paths.cookie(self._root, bookie.bookie_id), bookie.cookie_version),\n",
        "            Check(self._root, 0),\n",
        (_ABSENT + "test_the_creating_transaction_checks_the_absent_bookie",),
    ),
    Mutant(
        "a creation doesn't check that its absent bookie stays",
        "a decommissioning whose scan has begun misses the ledger",
        '            Create(draining, b""),\n            Delete(draining),\n',
        "",
        (_ABSENT + "test_the_creating_transaction_checks_the_absent_bookie",),
    ),
    Mutant(
        "a creation makes one of the nodes above it for each attempt",
        "the first ledger of a cluster without a bookie is refused where one attempt is allowed",
        "for _ in range(self._attempts_max * len(above)):",
        "for _ in range(self._attempts_max):",
        (_ABSENT + "test_one_attempt_makes_all_that_the_first_such_ledger_needs",),
    ),
    Mutant(
        "absent bookies are taken before present ones",
        "a creation fails though enough bookies are there",
        "                avoid = frozenset(absent)\n",
        "",
        (_ABSENT + "test_all_present_bookies_are_taken_before_any_absent_one",),
    ),
    Mutant(
        "ledgers with deferred sync get absent bookies",
        "force never succeeds",
        "allow_absent=allow_absent and not new.deferred_sync,",
        "allow_absent=allow_absent,",
        (_ABSENT + "test_a_caller_may_refuse_absent_bookies",),
    ),
    Mutant(
        "a return ends the record of an absent bookie",
        "a ledger that was created without it stays under-replicated",
        "        if not never_had:\n            return await self.remove(record, bookie_ids)\n",
        "        return await self.remove(record, bookie_ids)\n",
        (_ABSENT + "test_an_absence_that_the_auditor_ends_leaves_the_record",),
    ),
    Mutant(
        "a merge forgets that a bookie was absent at the creation",
        "the record goes with the next return",
        "absent_at_creation=old.absent_at_creation or new.absent_at_creation,",
        "absent_at_creation=new.absent_at_creation,",
        (
            _RECORDS + "test_a_merge_keeps_that_a_bookie_was_absent_at_the_creation",
            _ABSENT + "test_an_absence_that_the_auditor_ends_leaves_the_record",
        ),
    ),
    Mutant(
        "a bookie is taken in without a new fragment",
        "what it never had is never copied, or is copied from under its writer",
        "if self.confirmed + 1 > self.metadata.fragments[-1].first_entry and not await self._begin_fragment(came):",
        "if False:",
        (_WHOLE,),
    ),
    Mutant(
        "what is under way is not sent to a bookie that is taken in",
        "what the others acknowledge while the fragment is stored is under-replicated, and nothing says so",
        "        if begun:\n            self._take_in(came)",
        "        if False:\n            self._take_in(came)",
        (_ABSENT + "test_what_is_under_way_when_a_bookie_is_taken_in_is_sent_to_it",),
    ),
    Mutant(
        "pending entries are not sent to a bookie that is taken in",
        "the new fragment is under-replicated, and nothing says so",
        "        self._send_to(came)\n",
        "        for name in came:\n            self._failed.pop(name, None)\n",
        (_ABSENT + "test_pending_entries_are_sent_to_a_bookie_that_is_taken_in",),
    ),
    Mutant(
        "an idle writer waits for its absent bookie for ever",
        "its first fragment never ends",
        "            if change is None and back:\n                change = writer.take_in(back)\n",
        "",
        (_ABSENT + "test_nothing_is_to_be_copied_where_nothing_was_acknowledged_before",),
    ),
    Mutant(
        "an idle writer waits for an absent bookie though another one is there",
        "a worker ends the writer",
        "(bookie_id in never_came or now - absent_since[bookie_id] >= after_s)",
        "now - absent_since[bookie_id] >= after_s",
        (_ABSENT + "test_another_bookie_takes_the_place_if_one_comes_first",),
    ),
    Mutant(
        "a record says nothing of where an absent bookie was taken in",
        "an open ledger's record stays until it is closed, and its first fragment is read again and again",
        "leave = [i for i, name in enumerate(names) if name in leaving and first < whole_from.get(name, first + 1)]",
        "leave = [i for i, name in enumerate(names) if name in leaving]",
        (_WHOLE,),
    ),
    Mutant(
        "a writer takes back what a check has found",
        "entries that are missing on a bookie stay so",
        "if not loss.absent_at_creation or loss.reason not in _AWAY:",
        "if not loss.absent_at_creation:",
        (_ABSENT + "test_a_writer_takes_back_no_other_reason",),
    ),
    Mutant(
        "a repair goes by bookies that came or went during it",
        "a ledger stays under-replicated though the bookie that misses its entries is back",
        "        if ended.how is RepairOutcome.STUCK and ended.bookies != bookies:\n",
        "        if False:\n",
        (
            "tests/unit/replication/worker/test_repair_in_place.py"
            "::test_a_bookie_that_is_away_for_just_that_moment_gets_its_entries",
        ),
    ),
]
