"""Spark: reading, planning, the export and the Java process behind it."""

from __future__ import annotations

from tests.mutants import Mutant

READING = "tests/spark/apart/test_spark_reading.py::"
PLANNING = "tests/spark/apart/test_spark_planning.py::"
LOCK = "tests/spark/apart/test_spark_lock.py::"
JVM = "tests/spark/apart/test_spark_jvm.py::"
STREAM = "tests/spark/test_spark_stream.py::"
ROWS = "tests/spark/test_spark_sink_rows.py::"
SINK = "tests/spark/test_spark_sink.py::"
SINKS = "tests/unit/protocol/log/test_log_sinks.py::"
EXPORT = "tests/spark/test_spark_export.py::"
EXPORT_LOG = "tests/spark/test_spark_export_log.py::"
TRUNCATED_MEANWHILE = "test_truncation_while_a_batch_is_written_leaves_out_what_was_truncated_and_no_more[parquet-None]"
POWER = "test_power_lost_at_any_step_costs_nothing_that_was_added[some]"
DIRECTORY = "tests/spark/apart/test_spark_export_directory.py::"

MUTANTS: list[Mutant] = [
    Mutant(
        "spark: a plan has any number of ranges",
        "where maxBytesPerPartition is too small, the driver runs out of memory",
        "if (count := sum(pieces)) > max(CUTS_MAX, len(wholes)):",
        "if (count := 0):",
        (PLANNING + "test_a_plan_is_bounded_whatever_the_size_of_a_range_is",),
    ),
    Mutant(
        "spark: damage ends a partition quietly",
        "rows vanish from queries and exports",
        "except (NoSuchLedgerError, NoSuchEntryError):\n    if options.fail_on_data_loss or",
        "except __import__('bkpy').DigestMismatchError:\n    return\n"
        "except (NoSuchLedgerError, NoSuchEntryError):\n    if options.fail_on_data_loss or",
        (READING + "test_damaged_entries_always_are_an_error",),
    ),
    Mutant(
        "spark: damage counts as data loss",
        "with failOnDataLoss=false, rows vanish that are there",
        "except (NoSuchLedgerError, NoSuchEntryError):\n    if options.fail_on_data_loss or",
        "except (NoSuchLedgerError, NoSuchEntryError, __import__('bkpy').DigestMismatchError):\n"
        "    if options.fail_on_data_loss or",
        (READING + "test_damaged_entries_always_are_an_error",),
    ),
    Mutant(
        "spark: missing entries of a ledger that exists count as deleted",
        "with failOnDataLoss=false, rows vanish that replicas have lost",
        "if options.fail_on_data_loss or await lazy.has_ledger(part.ledger_id):",
        "if options.fail_on_data_loss:",
        (READING + "test_what_is_missing_of_a_ledger_that_exists_always_is_an_error",),
    ),
    Mutant(
        "spark: a partition may end early",
        "rows vanish when a read ends before its last entry",
        "_check(part, expected, part.last + 1)",
        "pass",
        (READING + "test_entries_that_are_missing_or_come_twice_are_an_error",),
    ),
    Mutant(
        "spark: a task's client stands still while the query uses rows",
        "a query that takes long for a block fails: each answer was late, and no replica could be read",
        'loop = BackgroundLoop("read for Spark")',
        "import types\n"
        "one = asyncio.new_event_loop()\n"
        "loop = types.SimpleNamespace(call=one.run_until_complete, close=one.close)",
        (READING + "test_the_client_works_on_while_a_query_uses_the_rows_of_a_block",),
    ),
    Mutant(
        "spark: the order of entries is only asserted",
        "rows vanish where workers run without assertions",
        'if found != expected:\n    raise CorruptDataError(\n        f"the read went on,',
        'assert found == expected\nif False:\n    raise CorruptDataError(\n        f"the read went on,',
        (READING + "test_so_they_are_where_python_runs_without_assertions",),
    ),
    Mutant(
        "spark: the end of a striped ledger is not planned",
        "the last entry of every striped ledger is missing",
        "first, last = max(start, fragment_first), min(end, fragment_end) - 1",
        "first, last = max(start, fragment_first), min(end, fragment_end) - 1\n"
        "last -= fragment_end == count and metadata.write_quorum < metadata.ensemble_size",
        (PLANNING + "test_a_striped_ledger_is_planned_to_its_last_entry",),
    ),
    Mutant(
        "spark: the last range of each striped fragment is short",
        "the last entry of every fragment of a striped ledger is missing",
        "for low, high in pairwise(whole.first + whole.entries * i // count for i in range(count + 1)):\n"
        "    yield replace(whole, first=low, last=high - 1,",
        "for low, high in pairwise(whole.first + whole.entries * i // count for i in range(count + 1)):\n"
        "    yield replace(whole, first=low, last=high - 1 - (count > 1 and high > whole.last),",
        (PLANNING + "test_a_striped_ledger_is_planned_to_its_last_entry",),
    ),
    Mutant(
        "spark: ledgers with a password are left out unasked",
        "an export of all ledgers lacks some and says nothing",
        "if refused and not options.skip_unauthorized:",
        "if refused and options.ledgers is not None:",
        (PLANNING + "test_every_ledger_with_another_password_is_named_or_left_out",),
    ),
    Mutant(
        "spark: the lock on an export's directory outlives its holder",
        "a directory is refused for ever after an export died",
        "Create(node, json.dumps(owner).encode(), ephemeral=True)",
        "Create(node, json.dumps(owner).encode())",
        (LOCK + "test_the_lock_of_a_dead_process_is_forgotten",),
    ),
    Mutant(
        "spark: spellings of one directory have locks of their own",
        "two exports write into one directory",
        "return Path(unquote(parts.path) if is_uri(to) else to).resolve().as_uri()",
        "return Path(unquote(parts.path) if is_uri(to) else to).absolute().as_uri()",
        (LOCK + "test_every_spelling_of_a_target_is_one",),
    ),
    Mutant(
        "spark: a lost lock goes unnoticed",
        "an export that was cut off for long writes beside its successor",
        "if state is SessionState.EXPIRED:\n    self._lose()",
        "if state is SessionState.EXPIRED:\n    pass",
        (LOCK + "test_a_lost_lock_is_told_and_fails_what_it_was_for",),
    ),
    Mutant(
        "spark: a lock that was lost before a job goes unnoticed until the job has ended",
        "a whole job writes beside the exporter that has the directory now",
        "self._on_loss = on_loss\ntry:\n    self.check()\n    yield",
        "self._on_loss = on_loss\ntry:\n    yield",
        (LOCK + "test_a_lost_lock_is_told_and_fails_what_it_was_for",),
    ),
    Mutant(
        "spark: data files are not synced before the manifest names them",
        "after a loss of power, files of an export are empty",
        "for file in files:\n    self._disk.sync(file)",
        "pass",
        (DIRECTORY + POWER,),
    ),
    Mutant(
        "spark: lines of a manifest are not synced",
        "after a loss of power, rows are there twice, or nobody knows of which export they are",
        "view = view[os.write(fd, view) :]\nos.fsync(fd)",
        "view = view[os.write(fd, view) :]",
        (DIRECTORY + POWER,),
    ),
    Mutant(
        "spark: the names of files are not synced before the manifest says that all have theirs",
        "after a loss of power, files of an export are gone",
        "for directory in targets:\n    self._disk.sync_dir(directory)",
        "pass",
        (DIRECTORY + POWER,),
    ),
    Mutant(
        "spark: the staging directories are not synced",
        "after a loss of power, files that the manifest names are gone",
        "for above in {above for file in files for above in file.parents if above.is_relative_to(self._hidden)}:\n"
        "    self._disk.sync_dir(above)",
        "pass",
        (DIRECTORY + POWER,),
    ),
    Mutant(
        "spark: the entry of a new export's directory is not synced",
        "after a loss of power, an export is gone that was complete",
        "self._disk.make_dir(path)\n    self._disk.sync_dir(path.parent)",
        "self._disk.make_dir(path)",
        (DIRECTORY + POWER,),
    ),
    Mutant(
        "spark: the entry of a directory that a killed exporter has made is not synced",
        "after a loss of power, an export is gone that was complete",
        "with suppress(PermissionError):  # it was made by somebody else, or its owner has restricted it since\n"
        "    self._disk.sync_dir(above.parent)",
        "pass",
        (DIRECTORY + "test_power_lost_after_an_exporter_was_killed_costs_nothing_that_was_added",),
    ),
    Mutant(
        "spark: what others wrote beside an export goes unnoticed",
        "rows are there twice, with _SUCCESS and a summary",
        "if len(writes_of(there)) > 1:",
        "if len(writes_of(there)) > len(there):",
        (EXPORT + "test_a_uri_is_exported_to_once",),
    ),
    Mutant(
        "spark: the guard ends only the command itself",
        "what a start script has started stays when its program dies",
        "os.killpg(command.pid, signal.SIGKILL)  # also what a shell has left behind",
        "command.kill()",
        (JVM + "test_what_a_shell_leaves_behind_is_killed",),
    ),
    Mutant(
        "spark: an exporter gives files names without a look whether it still has the directory",
        "two exporters, one of which was stopped for a while, write every row twice",
        "self._check_ours()  # else who has taken it may not have read that line",
        "pass",
        (DIRECTORY + "test_of_two_that_take_turns_one_goes_on[slice(-2, -1, None)]",),
    ),
    Mutant(
        "spark: an exporter begins a new manifest behind that of another one",
        "batches that another exporter has added are forgotten, and their rows there twice after the next export",
        "self._take_number(self._number + 1, lambda: self.state)",
        "self._take_number(max(_numbers(self._hidden)) + 1, lambda: self.state)",
        (DIRECTORY + "test_of_two_that_think_they_have_it_one_goes_on_wherever_the_other_looks",),
    ),
    Mutant(
        "spark: an exporter doesn't read what a former one has left",
        "every row is there once for each export",
        "self.state = read()\nline = first_line(self.state)",
        "line = first_line(self.state)",
        (DIRECTORY + "test_each_run_adds_what_is_new",),
    ),
    Mutant(
        "spark: files of a batch that was committed never get their names",
        "an export that was killed lacks rows for ever",
        "if self.state.moves is not None:\n    self._move(self.state.moves)",
        "if self.state.moves is not None:\n    self.state = self.state.finished()",
        (DIRECTORY + "test_killed_at_any_step_it_goes_on[torn]",),
    ),
    Mutant(
        "spark: an export by day goes by the session's time zone",
        "entries are in the folder of another day",
        'f.date_from_unix_date(f.floor(f.unix_micros("time") / f.lit(86_400_000_000)).cast("int"))',
        'f.to_date("time")',
        ("tests/spark/test_spark_export_log.py::test_by_the_day_of_each_entry",),
    ),
    Mutant(
        "spark: an offset goes past what was available when the query began",
        "a query that reads what is available now never ends",
        "available = view.end_position if self._target is None else min(view.end_position, self._target)",
        "available = view.end_position",
        (STREAM + "test_what_is_available_now_stays_what_it_was",),
    ),
    Mutant(
        "spark: the first offset is looked for twice",
        "what is appended between the two calls is in no batch",
        "if self._initial is None:\n    self._initial",
        "if True:\n    self._initial",
        (STREAM + "test_where_a_query_begins",),
    ),
    Mutant(
        "spark: a stream takes up the offsets of another log",
        "entries of a log that was made anew are skipped",
        'uid = offset.get("log_uid", view.uid)',
        "uid = view.uid",
        (STREAM + "test_a_checkpoint_belongs_to_one_log",),
    ),
    Mutant(
        "spark: a batch is planned without a look at whose offsets these are",
        "a query whose log was deleted and made anew reads rows of both as those of one",
        "for offset in (start, end):  # of a checkpoint, perhaps of a former log\n    self._check_log(view, offset)",
        "pass",
        (STREAM + "test_a_batch_that_was_planned_of_a_deleted_log_is_not_read_from_its_successor[True]",),
    ),
    Mutant(
        "spark: startingOffsets of another log are taken for this one's",
        "a query or an export reads another log's entries, or passes over some",
        "if others := options.log_uids - {view.uid}:",
        "if others := frozenset[str]():",
        (STREAM + "test_startingoffsets_that_were_taken_from_a_checkpoint_belong_to_one_log",),
    ),
    Mutant(
        "spark: a batch is planned with an older view of the log",
        "a query that is started again fails with an entry past the end, for as long as bookies are away",
        'if view is None or view.end_position < end["position"]:',
        "if view is None:",
        (STREAM + "test_a_query_that_reads_what_is_available_now_knows_less_than_its_checkpoint",),
    ),
    Mutant(
        "spark: an offset goes back",
        "rows are there twice",
        "self._offered = max(begun, available)",
        "self._offered = available",
        (STREAM + "test_a_query_that_reads_what_is_available_now_knows_less_than_its_checkpoint",),
    ),
    Mutant(
        "spark: a limit of rows is one too large for each ledger before the last",
        "batches are larger than the limit allows",
        "entries -= part.last + 1 - part.first",
        "entries -= part.last - part.first",
        (STREAM + "test_a_limit_of_rows_counts_across_ledgers",),
    ),
    Mutant(
        "spark: positions of a gap count as entries",
        "a log with an accepted loss can't be exported any more",
        "len(read),\nlen(tasks),",
        "stop - position,\nlen(tasks),",
        (EXPORT_LOG + "test_a_log_with_an_accepted_loss_is_exported_and_the_gap_named",),
    ),
    Mutant(
        "spark: a gap counts as truncated",
        "an export or a query that has read everything fails behind an accepted loss",
        "unread = min(view.behind(done), start)",
        "unread = done",
        (EXPORT_LOG + "test_a_gap_before_which_everything_was_truncated_is_no_truncation",),
    ),
    Mutant(
        "spark: a query that begins in a gap fails as if entries were gone",
        "a stream behind an accepted loss can't go on",
        "first, unread = self._reader.first_position, self.behind(start)",
        "first, unread = self._reader.first_position, start",
        (EXPORT_LOG + "test_a_gap_before_which_everything_was_truncated_is_no_truncation",),
    ),
    Mutant(
        "spark: a newer plan is thought to have all of a batch",
        "an export ends though it only has to leave out ledgers that were deleted meanwhile",
        "return Runs.spans(span for planned in self.batches for span in planned.read.pairs()) >= batch.read",
        "return Runs.spans(span for planned in self.batches for span in planned.ids.pairs()) >= batch.read",
        (EXPORT_LOG + "test_a_newer_plan_tells_whether_entries_of_a_batch_were_deleted",),
    ),
    Mutant(
        "spark: truncation during an export ends it though it is to be skipped",
        "an export that takes longer than a log's retention allows never gets on",
        "if written != batch.rows and self._request.skip_truncated:",
        "if False:",
        (EXPORT_LOG + TRUNCATED_MEANWHILE,),
    ),
    Mutant(
        "spark: whatever is missing counts as truncated",
        "rows vanish from an export that skips truncated ones",
        "_check_count(job.count_from(self._spark_session(), first), len(batch.read.clipped(first)), job.place)",
        "pass",
        (EXPORT_LOG + "test_entries_that_are_missing_and_were_not_truncated_end_an_export_that_skips_truncated_ones",),
    ),
    Mutant(
        "spark: a batch keeps the gaps that it has to itself",
        "nobody can tell a gap of a log from rows that an export has lost",
        "totals=self.totals + added,\nmoves=moves,\ngaps=self.gaps | gaps,",
        "totals=self.totals + added,\nmoves=moves,\ngaps=self.gaps,",
        (DIRECTORY + "test_gaps_of_a_log_are_kept",),
    ),
    Mutant(
        "spark: a second column of payloads is dropped",
        "rows are stored without half of their data",
        "if len(schema.fields) > 1:",
        "if len(schema.fields) > 2:",
        (SINK + "test_other_rows_are_refused",),
    ),
    Mutant(
        "spark: a sink looks for its log in the tasks alone",
        "a query with a wrong name runs for hours before it fails",
        "async with bkpy.connect(options.metadata_uri, **options.client_settings()) as client:\n"
        "    await _read_list(client, options)",
        "pass",
        (SINK + "test_a_log_that_does_not_exist_is_an_error_before_any_task",),
    ),
    Mutant(
        "spark: a part of a deleted log is committed to its successor",
        "entries of a deleted log are in another one",
        "if metadata.custom_metadata.get(LOG_UID) != uid.encode():",
        "if not metadata.custom_metadata.get(LOG_UID):",
        (SINK + "test_a_ledger_of_a_deleted_log_does_not_get_into_its_successor",),
    ),
    Mutant(
        "spark: a batch is committed again",
        "every entry of a batch whose driver died is in the log twice",
        "if last is None or batch > last:",
        "if last is None or batch >= last:",
        (SINKS + "test_what_is_to_be_done_with_a_batch", SINK + "test_a_batch_that_is_repeated_is_not_committed_again"),
    ),
    Mutant(
        "spark: what is committed isn't sure to be there",
        "a ledger that somebody deletes at the same time is a hole in the log",
        "checks = [await _check_of(client, part, log_list.uid) for part in parts]",
        "checks: list[Check] = []",
        (SINK + "test_a_batch_whose_ledger_is_gone_is_not_committed",),
    ),
    Mutant(
        "spark: a log takes more writer ids than it may remember",
        "the list of the log grows without bound, or a batch of a forgotten writer is in the log twice",
        "    if writer_id not in known and len(known) >= producers_max:\n",
        "    if False:\n",
        (SINKS + "test_no_batch_is_committed_twice_however_many_write",),
    ),
    Mutant(
        "spark: a commit doesn't look for room in the list of the log",
        "a sink that can't commit ends the log's working writer with each try",
        "    _check_room(client, options, batch, parts, log_list)\n",
        "",
        (ROWS + "test_a_sink_that_finds_no_room_leaves_the_logs_writer_alone",),
    ),
    Mutant(
        "spark: a commit doesn't look how many ledgers it checks",
        "a sink whose batches have too many tasks ends the log's working writer with each try",
        '    logs.check_checks(options.log, checks, "write batches of fewer tasks, as after coalesce()")\n',
        "",
        (ROWS + "test_a_sink_with_too_many_tasks_leaves_the_logs_writer_alone",),
    ),
    Mutant(
        "spark: a first batch that is interrupted begins where its option says by now",
        "a query from `latest` skips what it has read of its first batch",
        '        if "begin" not in start:  # no batch',
        "        if False:  # no batch",
        (STREAM + "test_a_first_batch_that_is_interrupted_begins_where_it_began",),
    ),
    Mutant(
        "spark: an export that found nothing begins where the log does by now",
        "entries that were truncated between two rounds are missing, and nobody is told",
        "default=0 if state.next_batch else earliest)",
        "default=earliest)",
        (EXPORT_LOG + "test_what_was_truncated_behind_an_export_without_entries_is_not_passed_over_in_silence",),
    ),
    Mutant(
        "spark: a signal to an export that has lost its lock is a failure",
        "an export that goes on ignores Ctrl-C and SIGTERM, and begins the next round",
        "        except Exception:\n            self.check()\n            raise\n"
        "        finally:\n            self._on_loss = None\n",
        "        finally:\n            self._on_loss = None\n            self.check()\n",
        (LOCK + "test_a_signal_ends_an_export_that_has_lost_its_lock",),
    ),
]
