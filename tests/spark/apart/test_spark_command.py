"""`bkpy export` as a process of its own: what it prints, and what it ends with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.spark.conftest import Ledgers

# Seconds, the start of a cluster and of Spark included.
pytestmark = pytest.mark.timeout(900)

PATIENCE_S = 250.0  # a JVM, two Python workers and a session with three bookies, on a machine that is busy otherwise


def command(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BKPY_")}
    done = subprocess.run(
        [sys.executable, "-m", "bkpy", "export", *map(str, arguments)],
        capture_output=True,
        timeout=PATIENCE_S,
        env=environment,
    )
    assert done.returncode == status, done.stderr.decode()
    return done


@pytest.mark.exhaustive
def test_the_command(ledgers: Ledgers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")  # which must not keep Java from a name like this
    to = tmp_path / "out ü"
    both = f"{ledgers.striped},{ledgers.awkward}"
    chosen = ("--connect", ledgers.uri, "--ledgers", both, "--to", to)
    summary = json.loads(command(*chosen, "--format", "csv", "--master", "local[1]", "--json").stdout)
    assert summary["rows"] == len(ledgers.payloads[ledgers.striped]) + len(ledgers.payloads[ledgers.awkward])
    assert (summary["ledgers"], summary["files"], summary["format"]) == (2, 2, "csv")
    assert (summary["directory"], summary["skipped"]) == (str(to), [])


@pytest.mark.exhaustive
def test_a_command_with_nothing_to_do_says_so(ledgers: Ledgers, tmp_path: Path) -> None:
    to = tmp_path / "out"
    chosen = ("--connect", ledgers.uri, "--ledgers", ledgers.awkward, "--to", to)
    command(*chosen, "--format", "csv")
    again = command(*chosen, "--format", "csv")
    total = f"{len(ledgers.payloads[ledgers.awkward])} entries in 1 file"
    assert (again.stdout.decode(), again.stderr.decode()) == (f"{to}\n", f"nothing new; {total}\n")
    empty = command("--connect", ledgers.uri, "--ledgers", ledgers.empty, "--to", tmp_path / "empty")
    assert empty.stderr.decode() == "there are no entries yet; the directory has only the columns\n"
    refused = command(*chosen, status=1).stderr.decode()
    assert refused.startswith("bkpy: the directory holds csv files with payloads as base64, not parquet files ")


@pytest.mark.exhaustive
@pytest.mark.parametrize("verbose", [True, False], ids=["verbose", "quiet"])
def test_a_failed_command_tells_its_reason_last_and_in_one_line(
    ledgers: Ledgers, tmp_path: Path, verbose: bool
) -> None:
    arguments = ["--connect", ledgers.uri, "--ledgers", ledgers.plain, "--to", tmp_path / "out", "--payload", "utf8"]
    stderr = command(*arguments, *["--verbose"] * verbose, status=1).stderr.decode()
    *before, reason = stderr.splitlines()
    entry = next(i for i, payload in enumerate(ledgers.payloads[ledgers.plain]) if not is_text(payload))
    what = "bkpy: a payload is not UTF-8 text, export it as base64"
    assert reason == f"{what} [ledger {ledgers.plain}, entry {entry}]"
    if verbose:
        assert len(before) > 20
    else:
        (said,) = before
        log = Path(said.removeprefix("Spark's own output is in "))
        assert what.removeprefix("bkpy: ") in log.read_text()
        log.unlink()


def is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_command_line_without_a_target_is_refused() -> None:
    chosen = ("--connect", "zk://127.0.0.1:1/ledgers", "--ledgers", "closed")
    assert b"--to" in command(*chosen, status=2).stderr
    assert b"NAME=VALUE" in command(*chosen, "--to", "x", "-o", "fetchBytes", status=2).stderr
