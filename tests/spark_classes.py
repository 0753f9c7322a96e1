"""How tests start Spark: compiled quickly, and with an archive of the classes that it loads, beside the packages.

Java compiles what runs for seconds only as quickly as it can, and takes Spark's classes for sound: that halves the
processor time of the tests with Spark. With the archive, which `make test-full` makes, Spark starts in two thirds of
what is left. Java ignores one that belongs to other jars, or to another Java. Nothing else is different.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bkpy.errors import BookKeeperError
from bkpy.spark.session import own_session

ARCHIVE = Path(sys.prefix) / "spark.jsa"
_QUICKLY = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
# Of drivers, and of what finds their class path, which loads other classes.
VARIABLES = {
    "SPARK_SUBMIT_OPTS": f"{_QUICKLY} -XX:SharedArchiveFile={ARCHIVE} {_SILENT}",
    "SPARK_LAUNCHER_OPTS": _QUICKLY,
}
MAKING_S = 300.0  # half a minute on a quiet machine


def load_classes(directory: Path) -> None:
    """Use what tests use, in a session whose Java process writes the archive when it ends."""
    with own_session("classes", master="local[2]", jvm_grace_s=MAKING_S) as spark:
        rows = spark.range(1000).selectExpr(
            "id", "cast(id as string) as text", "cast(cast(id as string) as binary) as payload"
        )
        for form in ("parquet", "json"):
            rows.write.format(form).save(str(directory / form))
        stored = spark.read.parquet(str(directory / "parquet"))
        stored.filter("id > 3").groupBy("text").count().orderBy("text").collect()
        stored.mapInArrow(lambda batches: batches, stored.schema).count()
        stream = spark.readStream.schema(stored.schema).parquet(str(directory / "parquet")).writeStream
        stream = stream.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
        stream.format("parquet").start(str(directory / "out")).awaitTermination()


def make(archive: Path) -> None:
    """Write the archive; nothing that starts meanwhile sees a part of it."""
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="spark-") as directory:
        unfinished = Path(directory) / archive.name
        os.environ["SPARK_SUBMIT_OPTS"] = f"{_QUICKLY} -XX:ArchiveClassesAtExit={unfinished} {_SILENT}"
        load_classes(Path(directory))
        os.replace(unfinished, archive)


if __name__ == "__main__":
    try:
        make(ARCHIVE)
    except (BookKeeperError, OSError, subprocess.SubprocessError) as e:
        print(f"without an archive of Spark's classes: {e}", file=sys.stderr)
