"""Copies that are moved by hand, without marks: said to the auditor, who remembers which bookies closed ledgers name.

Invariant: before the first copy is moved, an ephemeral node says so and an announcement was made. So whoever has read
all ledgers since knows that something may have moved, by the node or by the announcement.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import MetadataConflictError
from bkpy.metadata import paths
from bkpy.metadata.marks import Marks
from bkpy.metadata.outcome import Missing, NotDone, Unknown, told
from bkpy.metadata.resolve import ensure_path, leave_line, take_turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.metadata.store import MetadataStore
    from bkpy.runtime.interfaces import Runtime

_TOKEN_BYTES = 8
_DEFAULTS = RecoverySettings()


@contextlib.asynccontextmanager
async def moving_by_hand(
    store: MetadataStore, root: str, who: str, runtime: Runtime, settings: RecoverySettings = _DEFAULTS
) -> AsyncIterator[None]:
    """While copies of closed ledgers are moved without marks. Raises `MetadataUnavailableError`."""
    folder = f"{root}/{paths.BY_HAND}"
    token = runtime.rng.randbytes(_TOKEN_BYTES).hex()
    attempts_max = settings.metadata_write_attempts_max
    above = await ensure_path(store, folder, attempts_max=attempts_max)
    if isinstance(above, NotDone):
        raise told(above)
    try:
        node = await take_turn(store, folder, token, who.encode(), attempts_max=attempts_max)
        if isinstance(node, Missing):
            raise MetadataConflictError(f"somebody deletes {folder}")
        if isinstance(node, NotDone):
            raise told(node)
        announced = await Marks(store, root, runtime, settings).announce()
        if isinstance(announced, NotDone | Unknown):
            raise told(announced)
        yield
    finally:
        await leave_line(store, folder, token)  # at the latest it goes with the session
