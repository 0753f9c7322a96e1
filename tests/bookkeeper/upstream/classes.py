"""Which of Apache BookKeeper's own test classes run on bookies of ours, and what each is known to do.

`python -m tests.bookkeeper.upstream.classes` prints the table of docs/bookkeeper.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class TestClass(NamedTuple):
    """How many of its tests pass, which fail and why, and which are ignored in BookKeeper's sources themselves."""

    __test__ = False

    passed: int
    failures: Mapping[str, str] = {}
    ignored: frozenset[str] = frozenset()


CLASSES: Final = {
    "client.BookKeeperTest": TestClass(23),
    "bookie.BookieDeferredSyncTest": TestClass(5),
    "bookie.BookieStickyReadsTest": TestClass(4),
    "client.TestBatchedRead": TestClass(6),
    "client.TestBookieWatcher": TestClass(3),
    "client.TestLedgerChecker": TestClass(12),
    "client.TestParallelRead": TestClass(6),
    "client.TestReadEntryListener": TestClass(8),
    "client.TestReadLastEntry": TestClass(4),
    "client.TestReadTimeout": TestClass(1),
}


def table() -> Iterator[str]:
    """The lines of the table, the sums last."""
    yield "| class | passed | failed | |"
    yield "| --- | ---: | ---: | --- |"
    for name, known in sorted(CLASSES.items(), key=lambda item: item[0].rpartition(".")[2]):
        notes = [f"`{test}`: {why}" for test, why in known.failures.items()]
        if known.ignored:
            notes.append(f"{len(known.ignored)} that BookKeeper ignores")
        yield f"| `{name}` | {known.passed} | {len(known.failures)} | {'; '.join(notes)} |"
    passed = sum(known.passed for known in CLASSES.values())
    failed = sum(len(known.failures) for known in CLASSES.values())
    yield f"| **{len(CLASSES)} classes** | **{passed}** | **{failed}** | |"


if __name__ == "__main__":
    print(*table(), sep="\n")
