"""The Java process behind this process's Spark sessions: started, waited for, and never left behind.

PySpark can start it as well, but such a process stays for ever if its program is interrupted meanwhile: it finds no
place to leave its port, and never notices that its program has gone.

Invariants: it ends when this process does, however and whenever that ends; `end_jvm` returns when it has ended.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bkpy.errors import BookKeeperError

if TYPE_CHECKING:
    from collections.abc import Mapping

# What PySpark takes as "there is a gateway already", and what its Java part takes as the file to announce one in.
GATEWAY_PORT: Final = "PYSPARK_GATEWAY_PORT"
_GATEWAY_SECRET: Final = "PYSPARK_GATEWAY_SECRET"
_ANNOUNCEMENT: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"

_GUARD: Final = Path(__file__).with_name("jvm_guard.py")
_POLL_INTERVAL_S: Final = 0.02


@dataclass(frozen=True)
class _Jvm:
    guard: subprocess.Popen[bytes]
    environment: dict[str, str]  # with which PySpark finds it


_running: _Jvm | None = None  # PySpark has one for a process, too


def start_jvm(conf: Mapping[str, str], *, output: int | None, grace_s: float) -> dict[str, str]:
    """Start the Java process; returns the variables with which PySpark finds it, once it can be reached.

    `conf` is Spark's, for the settings that only count at the start. Its output goes to the file descriptor `output`,
    or where this process's own goes. At its end it gets SIGTERM, and SIGKILL `grace_s` seconds later.
    """
    global _running
    if _running is not None:
        if _running.guard.poll() is None:
            return _running.environment
        end_jvm()  # it has died; PySpark must not look for it any more
    with tempfile.TemporaryDirectory(prefix="bkpy-spark-") as directory:
        announcement = Path(directory) / "gateway"
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), str(grace_s), *_command(conf)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # By the locale Java takes the names of files: in others than these they can't all be written.
            env={**os.environ, _ANNOUNCEMENT: str(announcement), "SPARK_CONNECT_MODE": "0", "LC_ALL": "C.UTF-8"},
            start_new_session=True,  # Ctrl-C in a terminal reaches this process alone
        )
        try:
            while not announcement.exists():
                if (status := guard.poll()) is not None:
                    raise BookKeeperError(f"Spark's Java process ended with status {status} while it started")
                time.sleep(_POLL_INTERVAL_S)
            port, secret = _announced(announcement.read_bytes())
        except BaseException:
            _end(guard)
            raise
    _running = _Jvm(guard, {GATEWAY_PORT: str(port), _GATEWAY_SECRET: secret})
    return _running.environment


def jvm_is_ours() -> bool:
    """Whether this process has a Java process that `start_jvm` has started, dead or alive."""
    return _running is not None


def end_jvm() -> None:
    """End the Java process, if any, with all its sessions, and wait for it. PySpark can then start another."""
    global _running
    if _running is not None:
        _end(_running.guard)
        _running = None
        _forget()


def _end(guard: subprocess.Popen[bytes]) -> None:
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()


def _forget() -> None:
    """Make PySpark forget the process that has ended."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is not None:
        with contextlib.suppress(Exception):  # it would like to tell the other side
            gateway.shutdown()
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None


def _command(conf: Mapping[str, str]) -> list[str]:
    from pyspark.find_spark_home import _find_spark_home

    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    others = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    return [os.path.join(_find_spark_home(), "bin", "spark-submit"), *settings, *others]


def _announced(data: bytes) -> tuple[int, str]:
    """Port and secret: a number of four bytes, then text after its length in as many."""
    size = int.from_bytes(data[4:8], "big")
    return int.from_bytes(data[:4], "big"), data[8 : 8 + size].decode()
