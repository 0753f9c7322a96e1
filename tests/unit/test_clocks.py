"""Tests in real time wait for conditions: none sleeps for a fixed time, and none compares a clock in an assertion.

A pause is long enough on one machine and too short on a busy one. `tests/waiting.py` waits for a condition, and the
folders in virtual time (`tests/unit/conftest.py`, `tests/sim`) may sleep: there a pause costs nothing, and is exact.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]
VIRTUAL = ("unit/bookie/", "unit/client/", "unit/log/", "unit/metadata/", "unit/recovery/", "sim/")
CLOCKS = {"monotonic", "perf_counter", "time"}

# Pauses that are no waiting, by file and function, each with its reason.
ALLOWED = {
    ("cluster/aiozk_faults.py", "d4"): "a program that shows a defect of aiozk",
    ("cluster/aiozk_faults.py", "d8"): "a program that shows a defect of aiozk",
    ("cluster/aiozk_faults.py", "tick"): "a program that shows a defect of aiozk",
    ("cluster/test_bookie_drain.py", "load"): "the pace of a load",
    ("cluster/test_cli_inspect.py", "write"): "the pace of a load",
    (
        "cluster/test_cli_log.py",
        "test_what_is_written_is_read_back_byte_for_byte",
    ): "entries have the time at which they were written",
    (
        "cluster/test_metadata_zookeeper_faults.py",
        "test_d8_half_a_frame_neither_blocks_the_loop_nor_the_call",
    ): "counts turns of a loop that must not be blocked",
    ("cluster/test_metadata_zookeeper_faults.py", "tick"): "counts turns of a loop that must not be blocked",
    ("compat/make_space.py", "_killed_in_scrub"): "a program that makes directories of old software",
    ("compat/make_space.py", "run"): "a program that makes directories of old software",
    ("faults/load.py", "_append_nowait"): "the pace of a load",
    ("faults/test_healing.py", "_switch"): "how long a fault lasts",
    ("faults/test_network_cuts.py", "reset_again_and_again"): "the pace of faults",
    (
        "faults/test_proxy.py",
        "test_delayed_bytes_arrive_late_whole_and_in_order",
    ): "a lower bound: a busy machine only adds to it",
    ("spark/kill_driver.py", "commit"): "a program that is slow, to be killed at work",
    (
        "unit/demo/test_streaming_of_the_demo.py",
        "test_a_replay_takes_the_time_that_it_is_given",
    ): "a lower bound: a busy machine only adds to it",
    ("unit/storage/scrub/test_scrub.py", "main"): "on a simulated loop of its own",
    (
        "unit/storage/scrub/test_scrub.py",
        "test_a_file_that_says_nonsense_costs_a_round_and_no_more",
    ): "on a simulated loop of its own",
    (
        "unit/storage/scrub/test_scrub.py",
        "test_a_restart_in_the_middle_goes_on_from_where_it_was",
    ): "on a simulated loop of its own",
    ("unit/storage/scrub/test_scrub.py", "test_it_keeps_to_its_rate"): "on a simulated loop of its own",
    (
        "unit/storage/scrub/test_scrub.py",
        "test_the_interval_counts_from_the_last_full_round_whatever_restarts_there_are",
    ): "on a simulated loop of its own",
    (
        "unit/storage/scrub/test_scrub.py",
        "test_without_an_interval_it_scrubs_only_when_it_is_asked_to",
    ): "on a simulated loop of its own",
    (
        "unit/storage/space/test_compaction.py",
        "test_it_keeps_to_its_rate",
    ): "a lower bound: a busy machine only adds to it",
}

# Older tests whose pauses still have to become waits. Nothing may be added.
LEFT: dict[str, set[str]] = {
    "cluster/test_accept_loss.py": {"test_a_ledger_two_of_whose_bookies_are_gone_is_closed_when_its_id_is_typed"},
    "cluster/test_append_and_read.py": {
        "test_opening_does_not_disturb_the_writer_and_reads_what_is_confirmed",
        "test_tail_follows_the_writer_to_the_end",
    },
    "cluster/test_bench.py": {"test_what_is_stored_is_verified_on_each_bookie_while_entries_are_appended_at_a_rate"},
    "cluster/test_bookie_drain.py": {"test_a_bookie_leaves_under_load_though_it_is_cancelled_and_killed_in_the_middle"},
    "cluster/test_bookie_process.py": {
        "test_a_bookie_says_whether_it_lives_and_whether_it_is_ready",
        "test_a_hangup_ends_no_bookie",
        "test_registers_again_after_its_session_was_lost",
    },
    "cluster/test_cli_inspect.py": {"test_a_bookie_that_is_written_to_is_looked_into"},
    "cluster/test_cli_local.py": {"test_ctrl_c_during_a_restart_ends_everything"},
    "cluster/test_collection.py": {"test_a_server_that_lags_behind_lists_only_when_it_has_caught_up"},
    "cluster/test_demo_failures.py": {"test_bookies_that_are_still_starting_are_waited_for"},
    "cluster/test_failover.py": {"test_the_loss_of_any_one_zookeeper_server"},
    "cluster/test_memory.py": {"test_memory_falls_again_after_load"},
    "cluster/test_metadata_registration.py": {
        "test_moving_waits_for_the_store",
        "test_what_changes_in_place_is_seen_after_a_while",
    },
    "cluster/test_rebalance.py": {"test_a_new_bookie_gets_its_share_though_the_command_is_killed_meanwhile"},
    "compat/test_old_software.py": {"test_a_status_that_a_client_does_not_know_costs_that_bookie_and_nothing_else"},
    "faults/test_clusters.py": {"test_processes_behind_proxies_are_suspended_killed_and_started"},
    "faults/test_ensemble_changes.py": {"reached"},
    "faults/test_leaving.py": {"refused"},
    "faults/test_oracle.py": {"test_appends_that_hang_are_noticed"},
    "spark/logs.py": {"_seen"},
    "spark/test_examples_flights.py": {"test_the_pipeline_as_its_readme_says", "wait_for"},
    "spark/test_spark_executors.py": {"wait_until"},
    "spark/test_spark_export_killed.py": {"test_killed_at_random_an_export_goes_on"},
    "spark/test_spark_export_log_killed.py": {"let"},
    "spark/test_spark_kills.py": {"test_what_is_read_is_exactly_the_log"},
    "spark/test_spark_moved_ledgers.py": {
        "digests",
        "test_tasks_go_on_and_those_that_begin_later_read_what_was_moved",
        "waiting_at",
    },
    "unit/protocol/test_access.py": {"test_a_rule_of_many_stars_is_decided_at_once"},
    "unit/runtime/test_lmdb_pages.py": {"test_a_store_whose_pages_can_not_be_looked_through_goes_on"},
    "unit/storage/space/test_compaction.py": {
        "test_a_log_that_cannot_be_written_or_removed_is_told_and_tried_again",
        "test_a_stop_in_the_middle_leaves_a_log_with_a_row",
    },
    "unit/storage/test_ledger_storage.py": {"read_on", "test_reads_during_a_checkpoint_see_everything"},
}


class Found(NamedTuple):
    path: str
    function: str
    line: int


def of_a_clock(node: ast.AST) -> bool:
    """Whether an expression reads a clock."""
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in CLOCKS
        and ast.unparse(call.func.value).rpartition(".")[2] in ("time", "loop", "get_running_loop()")
        for call in ast.walk(node)
    )


def sleeps(node: ast.AST) -> bool:
    """Whether this is a sleep for a literal time; `sleep(0)` lets others run."""
    match node:
        case ast.Call(func=ast.Attribute(attr="sleep"), args=[ast.Constant(value=seconds), *_]):
            return seconds != 0
    return False


def compares_a_clock(node: ast.AST, times: set[str]) -> bool:
    """Whether this is an assertion about a clock, or about one of `times`."""
    return isinstance(node, ast.Assert) and any(
        of_a_clock(compare) or any(isinstance(name, ast.Name) and name.id in times for name in ast.walk(compare))
        for compare in ast.walk(node)
        if isinstance(compare, ast.Compare)
    )


def offences(source: str) -> Iterator[tuple[str, int]]:
    """The function and the line of each."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and of_a_clock(node.value)]
        times = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(function):
            if sleeps(node) or compares_a_clock(node, times):
                yield function.name, node.lineno  # type: ignore[attr-defined]


