"""PySpark's daemon, which forks the workers of Python, with what all of them import loaded before they are forked.

By itself it loads nothing before, since some of what workers may import begins threads, which a fork wouldn't have;
what is loaded here begins none. Apart from that workers are what they are without this.
"""

from __future__ import annotations

import importlib
import os

_LOADED = (
    "bkpy.client.client",
    "bkpy.metadata.connect",
    "bkpy.spark.planning",
    "bkpy.spark.sink",
    "bkpy.spark.source",
    "pyarrow",
    "pyspark.sql.conversion",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
)


_LOADED_BY_TASKS = ("pandas", "pyarrow.pandas_compat")


def load(*more: str) -> None:
    # Arrow's allocator and numpy's linear algebra have threads of their own otherwise.
    os.environ.update(JE_ARROW_MALLOC_CONF="background_thread:false", OPENBLAS_NUM_THREADS="1")
    for module in (*_LOADED, *more):
        importlib.import_module(module)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("what the workers import has begun a thread, which those that are forked would not have")


if __name__ == "__main__":
    load(*_LOADED_BY_TASKS)
    from pyspark import daemon  # which fixes the environment of all that it forks

    daemon.manager()
