"""Tests in real time wait for conditions: none sleeps for a fixed time, none compares a clock, none waits by a loop.

A pause is long enough on one machine and too short on a busy one. `tests/waiting.py` waits for a condition, and the
folders in virtual time (`tests/unit/conftest.py`, `tests/sim`) may sleep: there a pause costs nothing, and is exact.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.unit.conftest import VIRTUAL
from tests.unit.test_virtual_time import REAL

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]
SIMULATED = ("sim/", *(f"unit/{folder}/" for folder in VIRTUAL))
CLOCKS = {"monotonic", "perf_counter", "time"}
LOOKED_AT = (ast.Assign, ast.Call, ast.Assert, ast.If, ast.While, ast.IfExp)

# Pauses that are no waiting, by file and function, each with its reason.
ALLOWED = {
    ("unit/blocking/test_blocking.py", "interrupted"): "a call that a cancellation does not end at once",
    ("unit/blocking/test_blocking.py", "reluctant"): "a call that a cancellation does not end at once",
    ("chaos/clients.py", "consume"): "the pace of a load",
    ("chaos/clients.py", "consume_some"): "the pace of a load",
    ("chaos/clients.py", "ledgers"): "the pace of a load",
    ("chaos/clients.py", "write"): "the pace of a load",
    ("chaos/clients.py", "_write_term"): "the pace of a load",
    ("chaos/run.py", "_lane"): "when faults begin",
    ("chaos/run.py", "_progress"): "the pace of a line of progress",
    ("cluster/aiozk_faults.py", "d4"): "a program that shows a defect of aiozk",
    ("cluster/aiozk_faults.py", "tick"): "a program that shows a defect of aiozk",
    (
        "cluster/test_autorecovery.py",
        "test_switched_off_nothing_is_marked_and_a_process_without_a_bookie_does_it_too",
    ): "how long nothing must happen, where only real time shows it",
    ("cluster/test_bookie_drain.py", "load"): "the pace of a load",
    ("cluster/test_cli_inspect.py", "write"): "the pace of a load",
    ("cluster/test_top_command.py", "append_forever"): "the pace of a load",
    (
        "cluster/test_cli_log.py",
        "test_what_is_written_is_read_back_byte_for_byte",
    ): "entries have the time at which they were written",
    ("cluster/test_kill.py", "write_until_told"): "the pace of a load",
    ("cluster/test_replaced_disk.py", "denies_nothing"): "the pace of a load",
    ("cluster/test_metadata_zookeeper_faults.py", "tick"): "counts turns of a loop that must not be blocked",
    ("compat/make_space.py", "_killed_in_scrub"): "a program that makes directories of old software",
    ("compat/make_space.py", "run"): "a program that makes directories of old software",
    ("compat/remote_client.py", "append_to_log"): "the pace of a load, during which a log rolls",
    ("compat/test_old_data.py", "test_logs_are_read_and_written_on"): "the pace of a load, during which a log rolls",
    ("compat/test_rolling_upgrade.py", "_write"): "the pace of a load",
    ("faults/load.py", "_append_nowait"): "the pace of a load",
    ("faults/ordering.py", "serve"): "the pace at which a service comes back",
    ("faults/orders.py", "_answered"): "the pace of a load",
    ("faults/orders.py", "_lane"): "how long the attack lasts",
    ("faults/orders.py", "supervise"): "the pace at which a service comes back",
    ("faults/load.py", "_lane"): "the pace of a load",
    ("faults/network.py", "_pass"): "a network that delays: its clock is what it is about",
    ("faults/proxy.py", "pump"): "a network that delays: its clock is what it is about",
    ("faults/test_ensemble_changes.py", "replies_cut"): "how long a fault lasts",
    ("faults/test_ensemble_changes.py", "requests_cut"): "how long a fault lasts",
    ("faults/test_ensemble_changes.py", "suspended"): "how long a fault lasts",
    ("faults/test_healing.py", "_switch"): "how long a fault lasts",
    ("faults/test_machines.py", "test_writing_goes_on_and_nothing_is_lost"): "how long a fault lasts",
    ("faults/test_network_cuts.py", "reset_again_and_again"): "how long a fault lasts",
    ("faults/test_network_cuts.py", "write_on"): "how long a fault lasts",
    (
        "faults/test_proxy.py",
        "test_a_cut_network_delays_both_directions_and_loses_nothing",
    ): "how long nothing must happen, where only real time shows it",
    (
        "faults/test_proxy.py",
        "test_a_silent_proxy_accepts_and_says_nothing",
    ): "how long nothing must happen, where only real time shows it",
    (
        "faults/test_proxy.py",
        "test_a_stopped_direction_delivers_everything_later_and_the_other_one_goes_on",
    ): "how long nothing must happen, where only real time shows it",
    (
        "faults/test_proxy.py",
        "test_a_stopped_direction_takes_a_bounded_amount",
    ): "how long nothing must happen, where only real time shows it",
    (
        "faults/test_proxy.py",
        "test_after_dropping_new_connections_work",
    ): "how long nothing must happen, where only real time shows it",
    (
        "faults/test_proxy.py",
        "test_delayed_bytes_arrive_late_whole_and_in_order",
    ): "a lower bound: a busy machine only adds to it",
    (
        "faults/test_proxy.py",
        "test_dropped_bytes_never_arrive_and_the_connection_never_delivers_again",
    ): "how long nothing must happen, where only real time shows it",
    (
        "faults/test_proxy.py",
        "test_dropping_takes_what_is_on_its_way_too",
    ): "how long nothing must happen, where only real time shows it",
    (
        "faults/test_proxy.py",
        "test_half_open_connections_are_silent_until_the_fault_ends",
    ): "how long nothing must happen, where only real time shows it",
    (
        "faults/test_proxy.py",
        "test_stop_does_not_wait_for_a_receiver_that_reads_nothing",
    ): "how long nothing must happen, where only real time shows it",
    (
        "faults/test_proxy.py",
        "test_the_end_of_a_connection_is_not_told_while_bytes_are_dropped",
    ): "how long nothing must happen, where only real time shows it",
    ("spark/kill_driver.py", "commit"): "a program that is slow, to be killed at work",
    ("spark/logs.py", "_append_for"): "the pace of a load",
    ("spark/test_spark_kills.py", "test_what_is_read_is_exactly_the_log"): "the pace of a load",
    ("spark/test_spark_moved_ledgers.py", "digests"): "in a process of Spark, which has no module of the tests",
    ("spark/test_spark_stream.py", "stop_and_start"): "the pace of a load",
    ("unit/bookie/bookkeeper/test_start_tls.py", "go_on"): "a reset of the kernel's, which nobody can wait for",
    (
        "unit/bookie/test_files.py",
        "test_it_is_said_when_no_file_can_be_opened_any_more",
    ): "how long nothing must happen, where only real time shows it",
    (
        "unit/bookie/connection/test_tls.py",
        "test_a_bookie_says_when_its_certificate_ends_and_what_is_wrong_with_it",
    ): "a date, to within a minute",
    (
        "unit/bookie/connection/test_tls.py",
        "test_what_is_not_read_from_a_client_waits_in_its_own_socket",
    ): "how long nothing must happen, where only real time shows it",
    (
        "unit/demo/test_streaming_of_the_demo.py",
        "test_a_replay_takes_the_time_that_it_is_given",
    ): "a lower bound: a busy machine only adds to it",
    ("unit/runtime/test_pacer.py", "main"): "on a simulated loop of its own",
    (
        "unit/runtime/test_pacer.py",
        "test_turns_of_several_tasks_stay_within_the_rate",
    ): "on a simulated loop of its own",
    ("unit/storage/scrub/test_scrub.py", "main"): "on a simulated loop of its own",
    (
        "unit/storage/space/test_compaction.py",
        "test_it_keeps_to_its_rate",
    ): "a lower bound: a busy machine only adds to it",
    ("unit/storage/test_ledger_storage.py", "read_on"): "the pace of a load",
    ("waiting.py", "eventually"): "it is what waits",
    ("waiting.py", "eventually_here"): "it is what waits",
}


class Found(NamedTuple):
    path: str
    function: str
    line: int
    what: str


def of_a_clock(node: ast.AST) -> bool:
    """Whether an expression reads a clock."""
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in CLOCKS
        and ast.unparse(call.func.value).rpartition(".")[2] in ("time", "loop", "get_running_loop()")
        for call in ast.walk(node)
    )


def fixed(node: ast.expr) -> bool:
    """Whether a time is always the same: of numbers, and of the module's constants."""
    names = [name.id for name in ast.walk(node) if isinstance(name, ast.Name)]
    calls = any(isinstance(call, ast.Call) for call in ast.walk(node))
    return not calls and all(name.isupper() for name in names) and ast.unparse(node) != "0"


