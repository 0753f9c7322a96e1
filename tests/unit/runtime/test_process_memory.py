"""Memory that was freed goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from bkpy.runtime import process

FREED = """
import bkpy.bench.memory as memory, os
from bkpy.runtime.process import release_free_memory
kept = []
parts = [bytes(100_000) if i % 2 else kept.append(bytes(50)) for i in range(2000)]
before = memory.rss_anon_mb(os.getpid())
del parts
release_free_memory()
print(before, memory.rss_anon_mb(os.getpid()))
"""


@pytest.mark.thorough
def test_what_was_freed_is_given_back() -> None:
    """Where the C library is another than GNU's, that is its own affair, and asking for it does no harm."""
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    before, after = map(float, done.stdout.split())
    assert (process.find_malloc_trim() is not None) == (platform.libc_ver()[0] == "glibc")
    assert after < before - 50 or platform.libc_ver()[0] != "glibc"


def test_another_library_has_no_such_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: object())
    assert process.find_malloc_trim() is None
