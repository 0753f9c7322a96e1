"""An earlier version's modules beside today's: each knows its own classes, and both the same errors."""

from __future__ import annotations

import bkpy.errors
import bkpy.storage.engine

from .in_process import Earlier


def test_both_versions_are_there_and_apart() -> None:
    earlier = Earlier.of("0.2.0")
    assert earlier.module("_version").VERSION == "0.2.0"
    storage = earlier.module("storage.engine").LedgerStorage
    assert storage.__module__ == "bkpy_0_2_0.storage.engine"
    assert storage is not bkpy.storage.engine.LedgerStorage
    assert earlier.module("storage.engine").StorageFailedError is bkpy.errors.StorageFailedError
    assert Earlier.of("0.2.0") is earlier
