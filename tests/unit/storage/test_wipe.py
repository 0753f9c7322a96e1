"""Whose files a directory has: what a cookie that can't be read says, and what is removed."""

from __future__ import annotations

import pytest
from tests.unit.storage.support import INSTANCE, Batch, Host, add

from bkpy.errors import IdentityError
from bkpy.storage.wipe import Owner, belongings, has_cookie, is_owned, wipe

MINE = Owner("bookie-1", INSTANCE)


async def used() -> tuple[Host, str]:
    host = Host()
    storage = await host.boot()
    await add(storage, Batch(1, 0))
    await storage.close()
    return host, host.settings.ledger_directories[0]


async def test_a_sound_cookie_says_whose_a_directory_is() -> None:
    host, directory = await used()
    assert has_cookie(host.disk, directory, MINE)
    assert is_owned(host.disk, directory, MINE)
    another_cluster = MINE._replace(instance_id="another")
    assert not has_cookie(host.disk, directory, another_cluster)
    assert not is_owned(host.disk, directory, another_cluster)
    with pytest.raises(IdentityError, match="that of bookie bookie-1"):
        is_owned(host.disk, directory, MINE._replace(bookie_id="another"))


async def test_a_damaged_cookie_says_nothing_and_keeps_the_data() -> None:
    host, directory = await used()
    host.disk.flip(f"{directory}/cookie.json", 20)
    before = belongings(host.disk, directory)
    assert before.data
    assert not has_cookie(host.disk, directory, MINE)
    assert not is_owned(host.disk, directory, MINE)
    with pytest.raises(IdentityError, match="nothing was deleted"):
        wipe(host.disk, [directory], MINE)
    assert belongings(host.disk, directory) == before
    wipe(host.disk, [directory], MINE, allowed=[directory])
    assert not belongings(host.disk, directory).data
    assert is_owned(host.disk, directory, MINE), "it is empty"


async def test_a_directory_that_is_not_there_has_nothing() -> None:
    host, _ = await used()
    assert belongings(host.disk, "/nowhere").data == []
    assert is_owned(host.disk, "/nowhere", MINE)
    assert not has_cookie(host.disk, "/nowhere", MINE)
    wipe(host.disk, ["/nowhere"], MINE)
