"""A bookie's storage on a real disk whose LMDB environment is damaged: refused, checked, made anew."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from tests.unit.storage.support import INSTANCE, Batch, Reports, add, read_all
from tests.unit.storage.support import settings as bookie_settings

from bkpy.cli.app import bkpy
from bkpy.errors import CorruptDataError
from bkpy.runtime.lmdb_pages import find_damage
from bkpy.runtime.system import real_runtime
from bkpy.storage.open import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.engine import LedgerStorage

LEDGERS = range(1, 40)


async def boot(settings: BookieSettings, cookie: bytes | None) -> LedgerStorage:
    return await open_storage(
        settings, real_runtime(), instance_id=INSTANCE, expected_cookie=cookie, observer=Reports()
    )


async def filled(settings: BookieSettings) -> bytes:
    """A bookie that was stopped in order; its cookie."""
    storage = await boot(settings, None)
    for ledger_id in LEDGERS:
        await storage.states((ledger_id,))
        await add(storage, Batch(ledger_id, 0, 4, payload=b"%d" % ledger_id))
    await storage.close()
    return storage.cookie


def command(settings: BookieSettings, *words: str) -> list[str]:
    return [
        "bookie",
        *words,
        f"--metadata_uri={settings.metadata_uri}",
        f"--bookie_id={settings.bookie_id}",
        f"--journal_directories={settings.journal_directories[0]}",
        f"--ledger_directories={settings.ledger_directories[0]}",
        "--json",
    ]


def told_by(words: list[str]) -> tuple[int, str]:
    """(exit status, standard output) of a command."""
    result = CliRunner().invoke(bkpy, words, standalone_mode=False)
    assert result.exception is None
    return result.return_value, result.stdout


@pytest.mark.thorough
async def test_a_damaged_index_is_refused_told_of_and_made_anew(tmp_path: Path) -> None:
    settings = bookie_settings(str(tmp_path))
    cookie = await filled(settings)
    status, output = told_by(command(settings, "check"))
    assert (status, '"wrong": 0' in output) == (0, True), output

    data = tmp_path / "ledgers0" / "index" / "data.mdb"
    content = bytearray(data.read_bytes())
    rng = random.Random(3)
    while find_damage(str(data.parent)) is None:  # not all pages are in use
        content[rng.randrange(len(content) // 4096) * 4096] ^= 0xFF
        data.write_bytes(content)
    with pytest.raises(CorruptDataError, match="rebuild-index") as refused:
        await boot(settings, cookie)
    assert refused.value.path == str(data)
    status, output = told_by(command(settings, "check"))
    assert (status, str(data) in output) == (1, True), output

    unasked = CliRunner().invoke(bkpy, command(settings, "rebuild-index", "--offline"), input="no\n")
    assert unasked.exit_code != 0
    assert "nothing was changed" in unasked.output


async def test_every_entry_is_there_after_a_rebuild(tmp_path: Path) -> None:
    from bkpy.bookie.rebuild import log_bytes, rebuild_offline

    settings = bookie_settings(str(tmp_path))
    cookie = await filled(settings)
    (tmp_path / "ledgers0" / "index" / "data.mdb").unlink()
    runtime = real_runtime()
    told: list[int] = []
    size = log_bytes(settings, runtime.files)
    done = await rebuild_offline(settings, runtime, observer=Reports(), progress=told.append)
    assert told[-1] == size
    assert (done.ledgers, done.limbo, done.kept) == (len(LEDGERS), len(LEDGERS), [f"{tmp_path}/ledgers0/index.old"])
    assert find_damage(str(tmp_path / "ledgers0" / "index")) is None
    storage = await boot(settings, cookie)
    for ledger_id in LEDGERS:
        have, _ = await read_all(storage, ledger_id, 0, 3)
        assert have == dict.fromkeys(range(4), b"%d" % ledger_id)
        assert ledger_id in storage.fenced
    await storage.close()
