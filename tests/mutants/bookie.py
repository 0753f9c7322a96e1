"""Defects of a bookie's connections: what they hold, how they are refused, and what their requests are decided by."""

from __future__ import annotations

from tests.mutants import Mutant

_BAD = "tests/unit/bookie/connection/test_bad_requests.py"
_COLLECTOR = "tests/unit/bookie/test_collector.py"
_CROWDS = "tests/unit/bookie/connection/test_crowds.py"
_DECISIONS = "tests/unit/protocol/repair/test_garbage_collection.py"
_KEYS = "tests/unit/bookie/connection/test_keys_in_order.py"
_WAITING = "tests/unit/bookie/connection/test_waiting_requests.py"
_MEMORY = "tests/unit/bookie/test_memory_bounds.py"
_BUDGET = "tests/unit/protocol/wire/test_receive_budget.py"
_STOPPING = "tests/unit/bookie/test_stopping.py"
_PHASES = "tests/unit/bookie/test_phases.py"
_CLOSE = """\
try:
    await self._phases[-1].close()
except Exception as error:
    first = first or error
self._phases.pop()"""

_IDENTITY = "tests/unit/bookie/test_identity_commands.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "a bookie whose disk fails while it stops has stopped in order",
        "its status is 0, and nobody looks at the disk",
        "if error is None and self.failed.done() and not had_failed:",
        "if False:",
        (f"{_STOPPING}::test_a_stop_in_which_a_disk_fails_is_none_in_order[journal]",),
    ),
    Mutant(
        "a failure while a bookie stops waits for somebody to take it",
        "its log ends with a traceback beside the error that says the same",
        "self.failed.add_done_callback(lambda done: done.cancelled() or done.exception())  # a stop has no waiter",
        "pass",
        (f"{_STOPPING}::test_a_stop_in_which_a_disk_fails_is_none_in_order[ledgers]",),
    ),
    Mutant(
        "appends that wait charged for ever when their connection ends",
        "clients that come and go use up what a bookie receives into, and it takes nothing any more",
        "self._service.receive_budget.change(-self.backlog.popleft()[0])",
        "self.backlog.popleft()",
        (f"{_WAITING}::test_what_waits_for_the_states_of_ledgers_is_charged_until_it_ends",),
    ),
    Mutant(
        "a look at a socket that is closed already ends the watch over all clients",
        "clients that stall are never disconnected again, and keep what they hold of the bookie's memory",
        "except (OSError, ValueError):  # uvloop's has a negative descriptor then",
        "except KeyError:",
        (
            "tests/unit/bookie/connection/test_tls.py::"
            "test_a_client_that_goes_while_it_is_not_read_ends_no_watch_over_the_others",
        ),
    ),
    Mutant(
        "appends that wait without a bound of their number",
        "one client makes a bookie hold any number of frames",
        "if len(self.backlog) + self._undecided >= self._frames_max or budget.exhausted:",
        "if budget.exhausted:",
        (f"{_WAITING}::test_a_connection_whose_appends_wait_is_read_no_further_than_its_bound",),
    ),
    Mutant(
        "a bad append that waited charged for ever",
        "a client's mistakes use up what a bookie receives into, and it takes nothing any more",
        "finally:\n    self._service.receive_budget.change(-size)",
        "else:\n    self._service.receive_budget.change(-size)",
        (f"{_WAITING}::test_a_bad_append_that_waited_is_not_charged_any_longer",),
    ),
    Mutant(
        "requests of one connection without a bound",
        "one client takes all that a bookie serves at once",
        "pending, bound = self.in_flight - self._long_polls, self._settings.requests_in_flight_max",
        "pending, bound = 0, self._settings.requests_in_flight_max",
        (f"{_WAITING}::test_what_one_connection_waits_for_is_bounded_beside_its_long_polls",),
    ),
    Mutant(
        "the fence of a ledger never seen answered before it is durable",
        "a recovery counts on a fence that a power cut takes back, and the writer goes on",
        "state = self._storage.create(ledger_id, claim.key)",
        "state = self._storage.create(ledger_id, claim.key)\nstate.fenced = True\nself._storage.fenced.add(ledger_id)",
        (f"{_WAITING}::test_a_fence_of_a_ledger_never_seen_is_answered_when_it_is_durable",),
    ),
    Mutant(
        "a bad request hangs up",
        "one bad argument of a reader takes the bookie from all writers of its client",
        "            self.bad_request(frame, e)",
        "            self.refuse(e)",
        (f"{_BAD}::test_no_head_ends_a_connection_or_goes_unanswered",),
    ),
    Mutant(
        "a bad append is answered like other requests",
        "a client takes [status, message] for the statuses of two batches",
        "head = m.pack(status if frame.opcode == Op.ADD else [status, str(error)])",
        "head = m.pack([status, str(error)])",
        (_BAD,),
    ),
    Mutant(
        "flags of an append that nobody knows are ignored",
        "a newer client is told that what it asked for was done",
        "        and not flags & _ADD_FLAGS_UNKNOWN",
        "        and flags is not None",
        (_BAD,),
    ),
    Mutant(
        "whoever is there longest is closed when strangers are too many",
        "a port scan takes the places of clients",
        "            oldest = next(iter(self._new_connections))",
        "            oldest = next(iter(self._connections))",
        (f"{_CROWDS}::test_those_who_never_introduced_themselves_go_first_the_oldest_of_all",),
    ),
    Mutant(
        "a client that is refused isn't told",
        "an error that doesn't say that the bookie is full",
        "            return Status.TOO_MANY_REQUESTS, reason",
        '            connection.abort()\n            return Status.TOO_MANY_REQUESTS, ""',
        (f"{_CROWDS}::test_who_comes_when_all_places_are_taken_is_told_why",),
    ),
    Mutant(
        "the kernel isn't asked to watch",
        "clients that vanish take up connections for ever",
        "    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)",
        "    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)",
        (f"{_CROWDS}::test_the_kernel_watches_over_accepted_connections",),
    ),
    Mutant(
        "a fence is set whatever key the ledger has by now",
        "a stranger fences a ledger whose key it doesn't have",
        'if info is not None and info.key not in (key, b""):',
        "if info is not None and info.gone:",
        (f"{_KEYS}::test_a_ledger_is_fenced_by_its_own_key_only",),
    ),
    Mutant(
        "keys count from their arrival",
        "a wrong key presented later refuses the appends before it",
        "        self._arrived.update(zip(present.ledger_ids, present.keys, strict=True))",
        "        self._taken.update(zip(present.ledger_ids, present.keys, strict=True))",
        (f"{_KEYS}::test_a_key_presented_later_does_not_change_what_came_before",),
    ),
    Mutant(
        "nobody goes on when all wait for each other",
        "a few clients with half a frame each stop a bookie for good",
        "            if self.used - had + size > self.bytes_max and self.used > self._held:",
        "            if self.used - had + size > self.bytes_max:",
        (f"{_BUDGET}::test_the_budget_holds_and_everybody_goes_on",),
    ),
    Mutant(
        "who is closed stays in line",
        "memory that nobody uses is never given back",
        "            self._budget.leave(self, self.charged)",
        "            pass",
        (f"{_BUDGET}::test_who_waits_and_is_closed_leaves_the_line",),
    ),
    Mutant(
        "stalled holders of memory are waited for as long as others",
        "hung clients keep everybody else from sending large frames",
        "            under_pressure = bool(receive.charged) and self._service.receive_budget.wanted",
        "            under_pressure = False",
        (f"{_MEMORY}::test_hung_clients_with_half_frames_hold_little_and_nobody_waits_for_them_for_ever",),
    ),
    Mutant(
        "a byte now and then is progress enough",
        "a few clients keep everybody else from sending large frames, as long as they like",
        "settings.memory_pressure_bytes_per_s_min * allowed_s if under_pressure and allowed_s is not None else 1",
        "1",
        (f"{_MEMORY}::test_who_sends_a_byte_now_and_then_keeps_nobody_waiting_for_long",),
    ),
    Mutant(
        "newcomers who write are read from while memory is full",
        "memory grows with every client that comes back",
        "                if self.service.storage.full:  # now that the client is known to write",
        "                if False:",
        (f"{_MEMORY}::test_while_memory_is_full_who_writes_is_not_read_from_and_who_reads_is",),
    ),
    Mutant(
        "answers count as read when they were sent",
        "clients that read nothing fill the memory",
        "                if self._writable.is_set():",
        "                if True:",
        (f"{_WAITING}::test_answers_that_are_not_read_are_bounded_over_all_connections_and_end",),
    ),
    Mutant(
        "connections get the files that the storage needs",
        "a bookie with many clients ends at the next file of its journal",
        "    left = files_max - storage_files(settings)",
        "    left = files_max",
        ("tests/unit/bookie/test_files.py",),
    ),
    Mutant(
        "a listing that failed is an empty one",
        "with the second look gone as well, a bookie deletes everything when ZooKeeper is away",
        'run.fail("listing", f"the metadata could not be listed: {error}")\n            return',
        "listed = set()",
        (f"{_COLLECTOR}::test_a_listing_that_fails_collects_nothing_of_its_page",),
    ),
    Mutant(
        "a ledger in limbo counts as one with entries",
        "one stranger's key for an id to come ends the collection of a bookie that has lost its disks, until a restart",
        "return info is not None and self.shards[info.shard].highest(info) >= 0",
        "return info is not None and (info.limbo or self.shards[info.shard].highest(info) >= 0)",
        (f"{_COLLECTOR}::test_a_key_for_an_id_to_come_proves_nothing_where_data_were_lost",),
    ),
    Mutant(
        "a store that hasn't given out a ledger's id yet is believed",
        "ZooKeeper is restored from a backup, and ledgers that are newer are deleted everywhere",
        "return ProbeState.NOT_MADE if empty else ProbeState.OLDER",
        "return ProbeState.NOT_MADE if empty else ProbeState.NO_LEDGER",
        (
            f"{_DECISIONS}::test_a_store_that_would_give_out_the_id_of_a_ledger_that_is_here_is_older",
            f"{_COLLECTOR}::test_in_a_store_that_was_put_back_nothing_is_collected",
        ),
    ),
    Mutant(
        "a change of the interval of collections is reported, and not gone by",
        "an operator shortens or ends collections, and the bookie goes on as before",
        "Interval(runtime.clock, lambda: settings.gc_interval_s)",
        "Interval(runtime.clock, lambda first=settings.gc_interval_s: first)",
        (
            "tests/unit/bookie/test_collector.py::test_its_interval_may_change_while_it_runs",
            "tests/unit/bookie/test_collector.py::test_an_interval_may_come_and_shrink_while_it_waits",
        ),
    ),
    Mutant(
        "a run goes by probes of several sessions",
        "ZooKeeper is restored from a backup while a bookie collects, which deletes what is newer",
        "if seen.session not in (0, run.session):",
        "if False:",
        (f"{_COLLECTOR}::test_a_run_that_a_store_is_put_back_under_collects_nothing",),
    ),
    Mutant(
        "an older store is forgotten with the run that found it",
        "clients create ledgers until the store looks new again, and what is newer than the backup is deleted",
        "            why = self._older = why + _OLDER",
        "            why = why + _OLDER",
        (f"{_COLLECTOR}::test_in_a_store_that_was_put_back_nothing_is_collected",),
    ),
    Mutant(
        "what was hidden and has to stay isn't seen again",
        "reads of a ledger that nobody deleted can't be answered until the bookie is started again",
        "if action is not Action.DELETE:\n            hidden.unhide()",
        "if action is not Action.DELETE:",
        (f"{_COLLECTOR}::test_what_changes_behind_the_hiding_is_seen",),
    ),
    Mutant(
        "a change of the metadata behind the hiding is passed over",
        "a worker has swapped the bookie in, and its copy is deleted",
        "if not own_lock or (step is Step.HIDDEN and not unchanged):",
        "if not own_lock:",
        (
            f"{_DECISIONS}::test_what_is_not_sure_keeps_the_ledger",
            f"{_COLLECTOR}::test_what_changes_behind_the_hiding_is_seen",
        ),
    ),
    Mutant(
        "a copy counts as spare before its ledger is closed",
        "a recovery has stored entries here, and its closing write names a bookie that denies them",
        "return ProbeState.OVER_REPLICATED if metadata.state is LedgerState.CLOSED else ProbeState.NOT_CLOSED",
        "return ProbeState.OVER_REPLICATED",
        (f"{_COLLECTOR}::test_a_copy_of_a_ledger_that_is_not_closed_stays",),
    ),
    Mutant(
        "bookie on another machine not looked for",
        "cookies are changed, or deleted, under a bookie that serves",
        "if await read_certainly(self._store, paths.available(self._root, bookie_id, read_only=read_only)):",
        "if False:",
        (f"{_IDENTITY}::test_nothing_is_changed_while_the_bookie_runs",),
    ),
    Mutant(
        "journal directory taken for another's",
        "a bookie comes up on journals that aren't its own, and denies what it acknowledged",
        "elif changing or (number, path) not in certain:",
        "elif changing:",
        (f"{_IDENTITY}::test_what_an_update_cannot_prove_it_refuses",),
    ),
    Mutant(
        "number of journals changed with something to replay",
        "entries that were acknowledged are lost",
        "self._check_journal(path, number, mark, clean=changing)",
        "self._check_journal(path, number, mark, clean=False)",
        (f"{_IDENTITY}::test_the_number_of_journals_stays_after_an_unclean_stop",),
    ),
    Mutant(
        "indexes stay when all else is removed",
        "a bookie comes up on an index whose entries are gone",
        "for here in found.values():\n    if here.indexes:",
        "for here in []:\n    if here.indexes:",
        (f"{_IDENTITY}::test_formatting_counts_asks_and_deletes_what_is_the_bookies",),
    ),
    Mutant(
        "a start that fails leaves its phases open",
        "the bookie stays registered, and its directories locked, though it serves nobody",
        "error = await self._close()\nif error is not None:\n    log.warning(",
        "error = None\nif error is not None:\n    log.warning(",
        (f"{_PHASES}::test_a_start_that_fails_in_its_last_phase_leaves_nothing_and_no_registration",),
    ),
    Mutant(
        "phases are closed in the order in which they were opened",
        "another process takes the id of a bookie that still has its directories",
        _CLOSE,
        _CLOSE.replace("[-1]", "[0]").replace("pop()", "pop(0)"),
        (f"{_PHASES}::test_the_registration_ends_after_the_storage_which_ends_after_the_server",),
    ),
    Mutant(
        "a phase that fails to close keeps the others open",
        "a bookie with a bad disk stays registered as long as its session lasts",
        "except Exception as error:\n    first = first or error\nself._phases.pop()",
        "except Exception:\n    raise\nself._phases.pop()",
        (f"{_PHASES}::test_the_registration_ends_after_the_storage_which_ends_after_the_server",),
    ),
    Mutant(
        "a stop that was cancelled takes the phase for closed",
        "tasks and threads of a bookie go on in a program that has stopped it",
        _CLOSE,
        _CLOSE.replace("self._phases[-1].close", "self._phases.pop().close").removesuffix("\nself._phases.pop()"),
        (f"{_PHASES}::test_a_stop_that_was_cancelled_goes_on_where_it_was",),
    ),
    Mutant(
        "what runs beside a bookie is forgotten when its stop is cancelled",
        "an auditor goes on in a program that has stopped its bookie",
        "except BaseException:\n    services.append(service)\n    raise",
        "except BaseException:\n    raise",
        (f"{_PHASES}::test_a_stop_that_was_cancelled_goes_on_where_it_was",),
    ),
    Mutant(
        "a gauge's values lose their labels",
        "the page of metrics has several values of one name, of which nobody knows what they are",
        "family.add_metric(label, value())",
        "family.add_metric((), value())",
        ("tests/unit/runtime/test_metric_set.py::test_a_gauge_is_asked_at_each_scrape",),
    ),
    # --- stopping ---------------------------------------------------------------------------------------------------
    Mutant(
        "a stop waits for requests of connections that are still there only",
        "a stop fails requests of lost connections with a RuntimeError, in the log of a bookie that is well",
        "                while self._service.requests_in_flight or any(c.busy for c in self._connections):\n",
        "                while any(c.busy for c in self._connections):\n",
        ("tests/unit/bookie/test_stopping.py::test_a_stop_waits_for_requests_of_connections_that_are_gone",),
    ),
    Mutant(
        "a stop that is not woken by the end of a request of a connection that is gone",
        "each stop takes stop_timeout_s where a client has left in the middle of a request",
        "self._service.requests_in_flight -= 1\nself._service.request_ended()",
        "self._service.requests_in_flight -= 1\nif not self._connection.lost:\n    self._service.request_ended()",
        ("tests/unit/bookie/test_stopping.py::test_a_stop_waits_for_requests_of_connections_that_are_gone",),
    ),
    Mutant(
        "a stop that is cancelled releases the storage",
        "a second stop seems to be a clean one, and without a journal what was in memory is lost",
        "        except asyncio.CancelledError:\n            raise\n        except BaseException:\n",
        "        except BaseException:\n",
        (
            "tests/unit/bookie/test_cancelled_start_and_stop.py::"
            "test_a_stop_that_is_cancelled_and_called_again_is_a_clean_one",
        ),
    ),
    Mutant(
        "a start that is cancelled leaves the mark of a run",
        "the next start puts all ledgers in limbo, although nothing was acknowledged",
        "await storage.put_at_risk(at_risk.NOTHING)",
        "pass",
        ("tests/unit/bookie/test_cancelled_start_and_stop.py::test_a_start_that_is_cancelled_puts_nothing_at_risk",),
    ),
    Mutant(
        "the mark of a run is given up half-way when its start is cancelled",
        "the next start puts all ledgers in limbo, although nothing was acknowledged",
        'asyncio.shield(self._runtime.spawn(self._put_at_risk(mark), name="mark of the run", on_death=self.fail))',
        "self._put_at_risk(mark)",
        ("tests/unit/bookie/test_cancelled_start_and_stop.py::test_a_start_that_is_cancelled_puts_nothing_at_risk",),
    ),
    Mutant(
        "workers are waited for though their event loop has ended",
        "a collection that ends with its event loop fails with an error, in the log of a bookie that is well",
        "    except GeneratorExit:\n        raise  # the event loop has ended",
        "    except GeneratorExit:\n        await asyncio.wait(workers)  # the event loop has ended",
        ("tests/unit/runtime/test_worker_pool.py::test_the_end_of_the_event_loop_is_no_error",),
    ),
    Mutant(
        "a connection takes what its loop hands on while it is closed",
        "adds behind a frame that ends the connection are stored, and nobody hears of it",
        "        if self._closing:\n            return  # asyncio's TLS hands on what it has decrypted\n"
        "        self.received_bytes += nbytes\n        try:",
        "        self.received_bytes += nbytes\n        try:",
        ("tests/unit/bookie/connection/test_tls.py::test_adds_behind_a_frame_that_ends_the_connection_are_not_stored",),
    ),
    Mutant(
        "long polls get all places",
        "as long as enough readers wait for news, no ledger is read or recovered",
        "(most // 2 if long_poll else most)",
        "most",
        (
            "tests/unit/bookie/connection/test_waiting_requests.py::"
            "test_readers_that_wait_keep_no_ledger_from_being_recovered",
        ),
    ),
    Mutant(
        "a run of garbage collection that begins while the bookie stops",
        "it goes on, on a storage that is closed, after the bookie's stop has returned",
        "if self.stopped or (self.run is not None and self.run.seconds is None):",
        "if self.run is not None and self.run.seconds is None:",
        (f"{_COLLECTOR}::test_no_run_begins_once_the_bookie_stops",),
    ),
]
