"""The examples of docs/how-to/logs.md run as printed, and print what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

from bkpy.local import LocalCluster

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "logs.md"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", re.DOTALL)


def test_each_example_prints_what_the_page_says(cluster: LocalCluster) -> None:
    text = PAGE.read_text(encoding="utf-8")
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```python") == 3
    for code, printed in examples:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "BKPY_CONNECT": cluster.connect_string},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == re.sub("^    ", "", printed, flags=re.MULTILINE)
        assert done.stderr == ""
