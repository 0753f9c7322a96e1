"""A port that is taken is refused before anything of a new cluster is made."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from bkpy.errors import ConfigError
from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("there", [False, True], ids=["no directory", "an empty directory"])
async def test_a_cluster_that_is_refused_its_port_leaves_nothing_behind(tmp_path: Path, there: bool) -> None:
    directory = tmp_path / "cluster"
    if there:
        directory.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}, given for ZooKeeper, is taken"):
            await LocalCluster(directory, port=port).start()
    assert directory.exists() == there
    assert not there or not list(directory.iterdir())
