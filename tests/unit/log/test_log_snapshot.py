"""What a reader knows of a log's list, when servers of the metadata store lag behind."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tests.in_process import runtime_here, stored
from tests.unit.metadata.logs.test_log_lists import LIST, a_list, on

from bkpy.log.snapshot import LogSnapshot
from bkpy.metadata.store.memory import MemoryStore

if TYPE_CHECKING:
    import pytest


async def test_a_list_is_never_replaced_by_an_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = MemoryStore(runtime_here())
    store = tree.session()
    logs = on(store)
    await logs.create("orders", a_list())
    old = await store.get(LIST)
    log_list, version = await logs.read("orders")
    stored(await logs.write("orders", dataclasses.replace(log_list, retention_s=1.0), version))
    snapshot = LogSnapshot("orders", *await logs.read("orders"))

    async def lagging(path: str) -> tuple[bytes, int]:
        return old

    monkeypatch.setattr(store, "get", lagging)
    await snapshot.refresh(logs)
    assert snapshot.list.retention_s == 1.0
