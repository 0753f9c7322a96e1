"""Where a run's processor time goes. With real threads, since they are what is measured."""

from __future__ import annotations

import contextlib
import hashlib
import os

import pytest

from bkpy.bench.processor_time import REST, ProcessorTime
from bkpy.runtime.system import ThreadWorker

pytestmark = pytest.mark.real("threads")

ENDED = 1 << 22  # the kernel gives no process a higher id


def work() -> None:
    """For more than a few hundredths of a second, in which the kernel counts."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000)


@pytest.mark.thorough
async def test_each_kind_of_thread_has_its_row_by_operation() -> None:
    used = ProcessorTime(lambda: {"own": [os.getpid(), None, ENDED]})
    with contextlib.closing(ThreadWorker("counted-12")) as worker, used:
        await worker.run(work)
        work()
    rows, tenths = ({row["of"]: row for row in used.rows(operations)} for operations in (1, 10))
    for name in ("own: counted", "own: event loop"):
        assert rows[name]["user_us"] > 10_000
        assert tenths[name]["user_us"] == pytest.approx(rows[name]["user_us"] / 10)
    assert list(rows)[-1] == REST


async def test_what_was_used_before_counts_for_nothing() -> None:
    used = ProcessorTime(lambda: {"own": [os.getpid()]})
    with contextlib.closing(ThreadWorker("before-1")) as worker:
        await worker.run(work)
        with used:
            pass
    assert "own: before" not in [row["of"] for row in used.rows(1)]
