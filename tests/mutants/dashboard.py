"""Defects of a cluster's health, its check, and the dashboard."""

from __future__ import annotations

from tests.mutants import Mutant

_HEALTH = "tests/unit/admin/test_cluster_health.py"
_SWEEP = "tests/unit/admin/test_metadata_sweep.py"
_CHECK = "tests/unit/admin/test_cluster_check.py"
_SERVER = "tests/unit/dashboard/test_server.py"
_FOLLOWING = "tests/unit/dashboard/test_following.py"
_BUSIEST = "tests/unit/bookie/test_busiest.py"
_HOSTILE = "tests/unit/dashboard/test_hostile_clients.py"
_WATCHING = "tests/unit/dashboard/test_watching.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "the audit trail is read before what may fail, and told behind it",
        "acts are missing among the events of a dashboard",
        """            for kind, text in await self.following.look(view.pages):
                self.tell(kind, text)
            for act in await self._new_acts():
                self.tell("audit", str(act), act.time_ms / 1000)
""",
        """            acts = await self._new_acts()
            for kind, text in await self.following.look(view.pages):
                self.tell(kind, text)
            for act in acts:
                self.tell("audit", str(act), act.time_ms / 1000)
""",
        (f"{_SERVER}::test_no_event_is_lost_where_the_rest_of_a_look_fails",),
    ),
    Mutant(
        "each bookie's fence of a ledger tells of a recovery",
        "an event is told twice",
        "if ledger_id not in self._ended and len(self._recoveries) < RECOVERIES_MAX:",
        "if len(self._recoveries) < RECOVERIES_MAX:",
        (f"{_FOLLOWING}::test_a_recovery_is_told_once_though_a_bookie_tells_of_its_fence_later",),
    ),
    Mutant(
        "health forgets bookies that the auditor knows nothing of",
        "a bookie that died just now isn't shown",
        "for bookie_id in sorted((seen.known | absences.keys()) - seen.bookies.keys()):",
        "for bookie_id in sorted(absences.keys() - seen.bookies.keys()):",
        (f"{_HEALTH}::test_what_is_wrong_is_found_and_nothing_else",),
    ),
    Mutant(
        "pages out of reach count as well",
        "damage and clocks that nobody has seen are called healthy",
        '    if unseen:\n        message = f"the pages of',
        '    if False:\n        message = f"the pages of',
        (f"{_HEALTH}::test_what_is_wrong_is_found_and_nothing_else",),
    ),
    Mutant(
        "findings in any order",
        "the worst is read last",
        "findings.sort(key=lambda finding: (-finding.severity, finding.code, finding.subject))",
        "findings.sort(key=lambda finding: (finding.code, finding.subject))",
        (f"{_HEALTH}::test_the_worst_comes_first",),
    ),
    Mutant(
        "a refused collection is over once another run was refused long ago",
        "a bookie whose ZooKeeper was set back fills up unseen",
        'if page.value("bkpy_bookie_gc_runs_total", "older") and not page.value("bkpy_bookie_gc_last_run_done"):',
        'if page.value("bkpy_bookie_gc_last_run_done"):',
        (f"{_HEALTH}::test_what_is_wrong_is_found_and_nothing_else",),
    ),
    Mutant(
        "a round that failed is fine",
        "a check succeeds on a cluster that can't be used",
        "        done.error = done.error or str(error)",
        "        pass",
        (f"{_CHECK}::test_a_bookie_that_fails_is_named_by_its_rounds_and_no_ledger_is_left",),
    ),
    Mutant(
        "rounds that don't overlap",
        "a network that is cut between two halves of the bookies is not seen",
        "step = max(1, size - 1)",
        "step = size",
        (f"{_CHECK}::test_rounds_have_every_bookie_and_overlap",),
    ),
    Mutant(
        "a check leaves its ledger",
        "checks fill the cluster with ledgers",
        "await asyncio.shield(self._delete(writer.ledger_id))",
        "pass",
        (f"{_CHECK}::test_each_bookie_is_written_read_fenced_recovered_and_cleared",),
    ),
    Mutant(
        "the dashboard answers to any name",
        "another site points its name at this machine and reads the cluster",
        "if not is_address(host) and host not in self._names:",
        "if False:",
        (f"{_SERVER}::test_other_sites_are_refused",),
    ),
    Mutant(
        "the dashboard takes requests of other sites",
        "another site's page makes a browser act",
        'if origin is not None and origin.partition("://")[2] != request.host:',
        "if False:",
        (f"{_SERVER}::test_other_sites_are_refused",),
    ),
    Mutant(
        "a link may ask for more than the page",
        "another site loads what the cluster has",
        'navigates = request.path == "/" and request.headers.get("Sec-Fetch-Mode") == "navigate"',
        'navigates = request.headers.get("Sec-Fetch-Mode") == "navigate"',
        (
            f"{_SERVER}::test_other_sites_are_refused",
            f"{_SERVER}::test_a_link_from_elsewhere_opens_the_page_which_nobody_frames",
        ),
    ),
    Mutant(
        "actions without the token",
        "whoever reaches the page drains bookies",
        'if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):',
        'if not f"Bearer {self._token}".startswith(given):',
        (f"{_SERVER}::test_a_wrong_token_is_refused",),
    ),
    Mutant(
        "a page of ledgers begins with the last of the one before",
        "a ledger is shown twice",
        "if wanted := [ledger_id for ledger_id in partition if ledger_id > after]:",
        "if wanted := [ledger_id for ledger_id in partition if ledger_id >= after]:",
        (f"{_SERVER}::test_ledgers_come_in_pages_and_by_what_is_wanted",),
    ),
    Mutant(
        "a page of ledgers has one too many",
        "the last ledger of each page comes again on the next one",
        "if len(rows) == limit:",
        "if len(rows) > limit:",
        (f"{_SERVER}::test_ledgers_come_in_pages_and_by_what_is_wanted",),
    ),
    Mutant(
        "rates of a bookie that was restarted",
        "a restart is shown as a negative rate",
        "return max(0.0, page.value(name) - before.value(name)) / seconds",
        "return (page.value(name) - before.value(name)) / seconds",
        (f"{_WATCHING}::test_rates_are_those_between_two_looks",),
    ),
    Mutant(
        "the percentile of everything since the start",
        "a slow disk is hidden by a fast year",
        "max(0.0, value - before.value(_LATENCY, le, operation))",
        "value",
        (f"{_WATCHING}::test_the_99th_percentile_is_of_what_happened_meanwhile_at_all_bookies",),
    ),
    Mutant(
        "a page of logs reads the lists of all",
        "the page of a cluster with many logs takes minutes",
        "names = await self._admin.log_names()",
        "names = sorted([name async for name in self._admin.client.list_logs()])",
        (f"{_SERVER}::test_a_page_of_logs_reads_only_their_lists",),
    ),
    Mutant(
        "a page of logs begins with the last of the one before",
        "a log is shown twice",
        "begin = bisect_right(names, after)",
        "begin = max(0, bisect_right(names, after) - 1)",
        (f"{_SERVER}::test_a_page_of_logs_reads_only_their_lists",),
    ),
    Mutant(
        "the first page of logs is the last",
        "all logs but the first fifty are hidden",
        "more = shown[-1] if begin + limit < len(names) else None",
        "more = None",
        (f"{_SERVER}::test_a_page_of_logs_reads_only_their_lists",),
    ),
    Mutant(
        "a lost session is reported too long",
        "a cluster that is well again is not called healthy",
        "lost_s) < SESSION_LOST_S:",
        "lost_s) <= SESSION_LOST_S:",
        (f"{_HEALTH}::test_a_cluster_at_all_its_limits_is_healthy",),
    ),
    Mutant(
        "the age of a lost session is by this machine's clock",
        "a bookie whose clock is behind seems to have lost its session long ago",
        "(ago_s := seen.now_s + page.skew_s - lost_s)",
        "(ago_s := seen.now_s - lost_s)",
        (f"{_HEALTH}::test_what_is_wrong_is_found_and_nothing_else",),
    ),
    Mutant(
        "a lost session leaves no trace",
        "a bookie that hangs now and then is called healthy",
        "            self._on_session_lost()\n",
        "",
        ("tests/unit/bookie/test_read_only.py::test_the_metrics_page_says_when_a_session_was_lost",),
    ),
    Mutant(
        "a session is lost at a time since the machine's start",
        "the loss seems to be decades old",
        "self._session_lost_s = self._time()",
        "self._session_lost_s = self._now()",
        ("tests/unit/bookie/test_read_only.py::test_the_metrics_page_says_when_a_session_was_lost",),
    ),
    Mutant(
        "who waits for a bookie is told to give entries up",
        "an operator accepts a loss of entries that have two copies",
        'stuck: {some}",\n            died,',
        'stuck: {some}",\n            f"{_HEALING}#when-nothing-helps",',
        (f"{_HEALTH}::test_what_waits_for_a_bookie_is_not_sent_to_the_page_that_gives_entries_up",),
    ),
    Mutant(
        "an unreadable log is well",
        "nobody learns that a log can't be read until a reader fails",
        "                    LogList.decode(name, found[0])\n",
        "                    pass\n",
        (f"{_SWEEP}::test_what_is_unreadable_is_found_and_nothing_else",),
    ),
    Mutant(
        "another bookie's cookie is well",
        "a bookie that stops can't start again, and nobody knows",
        'if fields["bookie_id"] != name:\n                    return',
        "if False:\n                    return",
        (f"{_SWEEP}::test_the_cookie_of_another_bookie_is_no_cookie",),
    ),
    Mutant(
        "a step that failed counts as done",
        "a damaged log is missed when ZooKeeper hiccups",
        "self._pending.extendleft(reversed(some[done:]))",
        "pass",
        (f"{_SWEEP}::test_a_step_that_fails_is_done_again",),
    ),
    Mutant(
        "a ledger's rate is that of its copies",
        "a writer seems to append three times what it does",
        "entries=round(stored.entries / copies, 3)",
        "entries=round(stored.entries, 3)",
        (f"{_FOLLOWING}::test_rates_are_those_of_appends_and_logs_have_those_of_their_ledgers",),
    ),
    Mutant(
        "every ledger that bookies report is followed",
        "a dashboard reads the metadata of thousands of ledgers each two seconds",
        "not in self._ended and len(self._recoveries) < RECOVERIES_MAX:\n                self._recoveries",
        "not in self._ended:\n                self._recoveries",
        (f"{_FOLLOWING}::test_a_look_reads_few_ledgers",),
    ),
    Mutant(
        "fences from before the dashboard are news",
        "a dashboard begins with recoveries of last week",
        "if before is not None:\n                new +=",
        "if True:\n                before = before or frozenset()\n                new +=",
        (f"{_FOLLOWING}::test_recoveries_are_told_and_those_before_the_first_look_are_not",),
    ),
    Mutant(
        "a change of the ensemble is told at each look",
        "events are full of one change",
        "        self._known = found\n",
        "        self._known = {**found, **self._known}\n",
        (f"{_FOLLOWING}::test_a_changed_ensemble_is_told_once_with_where_it_begins",),
    ),
    Mutant(
        "what left memory is nobody's",
        "rates fall with each checkpoint",
        "stored[0] * entries / drawn[0]",
        "entries / seconds",
        (f"{_BUSIEST}::test_a_look_at_much_is_at_a_part_of_it",),
    ),
    Mutant(
        "a look begins with all that is in memory",
        "what was busy an hour ago is shown as busy",
        "yield from islice(shard.active.frames, frames if shard.active is before else 0, None)",
        "yield from shard.active.frames",
        (f"{_BUSIEST}::test_rates_are_those_since_the_last_look_most_bytes_first",),
    ),
    Mutant(
        "what is being written out is not looked at",
        "the busiest ledger is missing while its bookie checkpoints",
        "if shard.sealed is not None and shard.active is not before:",
        "if False:",
        (f"{_BUSIEST}::test_a_look_goes_on_where_the_last_one_ended_during_a_checkpoint",),
    ),
    Mutant(
        "rates since the last question, however long ago",
        "the first look shows the mean of a day",
        "self._found = [] if seconds > self._settings.activity_stale_s else",
        "self._found = [] if seconds == float('inf') else",
        (f"{_BUSIEST}::test_after_a_time_without_questions_it_begins_anew",),
    ),
    Mutant(
        "a look that failed is a finding",
        "a mistyped option of a probe wakes somebody for data at risk",
        "return command.failure_status if isinstance(command, AssessingCommand) else usual",
        "return usual",
        ("tests/cluster/test_health_command.py::test_a_look_that_fails_is_no_finding",),
    ),
    Mutant(
        "a damaged instance id is no error of the cluster",
        "every command ends with an error that names nothing",
        'except UnicodeDecodeError as error:\n        raise CorruptDataError(f"{root}/{paths.INSTANCE_ID}',
        'except KeyError as error:\n        raise CorruptDataError(f"{root}/{paths.INSTANCE_ID}',
        ("tests/unit/metadata/test_edges.py::test_a_damaged_node_of_the_cluster_is_named",),
    ),
    Mutant(
        "bytes that are no HTTP are errors of a handler",
        "strangers fill the log with tracebacks of their bytes",
        "if isinstance(error, HttpProcessingError | ClientConnectionResetError):",
        "if isinstance(error, ClientConnectionResetError):",
        (f"{_HOSTILE}::test_what_is_no_request_is_refused_and_fills_no_log",),
    ),
    Mutant(
        "errors of handlers are errors of clients",
        "a defect of a page is never heard of",
        "if isinstance(error, HttpProcessingError | ClientConnectionResetError):",
        "if error is not None:",
        (f"{_HOSTILE}::test_an_error_of_a_handler_is_logged_whole",),
    ),
    Mutant(
        "every lost connection is that of the client",
        "a handler that can't reach another server fails without a word",
        "if request.transport is not None and not request.transport.is_closing():",
        "if request.transport is False:",
        (f"{_HOSTILE}::test_an_error_of_a_handler_is_logged_whole",),
    ),
    Mutant(
        "a client that hangs up is a defect",
        "strangers fill the log with tracebacks",
        "if request.transport is not None and not request.transport.is_closing():",
        "if request.transport is not False:",
        (f"{_HOSTILE}::test_who_hangs_up_in_the_midst_of_a_body_is_no_error",),
    ),
    Mutant(
        "a malformed body is a defect",
        "strangers fill the log with tracebacks",
        "        response = web.Response(status=400)\n        response.force_close()",
        "        raise",
        (f"{_HOSTILE}::test_a_body_that_is_malformed_later_is_refused",),
    ),
    Mutant(
        "a refused body is read for ten seconds",
        "whoever reaches the page keeps it busy with gigabytes",
        "        lingering_time=0,\n",
        "",
        (f"{_HOSTILE}::test_bytes_without_an_end_are_not_taken",),
    ),
    Mutant(
        "the rest of a body has no bound in bytes",
        "whoever reaches the page keeps it busy with gigabytes",
        "left -= len(await request.content.readany())",
        "await request.content.readany()",
        (f"{_HOSTILE}::test_bytes_without_an_end_are_not_taken",),
    ),
    Mutant(
        "the rest of a body is unpacked",
        "a body of empty blocks is read as fast as it comes",
        "        auto_decompress=False,\n",
        "",
        (f"{_HOSTILE}::test_bytes_without_an_end_are_not_taken",),
    ),
    Mutant(
        "packed bodies are taken as they are",
        "a body means to the bookie what it doesn't mean to its client",
        'if "Content-Encoding" in request.headers:',
        'if "" in request.headers:',
        (f"{_HOSTILE}::test_what_is_no_request_is_refused_and_fills_no_log",),
    ),
    Mutant(
        "who is refused hears of it after the rest of the body",
        "a client that waits for the answer first is hung up on",
        "    await response.prepare(request)\n    await response.write_eof()\n    left",
        "    left",
        (f"{_HOSTILE}::test_a_body_that_comes_late_is_no_end_of_the_connection",),
    ),
    Mutant(
        "who still sends is hung up on",
        "a client loses the answer that says why it is refused",
        "    if request.content.is_eof():\n        return",
        "    if request:\n        return",
        (f"{_HOSTILE}::test_a_body_that_comes_late_is_no_end_of_the_connection",),
    ),
    Mutant(
        "a bookie takes requests for no host",
        "a name that no setting has counts as its own",
        "*(host_of(name) for name in own if name))",
        '*(host_of(name or "") for name in own))',
        (f"{_HOSTILE}::test_what_is_no_request_is_refused_and_fills_no_log",),
    ),
    Mutant(
        "the dashboard's looks end with the first one that meets a defect",
        "its page calls a cluster healthy that has lost its bookies since",
        '        except Exception as error:\n            log.exception("failed to look at the cluster',
        '        except ZeroDivisionError as error:\n            log.exception("failed to look at the cluster',
        (f"{_SERVER}::test_a_look_that_meets_a_defect_is_not_the_last_one",),
    ),
    Mutant(
        "a worker's report counts whatever it has",
        "the status of re-replication is an unexpected error as long as a newer worker runs",
        'if "name" in fields and _is_known_shape(fields):',
        'if "name" in fields:',
        ("tests/unit/metadata/replication/test_worker_nodes.py::test_a_report_of_another_shape_is_left_out",),
    ),
    Mutant(
        "the auditor's record is taken for what this version writes",
        "a draining isn't waited for as long as a newer bookie is the auditor",
        "since_ms if type(since_ms) is int else 0, f",
        "int(since_ms), f",
        (
            "tests/unit/metadata/replication/test_election.py::"
            "test_a_leader_whose_record_is_of_another_shape_is_the_leader",
        ),
    ),
]
