"""Runs tests in forks of this process, which has loaded pytest and libraries, but nothing of the sources or the tests.

Invariants: a fork, and each process that it starts, gets all packages of the sources from the directory that it is
given; a fork that has one from elsewhere ends with `UNUSABLE`. No fork outlives this process.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

import pytest
import pytest.__main__
from _pytest.config import default_plugins

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UNUSABLE = 70  # the exit status of a fork whose tests say nothing; those of pytest are below
OF_FORK = "TESTS_OF_FORK"  # in the environment of a fork and of all that it starts: its process id
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_OWN_ROOT = Path(__file__).parents[2]
_LIBRARIES = (  # what takes longest to load of what tests and sources import
    *(f"_pytest.{name}" for name in default_plugins),
    "aiofiles.tempfile",
    "aiohttp.web",
    "aiozk",
    "asyncio",
    "cProfile",
    "click",
    "crc32c",
    "cryptography.x509",
    "execnet.gateway_bootstrap",
    "hypothesis.strategies",
    "lmdb",
    "msgpack",
    "numpy",
    "pdb",
    "pickle",
    "prometheus_client.core",
    "py4j.java_gateway",
    "pyarrow",
    "pydantic_settings",
    "pyspark.sql",
    "pytest_asyncio.plugin",
    "pytest_timeout",
    "readline",
    "rich.progress",
    "rich.table",
    "statistics",
    "unittest.mock",
    "uvloop",
    "xdist.newhooks",
    "xdist.plugin",
    "xml.etree.ElementTree",
    "yaml",
)
# Some of them begin threads otherwise, which a fork would not have.
_WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}


def load_libraries() -> None:
    """Load what each fork would otherwise load by itself."""
    before = dict(os.environ)
    os.environ.update(_WITHOUT_THREADS)
    for name in _LIBRARIES:
        importlib.import_module(name)
    os.environ.clear()
    os.environ.update(before)
    gc.collect()
    gc.freeze()  # a fork's collections neither look through what is loaded nor get copies of its pages by that


def start(root: Path, source: Path, arguments: Sequence[str], output: IO[bytes]) -> int:
    """The process id of a fork that runs pytest in `root` with the packages of `source`, and leads a session."""
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("this process has threads, which its forks would not have")
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _prepare(parent, root, source, output)
        status: int = pytest.main([*arguments])
        for problem in _from_elsewhere(source):
            status = UNUSABLE
            print(problem)
        _end(status)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(UNUSABLE)


def _prepare(parent: int, root: Path, source: Path, output: IO[bytes]) -> None:
    """Become what `python -m pytest` in `root` is at its start."""
    os.setsid()
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(UNUSABLE)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    os.chdir(root)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH", ""))))
    os.environ["COLUMNS"] = "400"
    os.environ[OF_FORK] = str(os.getpid())
    sys.path[:] = [str(root), str(source), *(path for path in sys.path if path not in ("", str(_OWN_ROOT)))]
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # the fork's are those of `root`
    sys.modules["__main__"] = pytest.__main__
    sys.argv = ["pytest"]
    for name in _packages(source):
        if name in sys.modules:
            raise RuntimeError(f"{name} is loaded already")


def _from_elsewhere(source: Path) -> Iterator[str]:
    """A line for each module that has a name of the sources and is none of these."""
    packages = _packages(source)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in packages and not (file and Path(file).is_relative_to(source)):
            yield f"{name} is loaded from {file}, and not from {source}"


def _packages(source: Path) -> set[str]:
    return {path.stem for path in source.iterdir()} - {"__pycache__"}


def _end(status: int) -> NoReturn:
    """What the interpreter does at its end, but for taking apart all that was loaded."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