def sleeps(node: ast.AST) -> ast.expr | None:
    """How long, where this is a sleep."""
    match node:
        case ast.Call(func=ast.Attribute(attr="sleep"), args=[seconds, *_]):
            return seconds
    return None


def compares_a_clock(node: ast.AST, times: set[str]) -> bool:
    """Whether an assertion, a condition or a loop compares a clock, or one of `times`."""
    if not isinstance(node, ast.Assert | ast.If | ast.While | ast.IfExp):
        return False
    return any(
        of_a_clock(compare) or any(isinstance(name, ast.Name) and name.id in times for name in ast.walk(compare))
        for compare in ast.walk(node.test)
        if isinstance(compare, ast.Compare)
    )


def waits(node: ast.AST) -> bool:
    """Whether this is a loop that looks at something, sleeps, and looks again: a copy of what tests/waiting.py does."""
    return isinstance(node, ast.While) and any(
        (seconds := sleeps(inner)) is not None and ast.unparse(seconds) != "0" for inner in own(node)
    )


def own(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below this one but those of functions inside."""
    below = list(ast.iter_child_nodes(node))
    while below:
        child = below.pop()
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            below += ast.iter_child_nodes(child)


def offences(source: str) -> Iterator[tuple[str, int, str]]:
    """The function, the line, and what it does there."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        nodes = [node for node in own(function) if isinstance(node, LOOKED_AT)]
        assigned = [node for node in nodes if isinstance(node, ast.Assign) and of_a_clock(node.value)]
        times = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
        for node in nodes:
            if (seconds := sleeps(node)) is not None and fixed(seconds):
                yield function.name, node.lineno, f"sleeps for {ast.unparse(seconds)} s"
            elif compares_a_clock(node, times):
                yield function.name, node.lineno, "compares a clock"
            elif waits(node):
                yield function.name, node.lineno, "waits by a loop of its own"


def in_real_time(path: str, function: str) -> bool:
    """Whether that runs on a real loop: in folders in virtual time, what is marked as real."""
    name = path.removeprefix("unit/")
    return not path.startswith(SIMULATED) or name in REAL or f"{name}::{function}" in REAL


@functools.cache
def found() -> list[Found]:
    every: list[Found] = []
    for path in sorted(TESTS.rglob("*.py")):
        name = str(path.relative_to(TESTS))
        if name.startswith(SIMULATED) and not any(real.startswith(name.removeprefix("unit/")) for real in REAL):
            continue
        source = path.read_text()
        if any(f"{word}(" in source for word in ("sleep", *CLOCKS)):
            every += (Found(name, *one) for one in offences(source) if in_real_time(name, one[0]))
    return every


@pytest.mark.thorough
def test_no_test_in_real_time_sleeps_or_compares_a_clock_or_waits_by_itself() -> None:
    new = [
        f"tests/{one.path}:{one.line} {one.function} {one.what}: wait for a condition with tests.waiting"
        for one in found()
        if (one.path, one.function) not in ALLOWED
    ]
    assert not new, "\n".join(new)


def test_settings_of_hypothesis_are_made_in_one_place() -> None:
    """Where they are the same each time: by its own defaults it draws other examples each time, within a deadline."""
    own = re.compile(r"^from hypothesis import .*\bsettings\b|^ *import hypothesis\b", re.M)
    assert [path.name for path in sorted(TESTS.rglob("*.py")) if own.search(path.read_text())] == ["examples.py"]


def test_what_is_allowed_is_there() -> None:
    assert {(one.path, one.function) for one in found()} == ALLOWED.keys()


def test_the_old_forms_are_noticed() -> None:
    def noticed(*lines: str) -> bool:
        return bool(list(offences("async def test() -> None:\n" + "\n".join(f"    {line}" for line in lines))))

    assert noticed("await asyncio.sleep(0.3)")
    assert noticed("time.sleep(1)")
    assert noticed("await asyncio.sleep(2 * SESSION_S)")
    assert noticed("began = time.monotonic()", "await work()", "assert time.monotonic() - began < 5")
    assert noticed("began = loop.time()", "took = loop.time() - began", "assert took < SOON_S")
    assert noticed("assert asyncio.get_running_loop().time() <= until")
    assert noticed("if time.monotonic() > deadline:", "    raise AssertionError")
    assert noticed("while time.monotonic() < deadline:", "    look()")
    assert noticed("while not there():", "    await asyncio.sleep(pause_s)")
    assert noticed("async def inner() -> None:", "    await asyncio.sleep(0.1)")
    assert not noticed("await asyncio.sleep(0)")
    assert not noticed("while not turned:", "    await asyncio.sleep(0)")
    assert not noticed("await asyncio.sleep(rng.uniform(0, 1))")
    assert not noticed("began = time.monotonic()", "assert work(began)")


def test_what_is_marked_as_real_is_looked_at() -> None:
    marked, *_ = (name for name in REAL if "::" in name)
    path, _, function = marked.partition("::")
    assert in_real_time(f"unit/{path}", function)
    assert not in_real_time(f"unit/{path}", "test_another")
    assert not in_real_time("sim/test_loop.py", "test")
