"""What is no JSON that can be worked with is refused as such."""

from __future__ import annotations

import pytest

from bkpy.stored_json import parsed


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", b"[NaN]", b"[-Infinity]", b"[1e999]", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000],
    ids=lambda data: data[:9],
)
def test_what_can_not_be_read_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever kind
        parsed(data)


def test_all_else_is_what_it_says() -> None:
    assert parsed(b'\xef\xbb\xbf{"a": [1, 2.5, "\xc3\xa4", null, true]}') == {"a": [1, 2.5, "ä", None, True]}
