"""A network of its own: hosts that are network namespaces, and a switch between them that delays, loses and cuts.

The switch is here and not in the kernel (`tc netem` is not in every kernel): each host has a TAP device, whose other
end is read and written by this process, frame by frame. Invariants: no address or device is made outside of the
namespaces; a namespace and its device have no name anywhere, and are gone when this process is, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import random
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_TUN = Path("/dev/net/tun")
_DEVICE = "eth0"
_FRAME_BYTES_MAX = 16_384
_MTU = 9000  # fewer frames for the same bytes: each of them costs this process something
_FRAMES_AT_ONCE = 64
_BROADCAST = 0x01  # in the first byte of the address
_libc = ctypes.CDLL(None, use_errno=True)


def require() -> None:
    """Fail with what is missing and how to get it."""
    assert os.geteuid() == 0, "tests with network namespaces need root"
    assert _TUN.exists(), f"tests with network namespaces need {_TUN}: modprobe tun"
    missing = [package for command, package in (("ip", "iproute2"), ("nsenter", "util-linux")) if not _there(command)]
    assert not missing, f"tests with network namespaces need: apt-get install {' '.join(missing)}"


def _there(command: str) -> bool:
    return shutil.which(command) is not None


@dataclass
class Link:
    """What becomes of frames from one host to another."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # at most so much more; frames don't overtake each other
    loss: float = 0.0  # the share of frames that vanish
    cut: bool = False
    frames: int = 0  # that have come through
    due_s: float = 0.0  # of the last frame under way


class Host:
    """A namespace with the address 10.77.0.`number`."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"10.77.0.{number}"
        self.mac = bytes((2, 0, 0, 0, 0, number))
        self.namespace = _new_namespace()
        with inside(self.namespace):
            self.tap = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(self.tap, _TUNSETIFF, struct.pack("16sH22x", _DEVICE.encode(), _IFF_TAP | _IFF_NO_PI))
        mac = self.mac.hex(":")
        for words in (
            ("link", "set", "lo", "up"),
            ("link", "set", _DEVICE, "address", mac, "mtu", str(_MTU)),
            ("addr", "add", f"{self.address}/24", "dev", _DEVICE),
            ("link", "set", _DEVICE, "up"),
        ):
            subprocess.run([*self.command, "ip", *words], check=True, capture_output=True, timeout=10.0)

    @property
    def command(self) -> list[str]:
        """What is put before a command to run it on this host."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.namespace}"]

    def close(self) -> None:
        os.close(self.tap)
        os.close(self.namespace)


class Network:
    """The hosts by name, and the switch. `async with Network(["client", "a", "b"]) as network`."""

    def __init__(self, names: Iterable[str], *, seed: int = 0) -> None:
        require()
        self.hosts: dict[str, Host] = {}
        self._rng = random.Random(seed)
        try:
            for number, name in enumerate(names, 1):
                self.hosts[name] = Host(name, number)
        except BaseException:
            self._close()
            raise
        self.links = {(a, b): Link() for a in self.hosts for b in self.hosts if a != b}
        self._by_mac = {host.mac: host for host in self.hosts.values()}

    async def __aenter__(self) -> Network:
        loop = asyncio.get_running_loop()
        for host in self.hosts.values():
            loop.add_reader(host.tap, self._switch, host)
        return self

    async def __aexit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for host in self.hosts.values():
            loop.remove_reader(host.tap)
        self._close()

    def _close(self) -> None:
        for host in self.hosts.values():
            host.close()
        self.hosts = {}

    # --- faults -----------------------------------------------------------------------------------------------------

    def worsen(self, *, delay_s: float = 0.0, jitter_s: float = 0.0, loss: float = 0.0) -> None:
        """All links are so from now on."""
        for link in self.links.values():
            link.delay_s, link.jitter_s, link.loss = delay_s, jitter_s, loss

    def part(self, some: Iterable[str], others: Iterable[str], *, both_ways: bool = True) -> None:
        """Nothing comes from `some` to `others` any more, nor, if both ways, back. Connections are not told."""
        theirs = list(others)
        for a in some:
            for b in theirs:
                if a != b:
                    self.links[a, b].cut = True
                    self.links[b, a].cut |= both_ways

    def isolate(self, *names: str) -> None:
        """These reach nobody else, but each other."""
        self.part(names, set(self.hosts) - set(names))

    def heal(self) -> None:
        """No link delays, loses or is cut any more."""
        self.worsen()
        for link in self.links.values():
            link.cut = False

    # --- the switch -------------------------------------------------------------------------------------------------

    def _switch(self, source: Host) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            try:
                frame = os.read(source.tap, _FRAME_BYTES_MAX)
            except BlockingIOError:
                return
            if frame[0] & _BROADCAST:
                for host in self.hosts.values():
                    if host is not source:
                        self._pass(source, host, frame)
            elif (target := self._by_mac.get(frame[:6])) is not None:
                self._pass(source, target, frame)

    def _pass(self, source: Host, target: Host, frame: bytes) -> None:
        link = self.links[source.name, target.name]
        if link.cut or (link.loss and self._rng.random() < link.loss):
            return
        link.frames += 1
        loop = asyncio.get_running_loop()
        now = loop.time()
        link.due_s = max(link.due_s, now + link.delay_s + self._rng.uniform(0, link.jitter_s))
        if link.due_s <= now:
            self._deliver(target, frame)
        else:
            loop.call_at(link.due_s, self._deliver, target, frame)

    def _deliver(self, target: Host, frame: bytes) -> None:
        if target.name in self.hosts:  # else it was under way when the network ended
            with contextlib.suppress(BlockingIOError):  # the host is behind: a switch loses frames then
                os.write(target.tap, frame)


def _new_namespace() -> int:
    """A file descriptor of one; it lives as long as that, and the processes in it."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _checked(_libc.unshare(_CLONE_NEWNET), "make a network namespace")
        made = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _checked(_libc.setns(before, _CLONE_NEWNET), "come back from a network namespace")
        return made
    finally:
        os.close(before)


@contextlib.contextmanager
def inside(namespace: int) -> Iterator[None]:
    """This thread is there: sockets that it makes are, and stay there."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _checked(_libc.setns(namespace, _CLONE_NEWNET), "enter a network namespace")
        try:
            yield
        finally:
            _checked(_libc.setns(before, _CLONE_NEWNET), "come back from a network namespace")
    finally:
        os.close(before)


def _checked(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"can't {what}: {os.strerror(error)}")
