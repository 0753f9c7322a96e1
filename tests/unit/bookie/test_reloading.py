"""A running bookie reads its settings again: what may change does, the rest is named, a bad file changes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.hooks import reload_with
from tests.in_process import InProcess
from tests.waiting import eventually

from bkpy.bookie.reloading import SettingsReload
from bkpy.cli.bookie.group import bookie
from bkpy.config.bookie import BookieSettings
from bkpy.config.loading import load_bookie_settings
from bkpy.config.reloading import reloadable
from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BASE = """
metadata_uri = "zk://127.0.0.1:1/ledgers"
journal_directories = ["/j"]
ledger_directories = ["/l"]
"""


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


class File:
    """A file of settings, and a bookie's that runs with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("")
        self.live = self.read()
        self.reload = SettingsReload(self.live, self.read)

    def write(self, text: str) -> None:
        self.path.write_text(BASE + text)

    def read(self) -> BookieSettings:
        return load_bookie_settings(str(self.path), {}, {})

    def take(self) -> Any:
        return self.reload.apply(self.reload.read())


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "bookie.toml")


def test_what_may_change_does_and_the_rest_is_named(file: File, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bkpy.bookie")
    file.write('scrub_bytes_per_s = 5\nlog_level = "debug"\nlisten = "127.0.0.1:4000"\nzookeeper_auth = "a:secret"\n')
    found = file.take()
    assert {change.setting for change in found.changed} == {"scrub_bytes_per_s", "log_level"}
    assert "log_level from info to debug" in map(str, found.changed)
    assert {"listen", "bookie_id", "zookeeper_auth"} == {change.setting for change in found.needs_restart}
    assert "secret" not in "".join(caplog.messages).replace("(secret)", "")
    assert (file.live.scrub_bytes_per_s, file.live.log_level, file.live.listen) == (5, "debug", "127.0.0.1:3181")
    assert logging.getLogger().level == logging.DEBUG
    again = file.take()
    assert again.changed == []
    assert len(again.needs_restart) == 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("scrub_bytes_per_s = 5\nscrub_bytes = 5", "unknown setting scrub_bytes"),
        ("scrub_bytes_per_s = 5\ngc_interval_s = -1.0", "gc_interval_s = -1.0"),
        ("scrub_bytes_per_s = 5\n[", "not TOML"),
        ("scrub_bytes_per_s = 5\ndisk_free_bytes_min = 9\ndisk_free_bytes_resume = 8", "must exceed"),
    ],
)
def test_a_bad_file_changes_nothing(file: File, text: str, why: str) -> None:
    before = file.live.model_copy()
    file.write(text)
    with pytest.raises(ConfigError, match=why):
        file.take()
    assert file.live == before
    file.path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        file.take()
    assert file.live == before


def test_values_that_do_not_fit_those_that_stay_change_nothing(tmp_path: Path) -> None:
    file = File(tmp_path / "bookie.toml")
    file.live.__dict__["disk_free_bytes_resume"] = 10  # as if it was no setting that may change
    file.live.__dict__["disk_free_bytes_min"] = 9
    before = file.live.model_copy()
    file.write("disk_free_bytes_min = 100\nscrub_bytes_per_s = 5\ncompaction_free_bytes_min = 1\n")
    with pytest.raises(ConfigError, match="must exceed"):
        file.take()
    assert file.live == before


def test_what_may_change_is_bounded_to_what_is_read_at_each_use() -> None:
    assert reloadable(BookieSettings) <= set(BookieSettings.public())
    assert not reloadable(BookieSettings) & BookieSettings.secrets()


def test_each_setting_is_shown_with_where_it_comes_from(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write('gc_interval_s = 7.0\nzookeeper_auth = "alice:hidden"\n')
    monkeypatch.setenv("BKPY_SCRUB_INTERVAL_S", "9")
    words = ["config", "--config", str(file.path), "--rack", "r1"]
    shown = CliRunner().invoke(bookie, [*words, "--json"])
    assert shown.exit_code == 0, shown.output
    rows = {row["setting"]: row for row in json.loads(shown.output)}
    assert (rows["gc_interval_s"]["value"], rows["gc_interval_s"]["from"]) == ("7.0", f"file {file.path}, line 5")
    assert rows["scrub_interval_s"]["from"] == "environment BKPY_SCRUB_INTERVAL_S"
    assert rows["rack"] == {"setting": "rack", "value": "r1", "from": "option --rack", "reloadable": False}
    assert rows["log_level"]["from"] == "default"
    assert rows["log_level"]["reloadable"]
    assert rows["zookeeper_auth"]["value"] == "(secret)"
    assert "hidden" not in shown.output
    assert "metadata_retry_pause_s" not in rows
    more = CliRunner().invoke(bookie, [*words, "--all"])
    assert "metadata_retry_pause_s" in more.output
    assert "hidden" not in more.output


@pytest.mark.thorough
async def test_the_interval_of_checkpoints_may_shrink_while_it_waits(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a", checkpoint_interval_s=1e6, memory_rest_interval_s=1e6)
    node, storage = cluster.node("a"), cluster.storage("a")
    client = await cluster.client()
    writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await writer.append(b"data")
    await asyncio.sleep(1000.0)
    assert storage.memory_bytes
    reload_with(node, node.settings.model_copy(update={"checkpoint_interval_s": 2000.0}))
    await asyncio.sleep(900.0)
    assert storage.memory_bytes
    await eventually(lambda: not storage.memory_bytes, "a checkpoint has all of it", deadline_s=200.0)
    await cluster.stop()
