"""The ceiling: the same bytes through bare sockets and fdatasync, with no protocol at all.

Appends: `copies` processes receive whatever is there into one buffer, write it to a file, fdatasync, and answer how
many bytes are durable. The sender keeps the window full and counts what the ack quorum has. Reads: each process sends
from memory what is asked for. No frames, no checksums, no entries, no metadata.

`stored`: a second, lower ceiling for appends, of what no bookie can leave out however it is written: the bytes stay in
memory for a while, are checksummed as often as the formats ask for, and go into a second file behind the journal.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import selectors
import socket
import struct
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from bkpy.errors import BookKeeperError

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES_MAX: Final = 256 << 10  # what a client writes at once
RECEIVE_BYTES_MAX: Final = 8 << 20  # what one sync covers at most
FILE_BYTES_MAX: Final = 64 << 20  # written over and over, as a journal with recycled files is
STORED_BYTES_MAX: Final = 64 << 20  # what is kept in memory, as a memtable does
LOG_WRITE_BYTES: Final = 1 << 20  # what one write to the second file covers
LOG_BYTES_MAX: Final = 1 << 30  # then it is removed, and a new one begun: a bookie's stay, and a minute's fill a disk
_LOG_WRITES_MAX: Final = 16  # that may wait: they stay in memory until they are written
LOG_TIMEOUT_S: Final = 10.0  # a log that takes nothing for so long has failed: there is no figure then
CONNECT_TIMEOUT_S: Final = 30.0
_COUNT: Final = struct.Struct("<q")


def appends(
    directory: str, window_bytes: int, copies: int, ack_quorum: int, seconds: float, *, stored: bool = False
) -> float:
    """MB/s of user data that `ack_quorum` of `copies` receivers made durable. `BookKeeperError` if one fails."""
    with _receivers(receive_and_store if stored else receive_and_sync, directory, copies) as sockets:
        chunk = memoryview(bytes(min(window_bytes, CHUNK_BYTES_MAX)))
        sent = [0] * copies
        durable = [0] * copies
        replies = [bytearray() for _ in range(copies)]
        selector = selectors.DefaultSelector()
        for i, sock in enumerate(sockets):
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ, i)

        def done() -> int:
            return sorted(durable)[-ack_quorum]

        def send(i: int) -> None:
            # The window is what the quorum hasn't acknowledged; a slow copy may lag by a few windows, not for ever.
            limit = min(done() + window_bytes, durable[i] + 4 * window_bytes)
            while sent[i] < limit:
                try:
                    sent[i] += sockets[i].send(chunk[: min(len(chunk), limit - sent[i])])
                except BlockingIOError:
                    selector.modify(sockets[i], selectors.EVENT_READ | selectors.EVENT_WRITE, i)
                    return
            selector.modify(sockets[i], selectors.EVENT_READ, i)

        began = counted_from = time.perf_counter()
        base = 0
        warm = False
        for i in range(copies):
            send(i)
        while (now := time.perf_counter()) - began < seconds * 1.25:
            if not warm and now - began >= seconds * 0.25:
                warm, counted_from, base = True, now, done()
            for key, _ in selector.select(0.1):
                _take_counts(sockets[key.data], replies[key.data], durable, key.data)
            for i in range(copies):
                send(i)
        return (done() - base) / (time.perf_counter() - counted_from) / 1e6


def _take_counts(sock: socket.socket, buffer: bytearray, durable: list[int], i: int) -> None:
    try:
        received = sock.recv(65536)
    except BlockingIOError:
        return
    if not received:
        raise ConnectionResetError
    buffer += received
    whole = len(buffer) // _COUNT.size * _COUNT.size
    if whole:
        durable[i] = _COUNT.unpack_from(buffer, whole - _COUNT.size)[0]
        del buffer[:whole]


def reads(directory: str, in_flight: int, copies: int, seconds: float) -> float:
    """MB/s that one client receives from `copies` senders, in requests of 1 MiB. `BookKeeperError` as above."""
    size = 1 << 20
    with _receivers(_send_what_is_asked, directory, copies) as sockets:
        buffer = bytearray(size)
        selector = selectors.DefaultSelector()
        pending = [0] * copies
        for i, sock in enumerate(sockets):
            selector.register(sock, selectors.EVENT_READ, i)
            for _ in range(max(1, in_flight // copies)):
                sock.sendall(_COUNT.pack(size))
                pending[i] += size
        began = time.perf_counter()
        received = 0
        while (now := time.perf_counter()) - began < seconds:
            for key, _ in selector.select(0.1):
                i = key.data
                if not (got := sockets[i].recv_into(buffer)):
                    raise ConnectionResetError
                received += got
                if (pending[i] - got) // size < pending[i] // size:
                    sockets[i].sendall(_COUNT.pack(size))
                    pending[i] += size
                pending[i] -= got
        return received / (now - began) / 1e6


@contextlib.contextmanager
def _receivers(target: Any, directory: str, copies: int) -> Iterator[list[socket.socket]]:
    """`copies` processes running `target`, each with a connection to here; ended on exit.

    `BookKeeperError` if one of them ends a connection: what it printed says why.
    """
    context = multiprocessing.get_context("spawn")
    sockets: list[socket.socket] = []
    processes = []
    with tempfile.TemporaryDirectory(dir=directory, prefix="ceiling-") as scratch, contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(CONNECT_TIMEOUT_S)
        try:
            for i in range(copies):
                process = context.Process(
                    target=target, args=(server.getsockname()[1], os.path.join(scratch, str(i))), daemon=True
                )
                process.start()
                processes.append(process)
                sock = stack.enter_context(server.accept()[0])
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sockets.append(sock)
            yield sockets
        except (ConnectionError, TimeoutError):
            raise BookKeeperError("the ceiling can't be measured: one of its processes has failed, see above") from None
        finally:
            for sock in sockets:
                sock.close()
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.terminate()


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def receive_and_sync(port: int, path: str) -> None:
    view = memoryview(bytearray(RECEIVE_BYTES_MAX))
    total = offset = 0
    with contextlib.suppress(ConnectionError), connect(port) as sock:
        fd = _journal(path)
        while got := _receive(sock, view):
            offset = _sync(fd, view[:got], offset)
            total += got
            sock.sendall(_COUNT.pack(total))


def receive_and_store(port: int, path: str) -> None:
    memory = memoryview(bytearray(STORED_BYTES_MAX))
    log: queue.Queue[memoryview] = queue.Queue(_LOG_WRITES_MAX)
    total = offset = at = unwritten = 0
    with contextlib.suppress(ConnectionError), connect(port) as sock:
        fd = _journal(path)
        threading.Thread(target=_write_log, args=(f"{path}.log", log, sock), daemon=True).start()
        while got := _receive(sock, memory[at : at + RECEIVE_BYTES_MAX]):
            part = memory[at : at + got]
            crc32c(part)  # the frame's
            crc32c(part)  # the journal record's
            offset = _sync(fd, part, offset)
            total += got
            sock.sendall(_COUNT.pack(total))
            at += got
            round_again = at + RECEIVE_BYTES_MAX > len(memory)
            if at - unwritten >= LOG_WRITE_BYTES or round_again:
                log.put(memory[unwritten:at], timeout=LOG_TIMEOUT_S)
                unwritten = at
            if round_again:
                at = unwritten = 0


def _write_log(path: str, log: queue.Queue[memoryview], sock: socket.socket) -> None:
    """A failure ends the connection as well: the receiver may be waiting for room in the queue, and says nothing."""
    try:
        write_log(path, log)
    finally:
        sock.shutdown(socket.SHUT_RDWR)


def write_log(path: str, log: queue.Queue[memoryview]) -> None:
    fd, offset = _new_log(path), 0
    while True:
        part = log.get()
        if offset + len(part) > LOG_BYTES_MAX:
            os.close(fd)
            os.unlink(path)
            fd, offset = _new_log(path), 0
        crc32c(part)  # the block's
        offset += os.pwrite(fd, part, offset)
        os.fdatasync(fd)


def _new_log(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _journal(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, FILE_BYTES_MAX)
    return fd


def _receive(sock: socket.socket, view: memoryview) -> int:
    """Bytes received: whatever else has arrived meanwhile goes into the same sync."""
    got = sock.recv_into(view)
    with contextlib.suppress(BlockingIOError):
        while 0 < got < len(view) and (more := sock.recv_into(view[got:], flags=socket.MSG_DONTWAIT)):
            got += more
    return got


def _sync(fd: int, data: memoryview, offset: int) -> int:
    """Write and sync; where the next write goes."""
    if offset + len(data) > FILE_BYTES_MAX:
        offset = 0
    offset += os.pwrite(fd, data, offset)
    os.fdatasync(fd)
    return offset


def _send_what_is_asked(port: int, path: str) -> None:
    source = memoryview(bytes(1 << 20))
    with contextlib.suppress(ConnectionError), connect(port) as sock:
        while request := sock.recv(_COUNT.size * 64):
            for k in range(0, len(request), _COUNT.size):
                sock.sendall(source[: _COUNT.unpack_from(request, k)[0]])
