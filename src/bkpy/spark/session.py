"""A Spark session that belongs to one program: quiet, and reachable from nowhere but this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bkpy.errors import ConfigError
from bkpy.java import java_home_for_spark

if TYPE_CHECKING:
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


def local_session(app_name: str, *, master: str = "local[*]", config: Mapping[str, str] | None = None) -> SparkSession:
    """A session whose workers run this Python; takes some seconds. Stop it with its `stop`.

    With a `master` other than "local...", tasks run there and the driver can be reached from outside. `config` is
    Spark's own and overrides what is chosen here. A session that this process has already is returned as it is.
    `ConfigError` when PySpark or a Java runtime is missing.
    """
    try:
        import pyarrow  # noqa: F401 - the data source needs it, and it is told here rather than by a failed task
        from pyspark.sql import SparkSession
    except ImportError as e:
        raise ConfigError(f"{e.name} is missing; get it with pip install '.[spark]' in bkpy's source tree") from None
    local = master.startswith("local")
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in {**_QUIET, **(_PRIVATE if local else {}), **(config or {})}.items():
        builder = builder.config(name, value)
    variables = {"JAVA_HOME": str(java_home_for_spark()), "PYSPARK_PYTHON": sys.executable}
    with _environment(variables | ({"SPARK_LOCAL_IP": _LOOPBACK} if local else {})):
        return builder.getOrCreate()


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
