"""Defects in consumers of logs, their leases and their expiry, in polls, and in what proves an acknowledgement."""

from __future__ import annotations

from tests.mutants import Mutant

_CONSUMERS = "tests/unit/metadata/logs/test_log_consumers.py"
_LEASE = "tests/unit/log/test_consumer_lease.py"
_IDLE = "tests/unit/metadata/logs/test_idle_consumers.py"
_EXPIRY = "tests/unit/protocol/log/test_consumer_expiry.py"
_POLL = "tests/unit/log/test_log_poll.py"
_ACKNOWLEDGED = "tests/unit/log/test_acknowledged.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "a write of the list checks any number of idle consumers",
        "the log grows, and the error speaks of a request that is too long for ZooKeeper",
        "                self._logs.check_checks(name, checks, said)\n",
        "",
        (f"{_IDLE}::test_too_many_that_are_idle_for_one_write_of_the_list_are_an_error_that_says_so",),
    ),
    Mutant(
        "a commit doesn't check the lease",
        "a client whose session was lost commits beside its successor",
        "lease = [Check(self._lease_path(consumer), 0)] if leased else []",
        "lease: list[Check] = []",
        (f"{_CONSUMERS}::test_a_lease_that_ends_at_any_time_ends_the_commits",),
    ),
    Mutant(
        "a client without a lease commits while another one has it",
        "two processes work on the same entries, and one of them believed that it is alone",
        "if known.state is not None and known.state.lease and not leased:",
        "if False:",
        (f"{_CONSUMERS}::test_one_client_at_a_time_has_the_lease",),
    ),
    Mutant(
        "a lease is taken that another client has",
        "both commit in turn, and each refuses the other",
        """            await self._check_free(consumer)
            state = dataclasses.replace""",
        """            state = dataclasses.replace""",
        (f"{_CONSUMERS}::test_of_two_that_want_the_lease_one_gets_it",),
    ),
    Mutant(
        "a lease whose end fails is kept",
        "a process that goes on locks itself out of its consumer for good",
        "    except (BookKeeperError, asyncio.CancelledError):\n        _give_up_later(consumers, name, shared)\n",
        "    except (BookKeeperError, asyncio.CancelledError):\n",
        (f"{_LEASE}::test_an_end_of_a_lease_that_does_not_come_through_is_tried_again",),
    ),
    Mutant(
        "a lease that was taken in vain is kept",
        "nobody can work until the session of a client that works no longer has ended",
        "            _give_up_later(consumers, name, parts.shared)\n            raise\n",
        "            raise\n",
        (f"{_LEASE}::test_taking_a_lease_ended_at_each_wait_leaves_none",),
    ),
    Mutant(
        "a mistyped consumer is registered",
        "retention keeps everything for a consumer that nobody has",
        "        if not create:\n            raise no_such_consumer(log, name)\n",
        "",
        (f"{_LEASE}::test_a_mistyped_name_keeps_nothing",),
    ),
    Mutant(
        "retention without a consumer doesn't check that it is idle still",
        "entries go that a consumer which has come back has not read",
        "                checks += [registered.checks[consumer] for consumer in sorted(gone)]\n",
        "",
        (f"{_IDLE}::test_one_that_commits_just_then_is_waited_for",),
    ),
    Mutant(
        "time counts that another process has counted",
        "with two keepers a consumer expires in half the time",
        "if before is not None and (before.uid, before.version) == (log_list.uid, version):",
        "if before is not None:",
        (f"{_IDLE}::test_two_keepers_at_once_count_no_time_twice",),
    ),
    Mutant(
        "idleness goes by the wall clock",
        "a clock that jumps expires consumers that are at work",
        "now = self._logs.monotonic()",
        "now = self._logs.now_ms() / 1000",
        (f"{_IDLE}::test_a_clock_that_jumps_expires_nobody",),
    ),
    Mutant(
        "a pass that comes late counts all of its delay",
        "an outage that kept the consumer from its commits expires it",
        "elapsed_s = min(now - before.at, settings.log_idle_intervals_max * settings.log_retention_interval_s)",
        "elapsed_s = now - before.at",
        (f"{_IDLE}::test_a_keeper_that_slept_counts_no_more_than_two_intervals",),
    ),
    Mutant(
        "a consumer that has read everything is idle",
        "it expires as soon as an entry comes",
        "if log_list.behind(state.position) < log_list.sealed_end",
        "if True",
        (f"{_IDLE}::test_time_with_nothing_to_read_does_not_count",),
    ),
    Mutant(
        "a commit doesn't end the idle time",
        "a slow consumer expires though it works",
        "same = known is not None and known.mark == mark",
        "same = known is not None",
        (f"{_EXPIRY}::test_only_time_in_one_state_with_something_to_read_counts",),
    ),
    Mutant(
        "a poll drops what is beyond its bound",
        "entries are missing from what polls return",
        "            found = list(islice(self._entries, entries_max))\n            if not found:",
        "            found = list(self._entries)[:entries_max]\n            if not found:",
        (f"{_POLL}::test_a_poll_returns_what_there_is_and_waits_for_more",),
    ),
    Mutant(
        "a position of another log is believed",
        "a reader returns entries that were never acknowledged, and a consumer commits them",
        "if confirmed.log_uid != self.uid:",
        "if False:",
        (f"{_ACKNOWLEDGED}::test_a_position_of_another_log_or_ledger_is_refused",),
    ),
    Mutant(
        "an entry is believed to be there whose loss was accepted",
        "a consumer commits what it can't have read",
        "if not reader.closed or entry_id <= reader.last_add_confirmed:",
        "if True:",
        (f"{_ACKNOWLEDGED}::test_an_entry_whose_loss_was_accepted_is_refused",),
    ),
    Mutant(
        "a consumer commits what a caller claims",
        "retention deletes entries that nobody has read",
        "self._claimed = max(self._claimed, position)",
        "self.proved = max(self.proved, position)",
        (f"{_ACKNOWLEDGED}::test_a_consumer_commits_what_is_proved_and_no_more",),
    ),
    Mutant(
        "an idle writer of a log publishes later",
        "readers see its last entries a fifth of a second late",
        """            if self._may_publish and batcher.confirmed_entries == batcher.next_id:
                self._publish_soon()
            return
""",
        "            return\n",
        (f"{_ACKNOWLEDGED}::test_an_idle_writer_publishes_at_once",),
    ),
    Mutant(
        "a position proves an entry of whichever ledger has that position now",
        "a reader goes on behind entries that the log does not have",
        "(found.ledger_id, found.first_position) == (appended.ledger_id, appended - entry_id):\n",
        "True:\n",
        (f"{_ACKNOWLEDGED}::test_a_position_proves_nothing_of_another_ledger_that_has_it_now",),
    ),
    Mutant(
        "a consumer that takes its lease is no longer idle",
        "a process that fails at each start keeps the log's entries for ever",
        '    return f"{state.position}-{state.since_ms}"\n',
        '    return f"{state.position}-{state.since_ms}-{state.token}"\n',
        (
            "tests/unit/metadata/logs/test_idle_consumers.py"
            "::test_one_that_takes_its_lease_again_and_again_and_commits_nothing_is_idle",
        ),
    ),
    Mutant(
        "a consumer doesn't know that it was deleted",
        "its commit blames another process",
        "await self._consumers.delete(self._name)\nself._deleted = True",
        "await self._consumers.delete(self._name)",
        ("tests/unit/log/test_log_consumer.py::test_a_consumer_goes_on_where_it_was",),
    ),
    Mutant(
        "a writer looks for a time among what bookies know to be acknowledged",
        "a consumer at a time gets entries that are older",
        "            await self._confirm(reader)\n            return await reader.position_at(time)\n",
        "            return await reader.position_at(time)\n",
        ("tests/unit/log/test_log_consumer.py::test_a_writers_consumer_at_a_time_begins_behind_all_older_entries",),
    ),
]
