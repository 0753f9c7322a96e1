"""The stream: Spark aggregates the log "flights" by airport and day into Parquet files, in micro-batches.

    python examples/flights/aggregate.py DIRECTORY [--once]

With --once it ends when it has read what is there now, otherwise with Ctrl-C. The next one goes on from the checkpoint.
So does this one when the query fails, as Spark's does on a machine that is too busy to start a Python process in time.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from pyspark.errors import StreamingQueryException

from bkpy.demo.delays import SPARK_CONFIG, delays_by_origin
from bkpy.spark.session import own_session

FAILURES_MAX = 3  # in a row, without a batch in between


def main(directory: Path, once: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with (
        open(directory / "spark.log", "ab") as log,
        own_session("flights", config=SPARK_CONFIG, output=log.fileno()) as spark,
    ):
        entries = (
            spark.readStream.format("bkpy")
            .option("metadataServiceUri", os.environ["BKPY_CONNECT"])
            .option("log", "flights")
            .option("maxEntriesPerTrigger", 50_000)
            .load()
        )
        # Payloads are parsed, and grouped by airport and day; a watermark says when a day is complete.
        stream = (
            delays_by_origin(entries)
            .writeStream.format("parquet")
            .option("path", str(directory / "delays.parquet"))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(**({"availableNow": True} if once else {"processingTime": "1 second"}))
        )
        print(
            f"aggregating into {directory / 'delays.parquet'}; what Spark says goes to spark.log beside it", flush=True
        )
        ctrl_c = threading.Event()  # an exception would come in the middle of a conversation with Spark
        signal.signal(signal.SIGINT, lambda *_: ctrl_c.set())
        batch, failures, ended = None, 0, False
        while not ctrl_c.is_set() and not ended:
            query = stream.start()
            try:
                while not ctrl_c.is_set() and not ended:
                    ended = query.awaitTermination(1)  # raises what the query fails with
                    progress = query.lastProgress
                    if progress is not None and progress["batchId"] != batch:
                        batch, failures = progress["batchId"], 0
                        print(f"batch {batch}: {progress['numInputRows']:,} events", flush=True)
                query.stop()
            except StreamingQueryException as error:
                failures += 1
                if failures == FAILURES_MAX:
                    raise
                print(f"the query has failed and starts again: {str(error).splitlines()[0]}", flush=True)
    if ctrl_c.is_set():
        print("Stopped; start it again, and it goes on.")


if __name__ == "__main__":
    if "BKPY_CONNECT" not in os.environ:
        sys.exit("Which cluster? Set BKPY_CONNECT as the output of bkpy local says.")
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), "--once" in sys.argv)