@functools.cache
def found() -> list[Found]:
    every: list[Found] = []
    for path in sorted(TESTS.rglob("*.py")):
        name, source = str(path.relative_to(TESTS)), path.read_text()
        if not name.startswith(VIRTUAL) and any(f"{word}(" in source for word in ("sleep", *CLOCKS)):
            every += (Found(name, function, line) for function, line in offences(source))
    return every


def test_no_test_in_real_time_sleeps_or_compares_a_clock() -> None:
    new = [
        f"tests/{one.path}:{one.line} {one.function}: wait for a condition with tests.waiting"
        for one in found()
        if (one.path, one.function) not in ALLOWED and one.function not in LEFT.get(one.path, ())
    ]
    assert not new, "\n".join(new)


def test_what_is_allowed_is_there() -> None:
    there = {(one.path, one.function) for one in found()}
    assert there == ALLOWED.keys() | {(path, function) for path, functions in LEFT.items() for function in functions}


def test_the_old_forms_are_noticed() -> None:
    def noticed(*lines: str) -> bool:
        return bool(list(offences("async def test() -> None:\n" + "\n".join(f"    {line}" for line in lines))))

    assert noticed("await asyncio.sleep(0.3)")
    assert noticed("time.sleep(1)")
    assert noticed("began = time.monotonic()", "await work()", "assert time.monotonic() - began < 5")
    assert noticed("began = loop.time()", "took = loop.time() - began", "assert took < SOON_S")
    assert noticed("assert asyncio.get_running_loop().time() <= until")
    assert not noticed("await asyncio.sleep(0)")
    assert not noticed("await asyncio.sleep(PAUSE_S)", "began = time.monotonic()", "assert work(began)")
