"""Labels of clients, as they are stored for people, say which process it is."""

from __future__ import annotations

import pytest

from bkpy.protocol.log.client_info import client_info


@pytest.mark.parametrize(
    ("label", "host", "pid", "name"),
    [
        ("host-1, pid 4711", "host-1", 4711, ""),
        ("client billing on host-1, pid 4711", "host-1", 4711, "billing"),
        ("client a on b on host-1, pid 7", "host-1", 7, "a on b"),
        ("an old form", "an old form", 0, ""),
        ("", "", 0, ""),
    ],
)
def test_a_label_names_host_process_and_client(label: str, host: str, pid: int, name: str) -> None:
    info = client_info(label, 1_700_000_000_500)
    assert info == (host, pid, name, 1_700_000_000.5)
    assert str(info) == f"{label}, since 2023-11-14T22:13:20+00:00"
    assert str(client_info(label, 0)) == label
