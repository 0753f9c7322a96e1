"""What Python runs as it starts: PySpark's daemons that plan load first what all processes forked from them import.

Which module these daemons run is no setting, unlike that of the daemon of tasks (`spark.python.daemon.module`). So this
folder is first on their path. In any other process nothing happens.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    root = str(Path(__file__).parents[3])
    sys.path.insert(0, root)
    from tests.spark.loaded_workers import load

    sys.path.remove(root)
    load()
