"""Lines from a file or standard input, for a program that must not stand still while it waits for them."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import AsyncIterator

from bkpy.errors import FrameTooLargeError

_CHUNK_BYTES = 1 << 18
_CHUNKS_WAITING_MAX = 4


async def chunks_of(fd: int) -> AsyncIterator[bytes]:
    """What can be read from `fd` until its end, in pieces."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        while chunk := os.read(fd, _CHUNK_BYTES):  # never waits long
            yield chunk
        return
    # A terminal or a pipe may be silent for hours. The thread that waits for it is a daemon, because nothing can wake
    # it when the program wants to end.
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_WAITING_MAX)

    def read() -> None:
        chunk: bytes | OSError = b"-"
        while chunk and not isinstance(chunk, OSError):
            room.acquire()
            try:
                chunk = os.read(fd, _CHUNK_BYTES)
            except OSError as e:
                chunk = e
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    threading.Thread(target=read, name="bkpy-input", daemon=True).start()
    while item := await arrived.get():
        if isinstance(item, OSError):
            raise item
        room.release()
        yield item


async def lines_of(fd: int, bytes_max: int) -> AsyncIterator[list[bytes]]:
    """The lines read from `fd`, without their ends, as many at a time as have arrived.

    `FrameTooLargeError` with the line's number for one that is longer than `bytes_max` bytes.
    """
    rest = b""
    count = 0
    async for chunk in chunks_of(fd):
        *lines, rest = (rest + chunk).split(b"\n")
        for number, line in enumerate([*lines, rest], count + 1):
            if len(line) > bytes_max:
                raise FrameTooLargeError(
                    f"line {number} is longer than {bytes_max} bytes, the most that an entry holds"
                )
        count += len(lines)
        if lines:
            yield lines
    if rest:
        yield [rest]
