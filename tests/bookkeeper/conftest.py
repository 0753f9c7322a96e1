"""A cluster of Apache BookKeeper's own bookies. These tests run where Maven and a Java compiler are."""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.bookkeeper.java_cluster import JavaBookies
from tests.conftest import run_elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.local.zookeeper import ZooKeeperServer

collect_ignore_glob = [] if shutil.which("mvn") and shutil.which("javac") else ["test_*.py"]


@pytest.fixture(scope="module")
def java(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBookies]:
    """Three bookies, under a root of their own in the session's ZooKeeper."""
    bookies = JavaBookies(zookeeper.port, f"/bk-{uuid.uuid4().hex}", tmp_path_factory.mktemp("java"))
    try:
        run_elsewhere(bookies.start())
        yield bookies
    finally:
        run_elsewhere(bookies.kill())
