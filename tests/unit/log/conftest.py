"""The tests of logs have the client's clusters in one process."""

from tests.unit.client.conftest import cluster, five

__all__ = ["cluster", "five"]
