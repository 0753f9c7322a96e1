"""The clusters of the client's tests: recovery is a client's."""

from __future__ import annotations

from tests.unit.client.conftest import cluster, five

__all__ = ["cluster", "five"]
