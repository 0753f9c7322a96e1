"""What is a password in a file, and what is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.in_process import InProcess

from bkpy.config.password_file import PASSWORD_BYTES_MAX, read_password
from bkpy.errors import ConfigError
from bkpy.spark import options

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n", b" \t\n", b"\n\n\n", b"\r", b"\x0b\x0c"])
def test_a_file_without_a_password_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    for read in (read_password, options.read_password):
        with pytest.raises(ConfigError, match=r"holds no password \[file .*secret\]"):
            read(str(file))


@pytest.mark.parametrize(
    ("content", "password"),
    [
        (b"s3cret", b"s3cret"),
        (b"s3cret\n", b"s3cret"),
        (b"s3cret\r\n", b"s3cret"),
        (b"s3cret\r", b"s3cret"),
        (b" two words \n\n", b" two words \n"),
        (b"\xff\x00\n", b"\xff\x00"),
    ],
)
def test_one_line_break_at_the_end_does_not_count(tmp_path: Path, content: bytes, password: bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    assert read_password(str(file)) == options.read_password(str(file)) == password


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't be read: No such file or directory \[file .*none\]"):
        read_password(str(tmp_path / "none"))


def test_what_never_ends_is_no_password() -> None:
    with pytest.raises(ConfigError, match=r"over 65536 bytes .*\[file /dev/zero\]"):
        read_password("/dev/zero")


@pytest.mark.thorough
async def test_a_password_that_a_client_takes_is_one_that_a_file_can_hold(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start()
    client = await cluster.client()
    longest, file = b"p" * PASSWORD_BYTES_MAX, tmp_path / "secret"
    file.write_bytes(longest + b"\r\n")
    assert read_password(str(file)) == longest
    ledger_id = (await client.create_ledger(password=longest)).ledger_id
    await client.recover_ledger(ledger_id, password=longest)
    file.write_bytes(longest + b"p\r\n")
    with pytest.raises(ConfigError, match="over 65536 bytes"):
        read_password(str(file))
    for call in (
        lambda: client.create_ledger(password=longest + b"p"),
        lambda: client.open_ledger(ledger_id, password=longest + b"p"),
        lambda: client.recover_ledger(ledger_id, password=longest + b"p"),
    ):
        with pytest.raises(ConfigError, match="at most 65536 bytes, not 65537"):
            await call()
    assert [one async for one in client.list_ledgers()] == [ledger_id]
    await cluster.stop()
