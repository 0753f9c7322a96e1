"""Which tests hold which behaviour: the index of scenarios, and `docs/explanation/scenarios.md`, which is made from it.

    python -m tests.scenarios            print the page
    python -m tests.scenarios --write    write it to docs/explanation/scenarios.md
    python -m tests.scenarios --missing  print the behaviours that no test holds

A test says what it holds by `@pytest.mark.scenario(number)`, several times if need be. The marks are read from the
source and not by running pytest: nothing has to be imported, and a mark that is in no decorator of a test is an error.
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "explanation" / "scenarios.md"

SECTIONS = {
    "Recovery and fencing": {
        1: "A writer dies with some appends acknowledged and others in flight: recovery keeps at least those that were "
        "acknowledged, without a gap, and closes the ledger.",
        2: "Recovery of a ledger without entries, and of one with a single entry.",
        3: "Recovery with a wrong password is refused and changes nothing.",
        4: "With too few bookies recovery fails and leaves the ledger in recovery; a later try succeeds.",
        5: "A bookie that hangs does not hold up recovery when the others' negatives decide.",
        6: "A bookie that fails during recovery is replaced in memory; the closing write alone stores that.",
        7: "The same at the first entry of the last fragment, which is then replaced.",
        8: "Two bookies fail at one entry during recovery.",
        9: "Last add confirmed can be read and nothing can be written: recovery fails and cuts nothing off.",
        10: "The ledger is closed by somebody else during recovery: that end is taken over.",
        11: "The writer adds a fragment between recovery's look at the metadata and its first write to them.",
        12: "A writer can't change the ledger any more after somebody else has closed it.",
        13: "A last fragment without any entry is recovered from its first entry on.",
        14: "Two recoveries at once agree, however their reads and writes of metadata are interleaved.",
        15: "Nothing behind the first missing entry is recovered.",
        16: "Recovery while the writer closes the ledger.",
        17: "Recovery with an unavailable bookie, for every ensemble and quorum size and several read windows.",
        18: "Bookies are restarted one after the other during recovery.",
        19: "After a fence every bookie refuses appends; opening for reading fences nothing, however often it is done.",
        20: "A fence survives a restart, also on a bookie that never saw the ledger; it needs the password, and no "
        "answer from a bookie that hangs.",
        21: "A ledger that was fenced and deleted accepts nothing from its old writer.",
        22: "Re-replication while a ledger is being fenced.",
        23: "Manual recovery cuts nothing off a ledger that is being written.",
    },
    "Writing and ensemble change": {
        24: "One failed bookie costs one change of the ensemble, which a second failure joins.",
        25: "Nothing is acknowledged during a change; an append that the change does not touch completes after it.",
        26: "Without a replacement the writer fails, and the ledger ends at its last add confirmed with nothing lost.",
        27: "During a change somebody else closes, recovers or changes the ledger.",
        28: "With delayed changes none is made while the ack quorum holds, or else at once; the next write repairs.",
        29: "With changes disabled the same bookie is tried again.",
        30: "The number of changes in a time is limited.",
        31: "An ack quorum that does not come in time is an error of its own.",
        32: "Entry ids chosen by the caller: out of order, twice, with gaps.",
        33: "Closing: the length is right, twice is once, with appends in flight, and against somebody else's close.",
        34: "After closing, every append has completed or failed.",
        35: "With deferred sync last add confirmed moves when it is forced to, by the whole ensemble.",
    },
    "Reading": {
        36: "What a read reports when bookies deny an entry, fail, or both.",
        37: "A copy that does not match its digest is passed over; if all are like that, that is the error.",
        38: "A second bookie is asked when the first is late.",
        39: "Ranged reads return a verified prefix within a limit of bytes, of striped ledgers too.",
        40: "Last add confirmed reaches readers with entries and without; a long poll is woken by progress, close, "
        "fence and delete, and is cancelled cleanly.",
        41: "Readers follow ensembles that were rewritten by re-replication.",
        42: "A bookie that fails is read around.",
        43: "A slow bookie does not make memory grow.",
    },
    "Storage of a bookie": {
        44: "A journal that is empty, has junk at its end, was cut or flipped at any byte, or fails at any operation.",
        45: "Nothing is acknowledged before it is on disk.",
        46: "Journals roll with and without checkpoints; replay meets deleted ledgers and several journals.",
        47: "The journal's mark never passes what is not flushed.",
        48: "Crashes before and after a flush.",
        49: "Entry logs with damaged blocks, without a footer, and on a full disk.",
        50: "Compaction: thresholds, a crash at each step, no entry twice, a full disk, a ledger deleted meanwhile.",
        51: "Collection deletes nothing that it is not sure of.",
        52: "A bookie that has lost data denies nothing until it was checked.",
        53: "Identity: a missing, added or wiped directory, another id or address, another cluster.",
        54: "A bookie becomes read-only and writable again; directories are added.",
        55: "A bookie that was not stopped cleanly.",
        56: "A lost session is registered anew; a second process with the same id is refused.",
    },
    "Re-replication": {
        57: "Ledgers of a lost bookie are marked once, with delays, through fail-over, and not for a rolling restart.",
        58: "The periodic check finds damage.",
        59: "Workers: new bookies, two at once, waiting, deleted and open ledgers, back-off, marks made meanwhile.",
        60: "A bookie is decommissioned.",
        61: "Checks of placement and replicas.",
    },
    "Metadata": {
        62: "Changes are compared and set, and repeated when somebody else was first.",
        63: "Ledgers are listed while they come and go; ids pass 31 bits.",
        64: "Each known defect of the ZooKeeper client library is worked around.",
    },
    "Named logs": {
        65: "Two would-be leaders: no record is lost or out of order, and at most two ledgers are open.",
        66: "A log is rolled, truncated and followed across ledgers.",
    },
    "The whole system": {
        67: "Any process dies or hangs at any time, disks fill up, clocks jump: nothing acknowledged is lost.",
        68: "Bad input on any port is a clear error or a closed connection, and harms nobody else.",
    },
}
BEHAVIOURS = {number: text for section in SECTIONS.values() for number, text in section.items()}

# What the protocol between clients and bookies promises; the two that are left out are about re-replication.
REQUIRED = frozenset(range(1, 44)) - {22, 23}

_HEAD = """\
# Behaviours and the tests that hold them

