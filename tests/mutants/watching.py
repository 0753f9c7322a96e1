"""Defects in what is watched: a client's metrics, log lines as JSON, slow requests."""

from __future__ import annotations

from tests.mutants import Mutant

_METRICS = "tests/unit/client/test_metrics.py::"
_SLOW = "tests/unit/client/test_slow_requests.py::"
_LOGS = "tests/unit/runtime/test_process_logs.py::"
_GRAFANA = "tests/unit/bookie/test_grafana.py::"
_PROCESSOR_TIME = "tests/unit/bench/test_processor_time.py::"
_CEILING = "tests/unit/bench/test_ceiling.py::"

MUTANTS: list[Mutant] = [
    Mutant(
        "a client's line about a slow read names no ledger",
        "an operator sees that reads are slow, and not whose",
        "                    self._note_slow(op, frame.correlation_id, seconds, m.ledgers_of_request(op, head))\n",
        "                    self._note_slow(op, frame.correlation_id, seconds, ())\n",
        (_SLOW + "test_a_slow_read_is_named_at_both_ends_and_a_long_poll_is_not",),
    ),
    Mutant(
        "what ended writers have appended is forgotten",
        "a counter falls with each ledger that is closed",
        "                self._open_logs.end(writing)\n",
        "                pass\n",
        (_METRICS + "test_appends_are_counted_with_those_of_ended_writers",),
    ),
    Mutant(
        "an append that changes its ensemble is not observed",
        "latencies look best when bookies fail",
        "            batch.sent.acknowledged()\n            self.completed(batch)\n",
        "            self.completed(batch)\n",
        (_METRICS + "test_a_change_of_the_ensemble_is_counted_and_its_time_is_in_the_appends",),
    ),
    Mutant(
        "only bookies that were used before are observed",
        "a client that asks for its metrics at once has none of a bookie",
        "            if self._observe is not None:\n                self._observe(channel)\n",
        "",
        (_METRICS + "test_each_request_is_observed_once_at_each_bookie",),
    ),
    Mutant(
        "the bytes of a log's entries have their stamps",
        "rates of a log are wrong by a half where entries are small",
        "bytes_ -= entries * STAMP_SIZES[NUMBERED if LOG_PRODUCER in custom else PLAIN]",
        "bytes_ -= entries * STAMP_SIZES[PLAIN]",
        (_METRICS + "test_logs_have_counts_of_their_own",),
    ),
    Mutant(
        "any number of logs is named",
        "a program that makes a log a customer overwhelms Prometheus",
        "return name if name in self.traffic or len(self.traffic) < self._logs_max else OTHERS",
        "return name",
        (_METRICS + "test_no_more_logs_are_named_than_allowed",),
    ),
    Mutant(
        "the consumers that are least behind are named",
        "the one that nobody runs is not seen",
        "key=lambda one: -one[1][-1])",
        "key=lambda one: one[1][-1])",
        (_METRICS + "test_the_consumers_furthest_behind_are_named",),
    ),
    Mutant(
        "a lag is measured by the application's reader",
        "what may be read changes while a program reads",
        "LogEnd(self._end_at, self.position_at, self.lag_at, self._lag_apart)",
        "LogEnd(self._end_at, self.position_at, self.lag_at, self.lag_at)",
        (_METRICS + "test_a_client_measures_its_own_consumers_and_moves_no_reader",),
    ),
    Mutant(
        "a consumer that was closed is measured on",
        "lags of what is not here any more are exported",
        "        self._closed = True\n        self._open_logs.consumers.pop(self, None)\n",
        "        self._closed = True\n",
        (_METRICS + "test_a_client_measures_its_own_consumers_and_moves_no_reader",),
    ),
    Mutant(
        "one lag that can't be measured ends the measuring",
        "lags stay away until the program is restarted",
        "            except BookKeeperError as e:\n"
        '                log.debug("log %s: failed to measure the lags of its consumers: %s", writer.name, e)\n'
        "                continue\n",
        "            except ZeroDivisionError:\n                continue\n",
        (_METRICS + "test_a_lag_that_cannot_be_measured_is_left_out_until_it_can",),
    ),
    Mutant(
        "a bookie takes its client's address for its id",
        "the two lines of a slow request can't be found",
        'return f"{self.client_id or self.address}-{correlation_id}"',
        'return f"{self.address}-{correlation_id}"',
        (_SLOW + "test_both_ends_name_the_same_request_and_the_bookie_says_where_the_time_went",),
    ),
    Mutant(
        "a client's id in log lines may be anything",
        "a stranger writes lines into a bookie's log",
        'return last if last.isalnum() and last.isascii() and len(last) <= CLIENT_ID_CHARS_MAX else ""',
        "return last",
        (_SLOW + "test_an_id_that_a_stranger_has_made_up_is_not_logged",),
    ),
    Mutant(
        "the wait of a frame before it is stored is not counted",
        "appends that wait for the index are taken for quick",
        "slow_at = (began if arrived is None else arrived) + self._slow.over_s",
        "slow_at = began + self._slow.over_s",
        (_SLOW + "test_a_frame_that_waits_for_the_states_of_its_ledgers_is_queued",),
    ),
    Mutant(
        "the wait of a read for its place counts as the disk's",
        "a disk is replaced that was never slow",
        "            self._mark(marks)\n            last = await self._storage.last_entry(request.ledger_id)\n",
        "            last = await self._storage.last_entry(request.ledger_id)\n",
        (_SLOW + "test_a_read_that_waits_until_its_ledger_is_fenced_is_queued",),
    ),
    Mutant(
        "a slow read's line has no ledger",
        "nobody finds out which ledger is slow",
        "self._service.slow.note(request, name, seconds, (ledger_id,), parts",
        "self._service.slow.note(request, name, seconds, (), parts",
        (_SLOW + "test_a_slow_read_is_named_at_both_ends_and_a_long_poll_is_not",),
    ),
    Mutant(
        "long polls are slow requests",
        "each idle reader fills the log",
        "            if seconds >= self._observe_from_s and op != Op.WAIT_LAC:  # which waits on purpose\n",
        "            if seconds >= self._observe_from_s:\n",
        (_SLOW + "test_a_slow_read_is_named_at_both_ends_and_a_long_poll_is_not",),
    ),
    Mutant(
        "lines about slow requests are not bounded",
        "a slow disk fills the disk of the log",
        "        if self._lines >= LINES_MAX:\n",
        "        if False:\n",
        (_SLOW + "test_the_lines_are_bounded_and_say_how_many_there_were",),
    ),
    Mutant(
        "an argument that doesn't fit its text ends a log line",
        "an error is not logged where it matters",
        "    except Exception:  # the arguments don't fit the text, or can't be shown\n",
        "    except ZeroDivisionError:\n",
        (_LOGS + "test_what_cannot_be_shown_is_a_line_all_the_same",),
    ),
    Mutant(
        "errors that end a process are no log lines",
        "a collector of logs never sees why a bookie ended",
        "        sys.excepthook = _log_uncaught\n",
        "",
        (_LOGS + "test_warnings_and_errors_that_nothing_catches_are_lines_too",),
    ),
    Mutant(
        "a metric gets another name",
        "panels and alarms stay empty, and nobody sees that",
        '"scrub_damages", "Damages that the scrub knows of"',
        '"known_damages", "Damages that the scrub knows of"',
        (
            _GRAFANA + "test_each_metric_exists_with_the_labels_that_an_expression_names",
            _GRAFANA + "test_each_metric_of_an_alarm_exists",
        ),
    ),
    Mutant(
        "processor time from before a run is counted",
        "a table sends whoever makes bkpy faster to the wrong part",
        "now.plus(self._first.threads.get(key, _Use()), -1)",
        "now",
        (_PROCESSOR_TIME + "test_what_was_used_before_counts_for_nothing",),
    ),
    Mutant(
        "processor time is of a run, not of an entry",
        "a faster run seems to cost more",
        "round(value / operations, 3)",
        "round(value, 3)",
        (_PROCESSOR_TIME + "test_each_kind_of_thread_has_its_row_by_operation",),
    ),
    Mutant(
        "the system doesn't show what a bookie's threads are for",
        "a table of processor time has one row for all of them, and so has `top -H`",
        "write_text(self._thread.name)",
        'write_text("worker")',
        ("tests/unit/runtime/test_runtime.py::test_the_system_shows_the_names_of_workers[journal-0]",),
    ),
    Mutant(
        "the question for health loads all settings of a bookie",
        "on a busy machine supervisors give up on its answer, and restart sound bookies",
        "from bkpy.cli.app import RootGroup\n\nif TYPE_CHECKING:\n    from collections.abc import Mapping\n\n_COMMANDS",
        "from bkpy.cli.app import RootGroup\nfrom bkpy.config.bookie import BookieSettings\n\nif TYPE_CHECKING:\n"
        "    from collections.abc import Mapping\n\n_COMMANDS",
        ("tests/unit/test_architecture.py::test_the_question_for_health_loads_neither_settings_nor_an_event_loop",),
    ),
    Mutant(
        "the ceiling's second file grows as long as it is measured",
        "a sustained row fills the disk, and ends without a figure",
        "if offset + len(part) > LOG_BYTES_MAX:",
        "if False:",
        (f"{_CEILING}test_its_second_file_stays_small_however_long_it_is_measured",),
    ),
    Mutant(
        "a process of the ceiling that fails is not noticed",
        "an error of sockets is all that a user sees of a full disk",
        'except (ConnectionError, TimeoutError):\n    raise BookKeeperError("the ceiling',
        'except ZeroDivisionError:\n    raise BookKeeperError("the ceiling',
        (f"{_CEILING}test_a_process_that_fails_is_an_error",),
    ),
    Mutant(
        "a ceiling whose log has failed is measured to its end",
        "the figure is too low, or zero, and nothing says why",
        "try:\n    write_log(path, log)\nfinally:\n    sock.shutdown(socket.SHUT_RDWR)",
        "try:\n    write_log(path, log)\nfinally:\n    del sock",
        (f"{_CEILING}test_a_full_disk_is_an_error_at_once",),
    ),
    Mutant(
        "a process of a ceiling that doesn't come is no error of bkpy's",
        "the user sees a bare TimeoutError",
        'except (ConnectionError, TimeoutError):\n    raise BookKeeperError("the ceiling',
        'except ConnectionError:\n    raise BookKeeperError("the ceiling',
        (f"{_CEILING}test_a_process_that_does_not_come_is_an_error",),
    ),
]
