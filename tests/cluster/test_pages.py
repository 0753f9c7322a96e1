"""The examples of pages run as printed, in their order on one cluster, and print what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command import PATIENCE_S, PRELOADED

from bkpy.local import LocalCluster

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", re.DOTALL)


@pytest.mark.parametrize("page", ["how-to/logs.md", "how-to/services.md", "how-to/watching.md", "reference/api.md"])
def test_each_example_prints_what_the_page_says(cluster: LocalCluster, tmp_path: Path, page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```python") > 0
    script = tmp_path / "example.py"
    for code, printed in examples:
        script.write_text(code, encoding="utf-8")
        done = PRELOADED.run(
            [str(script)], stdin=b"", env={**os.environ, "BKPY_CONNECT": cluster.connect_string}, timeout_s=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.decode() == re.sub("^    ", "", printed, flags=re.MULTILINE)
        assert done.stderr == b""


def test_a_client_that_asyncio_run_returns_says_why_it_can_do_nothing(cluster: LocalCluster) -> None:
    code = (
        "import asyncio, bkpy, sys\n"
        "client = asyncio.run(bkpy.connect(sys.argv[1]))\n"
        "asyncio.run(client.open_log('x'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, cluster.connect_string], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "bkpy.errors.WrongEventLoopError: nothing was done: the event loop of the client is closed, as asyncio.run "
        "closes its own when it returns: connect and use the client within one call of asyncio.run"
    )
