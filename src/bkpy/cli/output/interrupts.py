"""Ends of a long command from outside: Ctrl-C and SIGTERM, each with one line that says what is unfinished."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bkpy.cli.common import Terminated, say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

TERMINATED = 128 + signal.SIGTERM


@contextmanager
def interruptible(unfinished: str) -> Iterator[None]:
    """Meanwhile SIGTERM unwinds the stack as Ctrl-C does. Either is told in one line, with what is `unfinished`."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt:
        say(f"bkpy: interrupted; {unfinished}")
        raise
    except Terminated:
        say(f"bkpy: terminated; {unfinished}")
        sys.exit(TERMINATED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
