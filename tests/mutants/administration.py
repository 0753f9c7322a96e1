"""Defects in what the public client for administration does."""

from __future__ import annotations

from tests.mutants import Mutant

_TESTS = "tests/unit/admin/test_admin_client.py::"

MUTANTS: list[Mutant] = [
    Mutant(
        "a recovery of a bookie goes on though the bookie is back",
        "the writers that the bookie serves are fenced after the grace period",
        "while len(queue) and not working.done() and not self._registered() and",
        "while len(queue) and not working.done() and",
        (_TESTS + "test_a_bookie_that_comes_back_ends_its_recovery",),
    ),
    Mutant(
        "a recovery of a bookie goes on though its client is closed",
        "a service that is to end waits for ever",
        " and not self._registered() and not directory.closed:",
        " and not self._registered():",
        (_TESTS + "test_a_recovery_ends_with_its_client",),
    ),
    Mutant(
        "a recovery of a bookie names only the stuck ledgers that its worker remembers",
        "the operator takes ledgers that still miss copies for completed",
        "stuck={ledger_id: stuck.get(ledger_id, FORGOTTEN) for ledger_id in queue.left},",
        "stuck=stuck,",
        (_TESTS + "test_each_ledger_that_is_left_is_named_however_many_a_worker_remembers",),
    ),
    Mutant(
        "a recovery of a bookie forgets its target",
        "copies fill bookies that the operator wanted to spare",
        "self._context, queue, locks, self._runtime, self._settings, name, target=self._target",
        "self._context, queue, locks, self._runtime, self._settings, name",
        (_TESTS + "test_all_copies_go_to_the_target",),
    ),
    Mutant(
        "a recovery of a bookie ignores ledgers with unreadable metadata",
        "the operator erases the disks of a bookie that a ledger may still need",
        "                if metadata is None:\n"
        "                    unreadable.append(ledger_id)\n"
        "                elif self._bookie_id in metadata.needed_bookies:\n",
        "                if metadata is not None and self._bookie_id in metadata.needed_bookies:\n",
        (_TESTS + "test_ledgers_with_unreadable_metadata_are_reported",),
    ),
    Mutant(
        "a dry run of a rebalance moves copies",
        "a command that only shows a plan loads the cluster",
        "await one.only_plan(balance)",
        "await one.run(balance)",
        (_TESTS + "test_a_new_bookie_gets_its_share",),
    ),
    Mutant(
        "an accepted loss closes a ledger earlier than what was confirmed",
        "entries that the operator was shown as kept are lost",
        "await (await self._context.recovery_giving_up(ledger_id, password, last_entry)).run()",
        "await (await self._context.recovery_giving_up(ledger_id, password, -1)).run()",
        (_TESTS + "test_no_more_is_given_up_than_the_caller_accepts",),
    ),
    Mutant(
        "a truncation counts only entries of sealed ledgers",
        "entries of a log's open ledger can't be truncated",
        "name, int(before), end=reader.next_position, uid=reader.uid, ignore_consumers=ignore_consumers",
        "name, int(before), uid=reader.uid, ignore_consumers=ignore_consumers",
        (_TESTS + "test_a_log_is_created_described_and_truncated",),
    ),
    Mutant(
        "a draining with a damaged value hides the node below it",
        "nobody can cancel it, or decommission the bookie: a node with others below it can't be deleted",
        "if value is None and len(below := await children_if_there(self._store, path)) == 1:",
        "if value is None and (below := []):",
        (
            "tests/unit/metadata/bookies/test_drains.py::test_a_draining_whose_value_is_damaged_ends_with_the_node_below",
        ),
    ),
    Mutant(
        "an import ends at the first ledger whose metadata it may not read",
        "all ledgers behind that one stay in the other cluster",
        "                except UNREADABLE:\n                    closed = True\n",
        "                except UNREADABLE[:2]:\n                    closed = True\n",
        (
            "tests/unit/admin/test_ledger_import.py::"
            "test_a_ledger_that_the_import_may_not_read_is_named_and_stops_no_other",
        ),
    ),
]
