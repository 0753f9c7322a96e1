"""Defects in what is made of metadata writes whose outcome is unknown, and of servers that lag behind."""

from __future__ import annotations

from tests.mutants import Mutant

_OUTCOMES = "tests/unit/metadata/store/test_outcomes.py"
_WITHOUT_ANSWER = "tests/unit/metadata/store/zookeeper/test_writes_without_answer.py"
_EDGES = "tests/unit/metadata/test_edges.py"
_IN_DOUBT = "tests/unit/client/test_unknown_outcomes.py"
_CLOSING = "tests/unit/client/test_closing_write.py"
_LAGGING = "tests/unit/client/read/test_lagging_metadata.py"
_RECOVERY = "tests/unit/recovery/test_recovery.py"
_LOCKS = "tests/unit/metadata/replication/test_locks.py"
_REFUSALS = "tests/cluster/test_zookeeper_refusals.py"
_NOTHING_IS_ACKNOWLEDGED = f"{_IN_DOUBT}::test_nothing_is_acknowledged_on_bookies_that_the_stored_change_does_not_name"
_RETIRED = "tests/unit/metadata/bookies/test_retired.py"
_RARE = "tests/unit/metadata/replication/test_rare_answers.py"
_ANOTHER_NODE = f"{_OUTCOMES}::test_what_another_node_keeps_from_being_deleted_is_still_there"
_PATHS = "tests/unit/metadata/test_metadata_paths.py"
_WATCHES = "tests/unit/metadata/store/zookeeper/test_watches.py"
_ENDED = "tests/unit/metadata/store/zookeeper/test_ended_sessions.py"
_DIRECTORY = "tests/unit/metadata/bookies/test_directory.py"
_MEMBERSHIP = "tests/unit/metadata/bookies/test_membership.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "a write that a server refused as of a session that is over sent in the next one",
        "a bookie's or a worker's node comes back after its owner learnt that it is gone",
        'if write:\n    raise MetadataUnavailableError("the session ended before the write was done") from None',
        "pass",
        (
            f"{_WITHOUT_ANSWER}::test_a_write_that_a_server_refuses_as_of_a_session_that_is_over_is_not_sent_in_the_"
            "next_session",
        ),
    ),
    Mutant(
        "a server that gives no session is asked again at once",
        "clients keep a server in trouble busy with connections, and don't say what it answers",
        "if not given and self.session_id == 0:",
        "if False:",
        (f"{_ENDED}::test_a_server_that_gives_no_session_is_asked_with_pauses_and_named",),
    ),
    Mutant(
        "a write without an answer taken for one that was not done",
        "a change that was stored counts as not made: a writer goes on with bookies that were replaced",
        "outcome_unknown=write and sent,",
        "outcome_unknown=False,",
        (f"{_WITHOUT_ANSWER}::test_a_write_that_a_server_does_not_answer_in_time_may_have_been_done",),
    ),
    Mutant(
        "a read-back that fails ends a write as an error, which says that nothing was written",
        "an acknowledged entry is cut off when the ledger is recovered",
        "try:\n"
        "    await store.sync(path)\n"
        "    return await read_if_there(store, path)\n"
        "except BookKeeperError as error:\n"
        "    return Unknown(error)",
        "await store.sync(path)\nreturn await read_if_there(store, path)",
        (f"{_OUTCOMES}::test_a_put",),
    ),
    Mutant(
        "a lost connection counts as a write that was not sent",
        "an acknowledged entry is cut off when the ledger is recovered",
        "return Unknown(error) if error.outcome_unknown else NotDone(error)",
        "return NotDone(error)",
        (f"{_OUTCOMES}::test_a_put", f"{_OUTCOMES}::test_what_is_certain_is_true_whatever_happens"),
    ),
    Mutant(
        "a second attempt that is not sent makes the first one certain",
        "an acknowledged entry is cut off when the ledger is recovered",
        "return Unknown(outcome.error) if doubt else outcome",
        "return outcome",
        (f"{_OUTCOMES}::test_a_put", f"{_OUTCOMES}::test_a_create", f"{_OUTCOMES}::test_a_delete"),
    ),
    Mutant(
        "a deletion that another node kept from being done counts as done if a try before got no answer",
        "`bkpy ledger delete` reports a ledger as deleted that is still there",
        "return Missing(result.node, result.index or 0) if unknown is None or result.index else Gone()",
        "return Missing(result.node, result.index or 0) if unknown is None else Gone()",
        (f"{_ANOTHER_NODE}[it is gone]",),
    ),
    Mutant(
        "a deletion that another node kept from being done is in doubt if a try before got no answer",
        "a ledger that no log has can't be deleted: it is said to have nodes below it",
        "return Changed() if unknown is None or result.index else Superseded()",
        "return Changed() if unknown is None else Superseded()",
        (f"{_ANOTHER_NODE}[it has changed]",),
    ),
    Mutant(
        "equal bytes found by a write that was refused at once count as its own",
        "of two who write from the same version, both believe that they were first",
        "return Changed() if unknown is None else await whose_value(store, path, data, expected_version)",
        "return await whose_value(store, path, data, expected_version)",
        (f"{_OUTCOMES}::test_a_put",),
    ),
    Mutant(
        "equal bytes count as this write's own at whatever version they are",
        "a client goes on with a version that isn't the node's",
        "if found[1] != expected_version + 1:",
        "if found[1] <= expected_version:",
        (f"{_OUTCOMES}::test_a_put",),
    ),
    Mutant(
        "a value that was replaced since counts as one that was never there",
        "a creation that was done is denied, and done again",
        "return Exists(operation.path) if found is not None and found[1] == 0 else Superseded()",
        "return Exists(operation.path)",
        (f"{_OUTCOMES}::test_a_create", f"{_EDGES}::test_creating_a_ledger"),
    ),
    Mutant(
        "equal bytes found by a creation that was refused at once count as its own",
        "two clients believe that they have made the same node",
        "if unknown is None or result.index != 0:",
        "if result.index != 0:",
        (f"{_OUTCOMES}::test_a_create",),
    ),
    Mutant(
        "the refusal of another operation of the transaction is taken for that of the node itself",
        "what was refused is said to be in doubt",
        "if unknown is None or result.index != 0:",
        "if unknown is None:",
        (f"{_OUTCOMES}::test_a_create_below_a_node_that_is_missing_or_together_with_one_that_is_refused",),
    ),
    Mutant(
        "a deletion whose reply was lost finds nothing, and says that there was nothing",
        "who deletes a ledger is told that there is no such ledger",
        "return Missing(result.node, result.index or 0) if unknown is None or result.index else Gone()",
        "return Missing(result.node, result.index or 0)",
        (f"{_OUTCOMES}::test_a_delete",),
    ),
    Mutant(
        "a deletion that is refused after one with an unknown outcome is certain",
        "a node that was deleted and has come back is said to have been there all the time",
        "return Changed() if unknown is None or result.index else Superseded()",
        "return Changed()",
        (f"{_OUTCOMES}::test_a_delete", f"{_OUTCOMES}::test_a_node_with_nodes_below_is_not_deleted"),
    ),
    Mutant(
        "a deletion of a cookie is tried again",
        "a bookie that came back meanwhile loses its new cookie",
        "outcome = await delete_certainly(store, paths.cookie(root, bookie_id), expected_version, attempts_max=1)",
        "outcome = await delete_certainly(store, paths.cookie(root, bookie_id), expected_version, attempts_max=5)",
        (f"{_EDGES}::test_a_cookie_is_deleted_once",),
    ),
    Mutant(
        "a writer takes a change of its ensemble with an unknown outcome for one that was not stored",
        "an acknowledged entry is cut off when the ledger is recovered",
        "case Unknown():\n    doubt = True\ncase _:",
        "case Unknown():\n    return None\ncase _:",
        (_NOTHING_IS_ACKNOWLEDGED,),
    ),
    Mutant(
        "a writer that can't send its change again forgets that the first attempt may have been stored",
        "an acknowledged entry is cut off when the ledger is recovered",
        "case NotDone():\n    if not doubt:\n        return None",
        "case NotDone():\n    return None",
        (_NOTHING_IS_ACKNOWLEDGED,),
    ),
    Mutant(
        "a second close that sends nothing makes the first one certain",
        "the application believes that its ledger is open, and it is closed",
        "closed = escalate_unknown(closed, self._end_in_doubt)",
        "pass",
        (f"{_IN_DOUBT}::test_a_writer_whose_closing_write_is_in_doubt_says_so_until_it_is_known",),
    ),
    Mutant(
        "a ledger is closed whatever version it is at",
        "somebody else's change of the metadata is overwritten, a recovery's among them",
        "outcome = await catalog.write(closed, version)",
        "outcome = await catalog.write(closed, (await catalog.read(ledger_id))[1])",
        (
            f"{_CLOSING}::test_it_keeps_what_somebody_else_has_written",
            f"{_CLOSING}::test_a_writer_never_closes_what_somebody_is_recovering",
        ),
    ),
    Mutant(
        "a closing write that may have been replaced since counts as refused when it can't be looked at",
        "the application believes that its ledger is open, and it is closed",
        "return escalate_unknown(NotDone(error), isinstance(outcome, Superseded))",
        "return NotDone(error)",
        (f"{_CLOSING}::test_what_is_said_of_it_is_no_more_than_is_known",),
    ),
    Mutant(
        "a mark that may have been replaced since counts as refused when it can't be looked at",
        "whoever recovers believes that the writer goes on, and it is fenced",
        "escalate_unknown(NotDone(error), isinstance(outcome, Superseded)), ledger_id=ledger_id",
        "NotDone(error), ledger_id=ledger_id",
        (f"{_CLOSING}::test_whoever_marks_a_ledger_is_told_whether_the_mark_may_be_there",),
    ),
    Mutant(
        "a recovery takes any length that the writer published for that of the last entry",
        "the ledger is closed with a wrong length",
        "if self._explicit[0] == last:",
        "if self._explicit[0] >= 0:",
        (f"{_RECOVERY}::test_the_length_that_a_writer_published_is_that_of_its_entry_alone",),
    ),
    Mutant(
        "a server that lags behind is believed when it knows of no ledger",
        "a ledger that exists is denied",
        "await store.sync(path)\nfound = await read_if_there(store, path)",
        "found = await read_if_there(store, path)",
        (
            f"{_LAGGING}::test_a_ledger_that_a_lagging_server_does_not_know_of_is_there",
            f"{_LAGGING}::test_a_cluster_and_a_cookie_that_a_lagging_server_does_not_know_of_are_there",
        ),
    ),
    Mutant(
        "a listing is what a server that lags behind knows",
        "ledgers that exist are not listed",
        "await self._store.sync(self._root)\n"
        "async for partition in self.layout.partitions(self._store, self._root, first, last, skipped=skipped):",
        "async for partition in self.layout.partitions(self._store, self._root, first, last, skipped=skipped):",
        (f"{_LAGGING}::test_a_ledger_that_a_lagging_server_does_not_know_of_is_there[list]",),
    ),
    Mutant(
        "a ledger whose creation is cancelled stays",
        "ledgers that nobody knows of gather in the metadata",
        "work = self._take_back(ledger, new.node)",
        "work = self._discard(new.node)",
        (f"{_IN_DOUBT}::test_a_creation_that_is_cancelled_leaves_no_ledger",),
    ),
    Mutant(
        "a client ends before the ledger of a cancelled creation is gone",
        "a time limit inside of `async with` leaves an open ledger that nobody knows",
        "await self._cluster.catalog.close()",
        "pass",
        (
            "tests/unit/client/test_cancellation.py"
            "::test_a_client_that_is_closed_behind_a_cancelled_creation_leaves_no_ledger",
        ),
    ),
    Mutant(
        "a task started on a loop that has ended",
        "Python tells of a coroutine that was never awaited",
        "except GeneratorExit:  # the loop has ended: nothing can take the ledger back\nraise\n",
        "",
        ("tests/unit/metadata/test_edges.py::test_a_creation_that_ends_with_its_loop_takes_nothing_back",),
    ),
    Mutant(
        "the ledger that is taken back may be somebody else's",
        "a ledger vanishes",
        "if isinstance(found, Answer) and found.value == (ledger.data, 0):",
        "if isinstance(found, Answer):",
        (f"{_EDGES}::test_only_what_was_made_is_taken_back",),
    ),
    Mutant(
        "a new ledger that somebody has changed at once counts as an id that was taken",
        "one call makes two ledgers, one of which nobody knows of",
        "return Unknown(MetadataConflictError(what, ledger_id=new.ledger_id))",
        "continue",
        (f"{_EDGES}::test_creating_a_ledger",),
    ),
    Mutant(
        "a bookie whose registration got lost once gives up",
        "a bookie does not start, or stays unregistered",
        "doubt = True\nif self._runtime.clock.monotonic() >= deadline:",
        "doubt = True\nif True:",
        (f"{_EDGES}::test_a_registration_survives_lost_connections",),
    ),
    Mutant(
        "what is told to one caller of a session that has ended is told to all of them",
        "a read is said to have an unknown outcome",
        "raise to_error(NotDone(self._fatal))  # of this call; the reason itself is shared by all",
        "raise self._fatal",
        (f"{_EDGES}::test_every_call_of_a_session_that_has_ended_gets_an_error_of_its_own",),
    ),
    Mutant(
        "a server that does not answer counts as one that is not there",
        "nobody waits for a server that is slow to start",
        "if not (is_refusal(error) or is_tls_error(error) or wants_tls):",
        "if False:",
        (f"{_REFUSALS}::test_one_server_that_is_silent_is_reason_to_wait",),
    ),
    Mutant(
        "a session that is running gives up when its servers are away for a second",
        "every restart of ZooKeeper ends all clients",
        "self._refused_timeout_s = None  # from now on, servers that are away are waited for",
        "pass",
        (f"{_REFUSALS}::test_servers_that_go_away_later_are_waited_for",),
    ),
    Mutant(
        "a look in two sessions counts as one",
        "the second session's server is an old one, and denies a ledger: it is deleted",
        "if self._store.session_id != session:",
        "if self._store.session_id == 0:",
        (f"{_LOCKS}::test_a_look_in_which_anything_fails_is_not_sure",),
    ),
    Mutant(
        "a look doesn't compare the cluster",
        "a bookie whose metadata_uri leads to another cluster deletes everything",
        'if instance[0].decode(errors="replace") != self._instance_id:',
        "if not instance[0]:",
        (f"{_LOCKS}::test_another_cluster_and_none",),
    ),
    Mutant(
        "somebody's lock counts as one's own",
        "a lock was lost, another worker copies the ledger here, and the copy is deleted",
        "own_lock = lock is None or await self._store.exists(lock.proof)",
        "own_lock = lock is None or await self._store.exists(lock.path)",
        (f"{_LOCKS}::test_a_look_sees_whether_the_lock_is_still_the_same_one",),
    ),
    Mutant(
        "a lock is removed whoever has it",
        "two workers have one ledger's lock",
        "self._store, *lock.nodes, attempts_max=",
        "self._store, lock.nodes[1], attempts_max=",
        (f"{_LOCKS}::test_a_lock_goes_with_its_session_and_a_successors_is_never_removed",),
    ),
    Mutant(
        "a node's path may end in a slash",
        "ZooKeeper refuses what the store in memory takes",
        "if not _PATH.fullmatch(path):",
        "if not _PATH.match(path):",
        ("tests/unit/metadata/test_metadata_paths.py::test_a_node_path_is_absolute_with_plain_parts",),
    ),
    Mutant(
        "an id that is given up again may deny what it was not to deny",
        "entries that a bookie of the id had acknowledged are denied",
        "    limbo_to = max(limbo_to, former.limbo_to)\n",
        "",
        (f"{_RETIRED}::test_a_record_is_made_and_changed_and_never_forgets_an_id",),
    ),
    Mutant(
        "a lock that may have been taken stays",
        "nobody copies the ledger until the session ends",
        "                await self.release(lock)\n                return NotDone(outcome.error)\n",
        "                return NotDone(outcome.error)\n",
        (f"{_RARE}::test_who_has_no_lock_leaves_none",),
    ),
    Mutant(
        "a taking in whose write is in doubt is said not to be recorded",
        "a writer forgets a bookie that takes its entries",
        "                    return outcome if isinstance(outcome, Done) else escalate_unknown(outcome, doubt)\n",
        "                    return NotDone(outcome.error) if isinstance(outcome, Unknown) else outcome\n",
        (f"{_RARE}::test_a_bookie_that_was_taken_in_is_recorded_unless_the_answer_says_otherwise",),
    ),
    Mutant(
        "a watch on children is set on the node alone when that is made at the same moment",
        "auditors and clients hear of further draining bookies only when they look by themselves",
        "if not await self._is_there(watch.path, watch=True):\n    return WatchKind.EXIST",
        "return WatchKind.DATA if await self._is_there(watch.path, watch=True) else WatchKind.EXIST",
        (f"{_WATCHES}::test_a_watch_on_children_misses_none_though_the_node_is_made_while_it_is_set",),
    ),
    Mutant(
        "a bookie that becomes writable between two reads of the auditor counts as absent",
        "many that become writable at once suspend re-replication, and the clocks of lost ones begin again",
        "presence = await _presence(store, root, bookie, read_only=places.get(bookie, False))",
        "if bookie not in places:\n"
        "    return BookieStatus(Presence.ABSENT, instance, has_cookie)\n"
        "presence = await _presence(store, root, bookie, read_only=places[bookie])",
        (f"{_MEMBERSHIP}::test_a_bookie_that_moves_meanwhile_is_here",),
    ),
    Mutant(
        "a bookie that becomes writable between two reads of a client counts as absent",
        "a worker ends a writer because of a bookie that is there",
        "if not self.readable <= registered[0].keys() | registered[1].keys():",
        "if not self.readable:",
        (f"{_DIRECTORY}::test_a_bookie_that_moves_between_two_lists_is_not_absent",),
    ),
    Mutant(
        "a server in the URI may have a name that no host can have",
        "the metadata session of a bookie ends for good when it is that server's turn, and is called a defect",
        'if found is None or not (found["ipv6"] or _can_be_looked_up(found["name"])):',
        "if found is None:",
        (f"{_PATHS}::test_nonsense_is_refused_and_named",),
    ),
    Mutant(
        "of calls that find a counter of ids full at once, each takes one further into use",
        "no ledger can be created until the client is restarted, and one that was has an id far ahead of all others",
        "self._high = max(self._high, high)",
        "self._high += 1\nhigh = self._high",
        (f"{_PATHS}::test_calls_that_find_a_counter_full_at_once_take_the_next_one",),
    ),
    Mutant(
        "one bookie's registration that a client may not read ends what follows them all",
        "a client notices no bookie any more that comes or goes, or can't be opened at all",
        "except (CorruptDataError, UnauthorizedError):\n"
        "    return None  # not a bookie's node, or not for this client: it must not hide all the bookies",
        "except CorruptDataError:\n    return None",
        (f"{_DIRECTORY}::test_a_registration_that_this_client_may_not_read_hides_no_other_one",),
    ),
    Mutant(
        "a refused list of bookies ends what follows it",
        "a client notices no bookie any more that comes or goes, though its rights are back",
        "except UnauthorizedError as error:  # also of setting the watch; rights may come back\n"
        "    self._report(error)",
        "except UnauthorizedError:\n    raise",
        (f"{_DIRECTORY}::test_bookies_are_noticed_again_once_this_client_may_list_them_again",),
    ),
    Mutant(
        "a refused list of bookies ends its regular reading",
        "a client goes on with addresses of long ago, though its rights are back",
        "with contextlib.suppress(MetadataUnavailableError, UnauthorizedError):\n    await self.refresh()",
        "with contextlib.suppress(MetadataUnavailableError):\n    await self.refresh()",
        (f"{_DIRECTORY}::test_registrations_are_read_again_once_this_client_may_list_them_again",),
    ),
    Mutant(
        "the node of an id left by a creation that is cancelled as it draws it",
        "an id counts as a ledger to come until the session ends: after a restore nothing from there on is collected",
        'store.runtime.spawn(_discard_number(store, parent, data), name=f"discard a number of {parent}")',
        "pass",
        (f"{_EDGES}::test_whenever_a_creation_is_cancelled_neither_ledger_nor_id_is_left",),
    ),
    Mutant(
        "a session ends without a word when its credentials are refused",
        "an export goes on though its lock is another's, and rows come twice",
        'self._end(UnauthorizedError("ZooKeeper refuses the credentials"))',
        'self._fail(UnauthorizedError("ZooKeeper refuses the credentials"))',
        (f"{_ENDED}::test_a_session_whose_credentials_are_refused_later_has_ended",),
    ),
    Mutant(
        "a session whose close is cancelled ends without a word",
        "as above",
        'connection.abort(ConnectionLost("the session was closed"))\nself.events.emit(SessionState.EXPIRED)',
        'connection.abort(ConnectionLost("the session was closed"))',
        (f"{_ENDED}::test_a_session_whose_close_is_cancelled_has_ended",),
    ),
    Mutant(
        "what a busy server throttles is never repeated",
        "a moment in which ZooKeeper has too much to do ends the writers of logs",
        "retriable=in_trouble or error.error_code == _THROTTLED,",
        "retriable=in_trouble,",
        (f"{_WITHOUT_ANSWER}::test_a_write_that_a_busy_server_throttles_was_not_done_and_may_be_repeated",),
    ),
]
