"""The clusters of the client's tests."""

from tests.unit.client.conftest import cluster, five, four

__all__ = ["cluster", "five", "four"]
