"""The README's client example is the one in examples/, and runs as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from bkpy.local import LocalCluster

ROOT = Path(__file__).parents[2]


def test_the_client_example_runs_as_printed(cluster: LocalCluster) -> None:
    (printed,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert printed == (ROOT / "examples" / "hello.py").read_text()
    done = subprocess.run(
        [sys.executable, "-c", printed],
        env={**os.environ, "BKPY_CONNECT": cluster.connect_string},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["0 b'hello'", "1 b'a'", "2 b'b'", "3 b'c'"]
