"""What tests of commands share."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises meanwhile, as in a program in the foreground, and the loop of the test leaves no handler behind."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
