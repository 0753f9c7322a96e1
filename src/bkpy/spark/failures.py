"""What Spark tells of a failure in the words of three layers, as the one error that it began with."""

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
    """Raise what Spark failed with when it wrote to `target` as an error of bkpy."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with telling_of_the_end(target):
        try:
            yield
        except (PySparkException, Py4JJavaError) as e:
            raise translated(str(e), target) from e  # for its text, it may ask the Java process


@contextmanager
def telling_of_the_end(target: str | None = None) -> Iterator[None]:
    """Raise what a conversation with a Java process that has ended fails with as an error that says so."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError:
        raise  # it has answered
    except (Py4JError, ConnectionError, EOFError) as e:
        raise BookKeeperError(
            "Spark's Java process has ended, or can't be reached any more: it was killed, perhaps because the machine "
            "was short of memory (`dmesg` tells that); what it was just writing is no part of an export: try again, "
            "with fewer tasks at once if it was memory (--master 'local[1]')",
            path=target,
        ) from e


def translated(text: str, target: str | None = None) -> BookKeeperError:
    """The error that a text of Spark's is about."""
    if found := _OURS.search(text):
        kind = getattr(errors, found[1], None)
        if isinstance(kind, type) and issubclass(kind, BookKeeperError):
            return kind(found[2])
    if found := _RAISED.search(text):
        return CorruptDataError(found[1])
    if "[PATH_ALREADY_EXISTS]" in text:
        return ConfigError("there is something already where the export is to go", path=target)
    if _DISK_FULL in text:
        return DiskError(
            "a disk is full: the export's own, or the one where Spark keeps temporary files (spark.local.dir)",
            path=target,
        )
    causes = _CAUSE.findall(text)
    return BookKeeperError(f"Spark failed: {causes[-1] if causes else text.strip().partition(chr(10))[0]}", path=target)
