"""A stopped bookie's identity on the command line, on real directories and a real ZooKeeper."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.command import PATIENCE_S, PRELOADED, as_json, bkpy, environment

from bkpy.local.process import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.local import LocalCluster


class Commands:
    """One bookie's settings in a file, and the commands on it."""

    def __init__(self, cluster: LocalCluster, root: Path, bookie_id: str) -> None:
        self.root = root
        self.values: dict[str, Any] = {
            "metadata_uri": cluster.connect_string,
            "bookie_id": bookie_id,
            "listen": f"127.0.0.1:{free_port()}",
            "journal_directories": [str(root / "journal")],
            "ledger_directories": [str(root / "ledgers")],
            "journal_max_size_mb": 1,
        }
        self.path = root / "bookie.toml"
        self.write()

    def write(self, **values: object) -> None:
        self.values |= values
        self.path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in self.values.items()))

    def run(self, *words: object, status: int = 0, stdin: bytes = b"") -> tuple[str, str]:
        words = ("bookie", *map(str, words), "--config", str(self.path))
        done = PRELOADED.run(list(words), stdin=stdin, env=environment(None), timeout_s=PATIENCE_S)
        assert done.returncode == status, done.stderr.decode()
        assert b"Traceback" not in done.stderr
        return done.stdout.decode(), done.stderr.decode()

    def json(self, *words: object) -> Any:
        return json.loads(self.run(*words, "--json")[0])


@pytest.mark.scenario(53)
def test_a_bookies_life_by_command(cluster: LocalCluster, tmp_path: Path) -> None:
    one = Commands(cluster, tmp_path, "by-command")
    assert one.json("init") == {"bookie_id": "by-command", "new": True}
    assert "exists already" in one.run("init")[0]
    shown = one.json("cookie", "show")
    assert [place["where"] for place in shown["places"]] == [
        "the settings", "the metadata store", str(tmp_path / "journal"), str(tmp_path / "ledgers")
    ]  # fmt: skip
    assert (shown["differ"], shown["missing"]) == ([], [])

    (tmp_path / "journal").rename(tmp_path / "fast")
    one.write(journal_directories=[str(tmp_path / "fast")], bookie_id="by-command")
    shown = one.json("cookie", "show")
    assert shown["differ"] == ["journal directory 0"]
    assert "differs" in one.run("cookie", "show")[0]
    assert "nothing was changed: there is nobody to ask" in one.run("cookie", "update", status=2)[1]
    assert len(one.json("cookie", "update", "--yes")["done"]) == 3
    assert "nothing was changed" in one.run("cookie", "update")[0]
    assert one.json("cookie", "show")["differ"] == []

    (tmp_path / "fast" / "cookie.json").unlink()
    assert one.json("cookie", "show")["missing"] == [str(tmp_path / "fast")]
    said = one.run("cookie", "update", stdin=b"yes\n")[1]
    assert f"write the cookie to {tmp_path / 'fast'} (no cookie)" in said

    (tmp_path / "fast" / "notes").write_text("not a bookie's")
    assert "nothing was deleted" in one.run("format", status=2)[1].splitlines()[-1]
    assert (tmp_path / "ledgers" / "cookie.json").exists()
    out, said = one.run("format", "--yes")
    assert "none names bookie by-command; its cookie in the metadata will be deleted, too" in said
    assert out.startswith("deleted 4 files")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "bookie.toml",
        "lock",
        "lock",
        "notes",
    ]
    assert one.run("format", "--yes")[0] == "there was nothing to delete\n"
    assert one.json("init")["new"]

    uri = cluster.connect_string
    here, known = as_json("bookies", "list", uri=uri), as_json("bookies", "list", "--absent", uri=uri)
    assert [bookie["bookie_id"] for bookie in known if bookie not in here] == ["by-command"]
    listed = bkpy("bookies", "list", "--absent", uri=uri).stdout.decode().splitlines()
    assert [line.split()[:2] for line in listed if "absent" in line] == [["by-command", "absent"]]


@pytest.mark.scenario(53)
def test_a_bookie_that_runs_is_left_alone(cluster: LocalCluster, tmp_path: Path) -> None:
    owner = cluster.bookies[0]
    one = Commands(cluster, tmp_path, owner.id)
    journal = next(path for path in owner.directory.iterdir() if "journal" in path.name)
    ledgers = next(path for path in owner.directory.iterdir() if "ledger" in path.name)
    one.write(journal_directories=[str(journal)], ledger_directories=[str(ledgers)])
    for words in (("format", "--force", "--yes"), ("cookie", "update", "--yes")):
        assert "the bookie is registered: it runs" in one.run(*words, status=1)[1]
    shown = one.json("cookie", "show")
    assert (shown["differ"], shown["missing"]) == ([], [])
    assert as_json("bookies", "list", uri=cluster.connect_string)
