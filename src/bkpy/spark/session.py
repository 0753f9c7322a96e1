"""A Spark session that belongs to one program: quiet, and reachable from nowhere but this machine."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bkpy.errors import ConfigError
from bkpy.local.java import java_home_for_spark
from bkpy.spark.failures import telling_of_the_end
from bkpy.spark.jvm import GATEWAY_PORT, end_jvm, jvm_is_ours, start_jvm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_LOOPBACK: Final = "127.0.0.1"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")

_QUIET: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
}
# Executors on other machines have to reach the driver, so these are only for a session without any.
_PRIVATE: Final[Mapping[str, str]] = {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}


def local_session(
    app_name: str,
    *,
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
    output: int | None = None,
    jvm_grace_s: float = 10.0,
) -> SparkSession:
    """A session whose workers run this Python; takes some seconds. Stop it with its `stop`.

    With a `master` other than "local...", tasks run there and the driver can be reached from outside. `config` is
    Spark's own and overrides what is chosen here. A session that this process has already is returned as it is.
    What Java and the workers print goes to the file descriptor `output`, by default where this process's own goes.

    The Java process ends with this one, however this one ends: it is asked to, and killed after `jvm_grace_s` seconds,
    which it needs to remove its temporary files. `ConfigError` when PySpark or a Java runtime is missing.
    """
    try:
        import pyarrow  # noqa: F401 - the data source needs it: fail here, not in a task
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as e:
        raise ConfigError(f"{e.name} is missing; get it with pip install 'bkpy[spark]'") from None
    local = master.startswith("local")
    settings = {"spark.master": master, "spark.app.name": app_name, **_QUIET}
    settings |= {**(_PRIVATE if local else {}), **(config or {})}
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    variables = {"JAVA_HOME": str(java_home_for_spark()), "PYSPARK_PYTHON": sys.executable}
    with telling_of_the_end(), _environment(variables | ({"SPARK_LOCAL_IP": _LOOPBACK} if local else {})):
        if GATEWAY_PORT in os.environ or (SparkContext._gateway is not None and not jvm_is_ours()):
            return builder.getOrCreate()  # in a Java process that somebody else has started
        with _environment(start_jvm(settings, output=output, grace_s=jvm_grace_s)):
            return builder.getOrCreate()


@contextmanager
def own_session(
    app_name: str,
    *,
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
    output: int | None = None,
    jvm_grace_s: float = 10.0,
) -> Iterator[SparkSession]:
    """A `local_session` for a while. Its Java process has ended afterwards, with all that it was doing.

    A session that this process has already is used as it is, and left as it is.
    """
    if _has_session():
        yield local_session(app_name, master=master, config=config)
        return
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        session = local_session(app_name, master=master, config=config, output=output, jvm_grace_s=jvm_grace_s)
        _handle_interrupts_with(interrupt)
        try:
            yield session
        except Exception:
            _stop(session)
            raise
        _stop(session)
    finally:
        end_jvm()
        _handle_interrupts_with(interrupt)


def _has_session() -> bool:
    try:
        from pyspark import SparkContext
    except ImportError:  # which `local_session` tells in words
        return False
    return SparkContext._active_spark_context is not None


def _handle_interrupts_with(handler: Any) -> None:
    """PySpark sets a handler that speaks to the Java process, in the middle of another conversation with it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def _stop(session: SparkSession) -> None:
    with suppress(Exception):  # the Java process may have died, and ends in any case
        session.stop()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, which is how Spark's launcher takes some settings, for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
