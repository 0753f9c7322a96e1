"""The picture: draws the delays by day that `aggregate.py` has put into a directory.

python examples/flights/chart.py DIRECTORY
"""

import sys
from pathlib import Path

from bkpy.demo.chart import draw
from bkpy.demo.delays import SPARK_CONFIG, stored_windows
from bkpy.spark.session import own_session


def main(directory: Path) -> None:
    # Spark reads the files, since it knows which of them count: a query that was killed may have left others.
    with own_session("chart", config=SPARK_CONFIG) as spark:
        windows = stored_windows(spark, directory / "delays.parquet")
    draw(windows, directory / "delays.png")
    print(f"{sum(window.flights for window in windows):,} flights in {len(windows):,} windows")
    print(directory / "delays.png")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if not Path(sys.argv[1], "delays.parquet").is_dir():
        sys.exit(f"{sys.argv[1]} has no delays.parquet: aggregate.py puts it there")
    main(Path(sys.argv[1]))
