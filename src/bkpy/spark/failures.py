"""Finds the first error in what Spark reports of a failure, in which three layers wrap each other."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bkpy import errors
from bkpy.errors import BookKeeperError, ConfigError, CorruptDataError, DiskError

if TYPE_CHECKING:
    from collections.abc import Iterator

# A line of a Python traceback, the text of `raise_error`, the first of Java's causes.
_OURS: Final = re.compile(r"^bkpy\.errors\.(\w+): (.+)$", re.MULTILINE)
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_DISK_FULL: Final = "No space left on device"


@contextmanager
def translating(target: str) -> Iterator[None]:
    """Raise Spark's errors of a write to `target` as errors of bkpy."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with telling_of_the_end(target):
        try:
            yield
        except (PySparkException, Py4JJavaError) as e:
            raise translated(str(e), target) from e  # for its text, it may ask the Java process


@contextmanager
def telling_of_the_end(target: str | None = None) -> Iterator[None]:
    """Raise an error that names the cause when a call fails because the Java process has ended."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError:
        raise  # it has answered
    except (Py4JError, ConnectionError, EOFError) as e:
        raise BookKeeperError(
            "Spark's Java process has ended, or can't be reached any more: it was killed, perhaps because the machine "
            "was short of memory (see `dmesg`); files that it was writing are no part of an export: try again, "
            "with fewer tasks at once if it was memory (--master 'local[1]')",
            path=target,
        ) from e


def translated(text: str, target: str | None = None) -> BookKeeperError:
    """The error that a text of Spark's describes."""
    if found := _OURS.search(text):
        kind = getattr(errors, found[1], None)
        if isinstance(kind, type) and issubclass(kind, BookKeeperError):
            return kind(found[2])
    if found := _RAISED.search(text):
        return CorruptDataError(found[1])
    if "[PATH_ALREADY_EXISTS]" in text:
        return ConfigError("the target of the export exists already", path=target)
    if _DISK_FULL in text:
        return DiskError(
            "a disk is full: the export's own, or that of Spark's temporary files (spark.local.dir)",
            path=target,
        )
    causes = _CAUSE.findall(text)
    return BookKeeperError(f"Spark failed: {causes[-1] if causes else text.strip().partition(chr(10))[0]}", path=target)
