"""The command line and the local cluster."""

from __future__ import annotations

from tests.mutants import Mutant

LOCAL = "tests/cluster/test_local_cluster.py::"
COMMANDS = "tests/cluster/test_cli.py::"
PROCESS = "tests/cluster/test_cli_process.py::"
WRITE = "tests/cluster/test_cli_write.py::"
RUNNING = "tests/unit/cli/test_running.py::"
ADMIN = "tests/unit/cli/bookie/test_admin_command.py::"
SUPERVISOR = "tests/unit/local/test_supervisor.py::"

MUTANTS: list[Mutant] = [
    Mutant(
        "a local cluster that SIGTERM ends as it starts says that it was Ctrl-C",
        "a supervisor takes its own stop for somebody's at the keyboard",
        "        return ended_by\n",
        "        return INTERRUPTED\n",
        ("tests/unit/cli/test_local_signals.py::test_the_status_says_which_signal_ended_the_start",),
    ),
    Mutant(
        "an arrow key is taken for an escape and letters",
        "an arrow key sorts the table of bkpy cluster top anew, or hides the bookies",
        'return list(_SEQUENCE.sub("", typed.decode(errors="replace")))',
        'return list(typed.decode(errors="replace"))',
        ("tests/unit/cli/test_top_keys.py::test_only_an_escape_by_itself_ends_it",),
    ),
    Mutant(
        "a host with a blank is an error of the program's",
        "a wrong command line looks like a defect",
        """    except http.client.InvalidURL as e:
        raise ConfigError(f"--admin: {e}") from e
""",
        """    except ZeroDivisionError:
        raise
""",
        ("tests/unit/cli/bookie/test_health_address.py::test_what_is_no_address_is_a_wrong_option",),
    ),
    Mutant(
        "a question that is asked during work reads its answer in the event loop",
        "SIGTERM does nothing at the question, and ZooKeeper ends the command's session meanwhile",
        """    async with contextlib.aclosing(_from_thread(STANDARD_INPUT)) as chunks:
        async for chunk in chunks:
            answer += chunk
            if b"\\n" in chunk or len(answer) > _CHUNK_BYTES:
                break
""",
        """    answer = sys.stdin.readline().encode()
""",
        ("tests/unit/cli/test_questions.py::test_work_goes_on_during_a_question",),
    ),
    Mutant(
        "a confirmation that takes time isn't waited for",
        "bkpy bookie decommission removes the bookie whatever the operator answers",
        "    if inspect.isawaitable(asked):\n        await asked",
        "    if inspect.isawaitable(asked):\n        pass",
        ("tests/unit/admin/test_admin_client.py::test_a_confirmation_that_raises_keeps_the_bookie",),
    ),
    Mutant(
        "a table whose reader has gone ends its command as a failure",
        "a pipe to head looks as if the command had failed, and says nothing",
        "console = Output(highlight=False, markup=False, emoji=False)",
        "console = Console(highlight=False, markup=False, emoji=False)",
        ("tests/unit/cli/test_tables.py::test_a_reader_that_goes_away_is_known_as_such",),
    ),
    Mutant(
        "an error without a text ends the supervision of a local cluster",
        "bkpy local ends with all bookies because one did not start in time",
        "            why, *_ = str(e).splitlines() or [repr(e)]",
        "            why, *_ = str(e).splitlines()",
        (SUPERVISOR + "test_a_start_that_fails_without_a_text_is_tried_again",),
    ),
    Mutant(
        "a ledger with a password holds up those behind it",
        "ledgers of a range aren't recovered, and what was done is not shown",
        "isinstance(e, MetadataUnavailableError | ClientClosedError)",
        "isinstance(e, MetadataUnavailableError | CallerError)",
        (f"{COMMANDS}test_one_ledger_that_fails_holds_up_no_other",),
    ),
    Mutant(
        "control characters of the upper half reach the terminal",
        "an entry moves the cursor, and shows what isn't there",
        '(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in',
        '(char < " " or char in',
        ("tests/cluster/test_cli_terminal.py::test_entries_are_escaped_on_a_terminal_and_raw_elsewhere",),
    ),
    Mutant(
        "a ledger that does not exist holds up those behind it",
        "a range with one deleted ledger can't be shown or recovered",
        "if len(ledger_ids) == 1 or isinstance(e, MetadataUnavailableError | ClientClosedError):\n    raise",
        "raise",
        (f"{COMMANDS}test_every_command_of_ledgers_takes_ids_and_ranges",),
    ),
    Mutant(
        "a range of ledgers ends before its last one",
        "a ledger that should be deleted or exported is left out",
        "ids.update(range(first, last + 1))",
        "ids.update(range(first, max(last, first + 1)))",
        (f"{COMMANDS}test_every_command_of_ledgers_takes_ids_and_ranges", "tests/spark/apart/test_spark_options.py"),
    ),
    Mutant(
        "a part that ends at once is started again without growing pauses",
        "a bookie that can't start keeps the machine busy",
        "pause_s = min(2 * pause_s, self._pause_max_s)",
        "pass",
        (f"{SUPERVISOR}test_the_pause_grows_up_to_its_bound_while_a_process_ends_at_once",),
    ),
    Mutant(
        "the pause never becomes short again",
        "a bookie that ran for a week is away for half a minute",
        "if time.monotonic() - running_since >= self._steady_s:",
        "if False:",
        (f"{SUPERVISOR}test_a_process_that_ran_for_long_is_started_after_the_shortest_pause",),
    ),
    Mutant(
        "a start that fails ends the supervision of all",
        "one bookie that can't start takes the whole local cluster with it",
        "except (BookKeeperError, OSError) as e:\n    why, *_ = str(e)",
        "except ZeroDivisionError as e:\n    why, *_ = str(e)",
        (f"{SUPERVISOR}test_a_start_that_fails_is_tried_again_after_a_longer_pause",),
    ),
    Mutant(
        "the bookies of a cluster are new objects after stop and start",
        "who kept one believes that it does not run, and can't stop it",
        "bookie = known.get(bookie_id) or LocalBookie(self, bookie_id, port)",
        "bookie = LocalBookie(self, bookie_id, port)",
        (f"{LOCAL}test_it_grows_and_its_bookies_are_the_same_objects_after_stop_and_start",),
    ),
    Mutant(
        "a password file may be empty",
        "a ledger that was to be protected can be read by everybody",
        "if not password.strip():",
        "if False:",
        ("tests/unit/config/test_password_file.py::test_a_file_without_a_password_is_refused",),
    ),
    Mutant(
        "a password loses all white space at its end",
        "ledgers that were written with such a password can't be opened any more",
        'password = content.removesuffix(b"\\n").removesuffix(b"\\r")',
        "password = content.rstrip()",
        ("tests/unit/config/test_password_file.py::test_one_line_break_at_the_end_does_not_count",),
    ),
    Mutant(
        "ledgers are deleted though nobody was there to ask",
        "a script without --yes deletes ledgers",
        "if not answer and not sys.stdin.isatty():",
        "if not answer and not sys.stdin.isatty():\n    return\nif not answer:",
        (f"{COMMANDS}test_nothing_is_deleted_without_a_yes",),
    ),
    Mutant(
        "deleting ends at the first ledger that is missing",
        "the ledgers behind it stay",
        "if not isinstance(e, missing):\n    return",
        "return",
        (f"{COMMANDS}test_deleting_goes_on_past_a_ledger_that_is_missing_and_says_what_became_of_each",),
    ),
    Mutant(
        "SIGTERM does not end a command in order",
        "the ledger of a write that is terminated stays open, and nobody knows how much was acknowledged",
        "before = signal.signal(signal.SIGTERM, sigterm)",
        "before = signal.getsignal(signal.SIGTERM)",
        (f"{WRITE}test_a_signal_is_answered_with_what_was_acknowledged",),
    ),
    Mutant(
        "entries that were read count as acknowledged",
        "a user believes what a fence or a lost bookie took away",
        "return 0 if self._writer is None else self._writer.last_add_confirmed + 1",
        "return 0 if self._writer is None else self._writer.last_add_confirmed + 2",
        (f"{WRITE}test_a_fence_is_told_of_with_what_was_acknowledged",),
    ),
    Mutant(
        "missing copies are not warned of",
        "a user takes three copies for granted where there are two",
        "writing.warn()",
        "pass",
        (f"{WRITE}test_copies_that_are_missing_are_told_of",),
    ),
    Mutant(
        "copies that are on their way count as missing",
        "one write of six on a healthy cluster warns of copies that are there",
        "for bookie_id, first in self._under_replicated.items():",
        "for bookie_id, first in self._under_replicated.items() or [('a bookie', 0)]:",
        (f"{WRITE}test_success_is_told_of_with_its_rate",),
    ),
    Mutant(
        "what a bookie lacks begins behind the first entry that it lacks",
        "somebody who copies what is missing leaves a hole",
        "start if start > entry_id else start + ((entry_id - start) // self.step + 1) * self.step",
        "start if start > entry_id else start + ((entry_id - start) // self.step + 2) * self.step",
        (
            "tests/unit/protocol/repair/test_holdings.py::test_the_next_entry_of_a_share_is_the_lowest_behind_the_given_one",
        ),
    ),
    Mutant(
        "a published last add confirmed counts as an entry",
        "a bookie whose entries are missing is shown as complete, or the other way round",
        "return max((header.entry_id for header in walk(reply.body[:size])), default=-1)",
        "return max((header.last_add_confirmed for header in walk(reply.body)), default=-1)",
        ("tests/cluster/test_inspection.py::test_each_bookie_tells_its_last_entry",),
    ),
    Mutant(
        "a closed standard stream stays closed",
        "what is printed goes to whatever got its descriptor, or the command dies in an assertion",
        "_open_closed_streams()\ntry:",
        "try:",
        (f"{PROCESS}test_a_standard_stream_that_is_closed_is_empty",),
    ),
    Mutant(
        "the library is loaded before Ctrl-C is heeded",
        "Ctrl-C while the command is being loaded is answered with a traceback",
        "TYPE_CHECKING = False  # for which",
        "TYPE_CHECKING = True  # for which",
        (f"{PROCESS}test_nothing_is_loaded_before_ctrl_c_is_heeded",),
    ),
    Mutant(
        "a cluster may be made inside another one's tree",
        "two clusters name the same nodes",
        'if await store.exists(f"{node}/{paths.INSTANCE_ID}"):',
        "if False:",
        ("tests/cluster/test_metadata_ledgers.py::test_a_cluster_inside_anothers_tree_is_refused",),
    ),
    Mutant(
        "a bookie may advertise an address that nobody can connect to",
        "the bookie is registered, and no client reaches it",
        "if is_wildcard(host) or advertised == 0:",
        "if advertised == 0:",
        ("tests/unit/config/test_config.py::test_refusals_are_one_line_and_name_their_place",),
    ),
    Mutant(
        "SIGTERM that comes when the work has ended is forgotten",
        "a command with another step goes on with it, as if nobody had ended it",
        "        if sigterm.unhandled:\n            raise Terminated\n",
        "",
        (f"{RUNNING}test_sigterm_is_heeded_whenever_it_comes",),
    ),
    Mutant(
        "a command takes the run that was running for the one it was asked for",
        "a dry run of a collection reports what a real one did, and an operator trusts it",
        "if started or already_running is not None:\n    return report",
        "return report",
        (f"{ADMIN}test_another_run_is_started_after_the_one_that_was_running",),
    ),
    Mutant(
        "a command reports work that is still running as if it had ended",
        "a scrub that has yet to find damage exits with status 0",
        "while self.is_running(report, first):",
        "if self.is_running(report, first):",
        (f"{ADMIN}test_work_is_started_with_its_request_and_its_last_report_is_printed",),
    ),
    Mutant(
        "with JSON an administrative command always succeeds",
        "a script that watches for damage sees none",
        "self.show(report)\nreturn self.exit_status(report)",
        "self.show(report)\nreturn 0 if as_json else self.exit_status(report)",
        (f"{ADMIN}test_the_exit_status_follows_from_the_last_report",),
    ),
    Mutant(
        "findings that an inspection leaves out are not counted",
        "who inspects with --limit takes what is shown for all",
        "            if self._shown >= self._limit:\n                self._hidden += 1\n",
        "            if self._shown >= self._limit:\n",
        ("tests/cluster/test_cli_inspect.py::test_it_is_said_when_one_finding_is_not_shown_and_only_then",),
    ),
    Mutant(
        "quorums have any number of digits",
        "an unexpected error, with a trace, for a wrong command line",
        r'(\d{1,9})\s*")',
        r'(\d+)\s*")',
        ("tests/unit/cli/test_arguments.py::test_what_is_no_three_quorums_is_refused",),
    ),
    Mutant(
        "a setting of a local cluster that is None is written",
        "no bookie of the cluster starts",
        " for name, value in (config or {}).items() if value is not None}",
        " for name, value in (config or {}).items()}",
        ("tests/cluster/test_local_cluster.py::test_settings_reach_the_bookies_and_mistakes_are_refused",),
    ),
    Mutant(
        "a process that was killed while it inspected files has found damage",
        "where memory is short, an operator is advised to rebuild a sound index",
        "if number not in _CRASHES:",
        "if False:",
        ("tests/cluster/test_cli_inspect.py::test_only_a_crash_of_the_process_that_reads_is_damage",),
    ),
    Mutant(
        "a file may have an empty name",
        "where the variable with its name isn't set, the present directory is taken for it",
        '        if not value:\n            self.fail("the name is empty", param, ctx)\n',
        "",
        ("tests/unit/cli/test_arguments.py::test_a_file_without_a_name_is_refused",),
    ),
    Mutant(
        "seconds of an option may be infinite, or no number",
        "an export that goes on round by round ends after its first one",
        "if not found <= SECONDS_MAX:",
        "if False:",
        ("tests/unit/cli/test_arguments.py::test_seconds_that_nothing_waits_for_are_refused",),
    ),
    Mutant(
        "a time that no zone has is an error of the program's",
        "a wrong command line looks like a defect",
        "except (ValueError, OverflowError):  # also of the first day and the last, which other zones don't have",
        "except OverflowError:",
        ("tests/unit/cli/test_arguments.py::test_a_time_that_this_machines_zone_has_not_is_refused",),
    ),
    Mutant(
        "a local cluster escapes what its bookies read as JSON does",
        "no bookie starts in a directory whose name has a character beyond 16 bits",
        "json.dumps(value, ensure_ascii=False)}\\n",
        "json.dumps(value)}\\n",
        (f"{LOCAL}test_a_bookies_settings_name_its_directories_whatever_they_are_called",),
    ),
    Mutant(
        "a damaged file of a local cluster's ports is an error of the program's",
        "after a power cut the cluster doesn't start, and nobody says what to do",
        "except ValueError as e:\n    raise ConfigError(\n        f\"the file of the cluster's ports is damaged",
        "except ImportError as e:\n    raise ConfigError(\n        f\"the file of the cluster's ports is damaged",
        (f"{LOCAL}test_a_damaged_file_of_ports_is_refused_with_what_to_do",),
    ),
    Mutant(
        "directories of a local cluster's bookies given as text are a list of letters",
        "the journal of /fast/disk is in /, and four more are made",
        'self._config[name] = parse_text(BookieSettings, name, given, "config")',
        "self._config[name] = list(given)",
        ("tests/cluster/test_local_cluster.py::test_directories_are_a_list_or_have_commas_between_them",),
    ),
    Mutant(
        "all bookies of a local cluster in one directory",
        "all but one refuse to start, and blame another process",
        "if os.path.isabs(directory) and len(self.bookies) > 1:",
        "if os.path.isabs(directory) and len(self.bookies) > 9:",
        ("tests/cluster/test_local_cluster.py::test_a_directory_that_all_bookies_would_share_is_refused",),
    ),
    Mutant(
        "a full disk without a file",
        "nobody knows which of the disks is full",
        "raise OSError(e.errno, e.strerror, str(path)) from e",
        "raise",
        ("tests/unit/runtime/test_os_errors.py::test_a_write_that_fails_names_its_file",),
    ),
    Mutant(
        "a process of the demonstration that was killed makes no progress",
        "its user waits for what is dead",
        'how = "makes no progress" if process.running else how_it_ended(process.exit_status)',
        'how = "makes no progress"',
        ("tests/unit/demo/test_flights_of_the_demo.py::test_a_process_that_was_killed_is_not_said_to_be_slow",),
    ),
]
