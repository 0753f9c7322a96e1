"""A bookie's real directories with something of everything in them, stopped in order or not, to be looked into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.storage.support import INSTANCE, KEY, Batch, add
from tests.unit.storage.support import settings as bookie_settings

from bkpy.runtime.system import real_runtime
from bkpy.storage.open import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.config.bookie import BookieSettings

STRIPED = 4
FENCED = 3


async def build(
    root: Path, *, clean: bool = False, journals: int = 1, ledgers: int = 1, **values: object
) -> BookieSettings:
    """Ledgers 0 to 4, half of their entries in blocks and half in the journal; with `clean` all of them in blocks."""
    settings = bookie_settings(str(root), journals=journals, ledgers=ledgers, **values)
    storage = await open_storage(settings, real_runtime(), instance_id=INSTANCE, expected_cookie=None)
    await add(storage, *(Batch(i, 0, 3, payload=b"x" * 100) for i in range(STRIPED)))
    await add(storage, Batch(STRIPED, 0, 10, stride=3))
    await storage.fence(FENCED, KEY)
    await storage.checkpoint()
    await add(storage, *(Batch(i, 3, 2) for i in range(STRIPED)))
    await add(storage, Batch(STRIPED, 30, 2, stride=3))
    if clean:
        await storage.close()
    else:
        storage.release()
    return settings
