"""The commands of docs/how-to/security.md make certificates that the strictest of Python's checks take."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "security.md"


def context(purpose: ssl.Purpose, directory: Path, name: str) -> ssl.SSLContext:
    """As Python 3.13 makes it."""
    made = ssl.create_default_context(purpose, cafile=str(directory / "ca.pem"))
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_cert_chain(directory / f"{name}.pem", directory / f"{name}-key.pem")
    return made


@pytest.mark.exhaustive  # not every machine has what it needs
def test_the_certificates_of_the_page_pass_strict_checks_at_both_ends(tmp_path: Path) -> None:
    for tool in ("openssl", "bash"):
        assert shutil.which(tool), f"needed: {tool} (Debian: apt-get install {tool})"
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE.read_text(), re.MULTILINE)
    (commands,) = (re.sub("^    ", "", block, flags=re.MULTILINE) for block in blocks if "openssl req" in block)
    subprocess.run(["bash", "-e", "-c", commands], cwd=tmp_path, check=True, capture_output=True)
    for host in ("b1.example", "127.0.0.1"):
        to_bookie, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        bookie = context(ssl.Purpose.CLIENT_AUTH, tmp_path, "b1").wrap_bio(to_bookie, to_client, server_side=True)
        client = context(ssl.Purpose.SERVER_AUTH, tmp_path, "orders").wrap_bio(
            to_client, to_bookie, server_hostname=host
        )
        for end in (client, bookie, client, bookie):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
        assert bookie.version() == client.version() == "TLSv1.3"
        assert bookie.getpeercert()["subjectAltName"] == (("DNS", "orders.example"),)  # type: ignore[index]