Made by `python -m tests.scenarios --write` from the marks of the tests; a test sees to it that this page is current.
"""


class MarkError(Exception):
    """A mark that can't be understood."""


@functools.cache
def index(directory: Path = TESTS) -> dict[int, list[str]]:
    """The tests of each behaviour, as pytest names them, by number."""
    held: defaultdict[int, list[str]] = defaultdict(list)
    for path in sorted(directory.rglob("test_*.py")):
        name = path.relative_to(directory.parent).as_posix()
        for test, number in _marks(path):
            held[number].append(f"{name}::{test}")
    return dict(sorted(held.items()))


def missing() -> list[int]:
    """The behaviours that have to be held by a test and are not."""
    return sorted(REQUIRED - index().keys())


def _marks(path: Path) -> Iterator[tuple[str, int]]:
    text = path.read_text(encoding="utf-8")
    if ".scenario" not in text:
        return
    tree = ast.parse(text)
    understood: set[ast.AST] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or not function.name.startswith("test_"):
            continue
        numbers = []
        for decorator in function.decorator_list:
            for call in ast.walk(decorator):
                if isinstance(call, ast.Call) and _is_mark(call.func):
                    understood.add(call.func)
                    numbers.append(_number(call, path))
        yield from ((function.name, number) for number in sorted(set(numbers)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_mark(node) and node not in understood:
            raise MarkError(f"{path}:{node.lineno}: a mark that is in no decorator of a test, or has no number")


def _is_mark(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "scenario" and ast.unparse(node) == "pytest.mark.scenario"


def _number(call: ast.Call, path: Path) -> int:
    if len(call.args) == 1 and not call.keywords and isinstance(call.args[0], ast.Constant):
        number = call.args[0].value
        if isinstance(number, int) and number in BEHAVIOURS:
            return number
    raise MarkError(f"{path}:{call.lineno}: {ast.unparse(call)} does not name one behaviour by its number")


def page() -> str:
    """The text of docs/explanation/scenarios.md."""
    held = index()
    lines = [_HEAD]
    for section, behaviours in SECTIONS.items():
        rows = [number for number in behaviours if number in held]
        if rows:
            lines += [f"## {section}\n", "| | behaviour | tests |", "| --- | --- | --- |"]
            lines += [f"| {number} | {behaviours[number]} | {_links(held[number])} |" for number in rows]
            lines.append("")
    return "\n".join(lines)


def _links(tests: list[str]) -> str:
    """The tests by their names, each file named once and linked."""
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for test in tests:
        path, _, name = test.partition("::")
        by_file[path].append(f"`{name}`")
    return "<br>".join(
        f"[{path.removeprefix('tests/')}](../../{path}): {', '.join(names)}" for path, names in by_file.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description="Which tests hold which behaviour.")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--write", action="store_true", help="write docs/explanation/scenarios.md")
    choice.add_argument("--missing", action="store_true", help="print the behaviours that no test holds")
    arguments = parser.parse_args()
    if arguments.missing:
        for number in missing():
            print(f"{number:2}  {BEHAVIOURS[number]}")
        return 1 if missing() else 0
    if arguments.write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
