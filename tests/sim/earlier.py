"""Bookies of an earlier version in a world: its code writes the directories that today's code takes over.

The wheel that `tests/compat` keeps runs in the same process (`tests/compat/in_process.py`), on the same disks and the
same network. It is not under test: what it had not yet got right fails a run only if today's code makes it worse.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from tests.compat.in_process import Earlier

if TYPE_CHECKING:
    from bkpy.bookie.node import BookieNode
    from bkpy.config.bookie import BookieSettings
    from bkpy.replication.integrity import IntegrityCheck
    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.space.deletion import HiddenLedger


class EarlierBookies:
    """Of one version. Its classes are taken for today's, which have what runs use of them."""

    @classmethod
    @functools.cache
    def of(cls, version: str) -> EarlierBookies:
        return cls(version)

    def __init__(self, version: str) -> None:
        self.version = version
        self._code = code = Earlier.of(version)
        self.log = logging.getLogger(code.package)  # of what is named like its module; other names are today's
        self.kinds: tuple[type[BookieNode], type[IntegrityCheck]] = (
            code.module("bookie.node").BookieNode,
            code.module("replication.integrity").IntegrityCheck,
        )
        self.storage: type[LedgerStorage] = code.module("storage.engine").LedgerStorage
        self.hidden: type[HiddenLedger] = code.module("storage.space.deletion").HiddenLedger
        self.sized = code.module("storage.open"), code.module("storage.checkpoint.flush")

    def settings(self, today: BookieSettings) -> Any:
        """The same settings, as far as that version has them."""
        settings = self._code.module("config.bookie").BookieSettings
        return settings(**{name: v for name, v in today.model_dump().items() if name in settings.model_fields})
