"""The documentation as a site: it builds without a warning, has all pages, and takes nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a browser fetches by itself. The theme names its maker in a link, which is followed by a click only.
FETCHED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"(?:https?:)?//[^\"]*\"")


@pytest.mark.exhaustive
def test_the_site_has_all_pages_and_fetches_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert not done.returncode, done.stdout + done.stderr
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    built = {str(page.relative_to(site).with_suffix("")) for page in site.rglob("*.html")}
    assert {page.replace("README", "index") for page in pages} <= built
    for page in site.rglob("*.html"):
        assert not FETCHED.findall(page.read_text(encoding="utf-8")), page
    options = (site / "reference" / "options.html").read_text(encoding="utf-8")
    assert "--lost" in options
    assert "Sentinel" not in options
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert any("under-replication record" in entry["text"] for entry in index["docs"])
