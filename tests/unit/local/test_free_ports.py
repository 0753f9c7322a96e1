"""Ports for servers that are still to be started: two processes that choose at the same time choose differently."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from bkpy.local.process import free_port, port_is_free

MANY = 500  # more than one block holds
CHOOSE = f"""\
import sys
from bkpy.local.process import free_port
print(*(free_port() for _ in range({MANY})), flush=True)
sys.stdin.read()
"""


@pytest.mark.thorough
def test_processes_side_by_side_choose_different_ports() -> None:
    """Nothing listens at any of them: each is as free as before when the other process chooses."""
    others = [
        subprocess.Popen([sys.executable, "-c", CHOOSE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        chosen = [{free_port() for _ in range(MANY)}]
        for other in others:
            assert other.stdout is not None
            chosen.append(set(map(int, other.stdout.readline().split())))
    finally:
        for other in others:
            other.communicate()
    assert all(chosen)
    assert len(set().union(*chosen)) == sum(map(len, chosen))


def test_a_fork_chooses_ports_of_its_own() -> None:
    mine = {free_port() for _ in range(20)}
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, b" ".join(b"%d" % free_port() for _ in range(20)))
        finally:  # whatever happens, these tests go on in one process only
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as answer:
        theirs = set(map(int, answer.read().split()))
    assert len(theirs) == 20
    assert not mine & theirs
    assert not {free_port() for _ in range(20)} & theirs


def test_a_port_is_not_chosen_again_soon_nor_while_it_is_in_use_or_taken() -> None:
    first = free_port()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", first))
        server.listen()
        assert not port_is_free(first)
        taken = free_port()
        ports = [free_port([taken]) for _ in range(1000)]  # every port of the block comes several times
    assert len(set(ports[:100])) == 100
    assert first not in ports
    assert taken not in ports


def test_threads_choose_different_ports() -> None:
    chosen: list[int] = []
    threads = [threading.Thread(target=lambda: chosen.extend(free_port() for _ in range(20))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(chosen)) == 100
