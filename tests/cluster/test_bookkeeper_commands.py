"""Commands on a cluster of BookKeeper's: those about ledgers, the import from it, and the ones that it doesn't have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.command import bkpy, start
from tests.conftest import run_elsewhere

from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.exhaustive

SIZES = ("--ensemble", "1,1,1")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    local = LocalCluster(tmp_path_factory.mktemp("theirs"), 1, {"protocol": "bookkeeper"})
    try:
        run_elsewhere(local.start())
        yield local
    finally:
        run_elsewhere(local.stop())


def written(uri: str, tmp_path: Path, lines: int = 300) -> int:
    file = tmp_path / "lines"
    file.write_text("".join(f"line {n}\n" for n in range(lines)))
    ledger_id: int = json.loads(
        bkpy("ledger", "write", str(file), "--connect", uri, *SIZES, "--metadata", "who=me", "--json").stdout
    )["ledger_id"]
    return ledger_id


def test_ledgers_are_written_shown_read_and_deleted(theirs: LocalCluster, tmp_path: Path) -> None:
    uri = theirs.connect_string
    ledger_id = str(written(uri, tmp_path))
    shown = json.loads(bkpy("ledger", "show", ledger_id, "--connect", uri, "--json").stdout)
    assert (shown["digest"], shown["last_entry"], shown["custom_metadata"]) == ("bk-crc32c", 299, {"who": "me"})
    assert bkpy("ledger", "read", ledger_id, "--connect", uri, "--first", "298").stdout == b"line 298\nline 299\n"
    assert bkpy("ledger", "tail", ledger_id, "--connect", uri, "--first", "299").stdout == b"line 299\n"
    assert json.loads(bkpy("ledger", "recover", ledger_id, "--connect", uri, "--json").stdout)["last_entry"] == 299
    assert ledger_id.encode() in bkpy("ledger", "list", "--connect", uri, "--state", "closed").stdout.split()
    bkpy("ledger", "delete", ledger_id, "--connect", uri, "--yes")
    assert ledger_id.encode() not in bkpy("ledger", "list", "--connect", uri).stdout.split()


def test_ledgers_are_imported_once(theirs: LocalCluster, cluster: LocalCluster, tmp_path: Path) -> None:
    ledger_id = written(theirs.connect_string, tmp_path)
    ends = ("--from", theirs.connect_string, "--to", cluster.connect_string)
    command = ("import", *ends, "--ledgers", f"{ledger_id},999999", "--ensemble", "3,3,2", "--json")
    done = bkpy(*command, status=1)
    assert b"1 ledgers copied" in done.stderr
    assert b"not copied: ledger 999999: there is no such ledger" in done.stderr
    (copied,) = json.loads(done.stdout)
    assert (copied["ledger_id"], copied["entries"], copied["new"]) == (ledger_id, 300, True)
    assert json.loads(bkpy(*command, status=1).stdout) == [{**copied, "new": False}]
    lines = bkpy("ledger", "read", str(copied["copy_id"]), "--connect", cluster.connect_string).stdout
    assert lines.splitlines() == [f"line {n}".encode() for n in range(300)]


def test_imports_at_the_same_time_make_one_copy_and_delete_what_is_left(
    theirs: LocalCluster, cluster: LocalCluster, tmp_path: Path
) -> None:
    ledger_id, uri = written(theirs.connect_string, tmp_path, lines=3000), cluster.connect_string
    ends = ("--from", theirs.connect_string, "--to", uri)
    command = ("import", *ends, "--ledgers", ledger_id, "--ensemble", "3,3,2", "--json")
    running = [start(*command, uri=None) for _ in range(2)]
    listed = [json.loads(one.communicate()[0])[0] for one in running]
    assert sorted(one["new"] for one in listed) == [False, True]
    (copy_id,) = {str(one["copy_id"]) for one in listed}
    custom = json.loads(bkpy("ledger", "show", copy_id, "--connect", uri, "--json").stdout)["custom_metadata"]
    marks = [f"{name}={custom[name]}" for name in ("bookkeeper.ledger", "bookkeeper.token")]
    # A part of a copy, as an import leaves it that was killed.
    bkpy("ledger", "create", "--connect", uri, *(word for mark in marks for word in ("--metadata", mark)))
    (again,) = json.loads(bkpy(*command).stdout)
    assert (str(again["copy_id"]), again["new"]) == (copy_id, False)
    listed = json.loads(bkpy("ledger", "list", "--connect", uri, "--custom", marks[0], "--json").stdout)
    assert [str(one["ledger_id"]) for one in listed] == [copy_id]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("autorecovery status", 1),
        ("bookies list", 1),
        ("cluster check", 1),
        ("cluster health", 3),
        ("cluster rebalance", 1),
        ("cluster show", 1),
        ("cluster top --once", 1),
        ("ledger explain 0", 1),
        ("ledger list --missing-copies", 1),
        ("log list", 1),
        ("log read orders", 1),
    ],
)
def test_what_it_does_not_have_is_refused_in_one_line(theirs: LocalCluster, command: str, status: int) -> None:
    done = bkpy(*command.split(), "--connect", theirs.connect_string, status=status)
    assert b"Apache BookKeeper" in done.stderr
