"""How many connections a limit on open files leaves."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from typing import TYPE_CHECKING

import pytest
from tests.waiting import eventually

from bkpy.bookie.files import fit_files, storage_files
from bkpy.bookie.process import watch_files
from bkpy.config.loading import load_bookie_settings
from bkpy.errors import ConfigError
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from bkpy.config.bookie import BookieSettings


pytestmark = pytest.mark.real("a real file system")


def settings(**others: str) -> BookieSettings:
    flags = {"metadata_uri": "zk://h:1/l", "journal_directories": "/j", "ledger_directories": "/a,/b"}
    return load_bookie_settings(None, {}, {**flags, **others})


def test_a_limit_that_is_high_enough_changes_nothing() -> None:
    given = settings()
    assert fit_files(given, 1 << 20) is given


@pytest.mark.parametrize("files_max", [450, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("connections_max", [1, 1000])
@pytest.mark.parametrize("tls", [False, True])
def test_the_storage_has_its_files_however_many_connections_come(
    files_max: int, connections_max: int, tls: bool
) -> None:
    files = {"tls_ca_file": "/ca", "tls_certificate_file": "/c", "tls_key_file": "/k"} if tls else {}
    given = settings(connections_max=str(connections_max), **files)
    fitting = fit_files(given, files_max)
    at_worst = fitting.connections_max + fitting.new_connections_max + fitting.listen_backlog
    at_worst += 2 * fitting.tls_handshakes_max if tls else 0
    assert at_worst + storage_files(fitting) <= files_max
    assert 1 <= fitting.connections_max <= connections_max
    assert fitting.new_connections_max >= 1
    assert fitting.listen_backlog >= 1
    assert fitting.tls_handshakes_max >= 1


def test_every_directory_needs_files_of_its_own() -> None:
    one, two = settings(ledger_directories="/a"), settings(ledger_directories="/a,/b")
    assert storage_files(two) - storage_files(one) > 128
    assert storage_files(settings(journal_directories="/j,/k")) > storage_files(two)


def test_those_who_look_at_the_metrics_page_take_no_files_from_the_storage() -> None:
    none, some = settings(), settings(metrics_port="0", metrics_connections_max="7")
    assert storage_files(some) - storage_files(none) >= 3 * 7


def test_a_limit_that_leaves_no_room_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"may open 256 files, and the storage needs \d+: raise the limit"):
        fit_files(settings(), 256)


async def test_it_is_said_when_no_file_can_be_opened_any_more(caplog: pytest.LogCaptureFixture) -> None:
    runtime = real_runtime()
    task = runtime.spawn(watch_files(settings(disk_check_interval_s="0.005"), runtime.clock), name="watch")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)
    os.close(spare)  # the lowest number that is free
    try:
        with caplog.at_level(logging.WARNING, "bkpy.bookie"):
            await asyncio.sleep(0.02)
            assert not caplog.records
            resource.setrlimit(resource.RLIMIT_NOFILE, (spare, before[1]))
            await eventually(lambda: bool(caplog.records))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "failed to open a file (Too many open files" in caplog.text
    await asyncio.sleep(0.02)
    assert len(caplog.records) == 1
    assert not task.done()
    task.cancel()
