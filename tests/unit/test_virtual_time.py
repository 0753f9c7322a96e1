"""Which unit tests of bookies and clients run on the real system; all others run in virtual time."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.unit.conftest import VIRTUAL

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT = Path(__file__).parent
REAL = {
    "bench/test_processor_time.py": "threads",
    "bookie/admin/test_admin_pages.py": "HTTP needs sockets of the kernel",
    "bookie/bookkeeper/test_bookkeeper_connections.py::test_a_closed_connection_is_freed_without_the_cycle_collector": (
        "transports of the kernel's sockets are freed"
    ),
    "bookie/bookkeeper/test_start_tls.py": "TLS needs sockets of the kernel",
    "bookie/connection/test_closed_connections.py": "transports of the kernel's sockets are freed",
    "bookie/test_collector.py::test_a_run_over_http": "HTTP needs sockets of the kernel",
    "bookie/test_collector.py::test_bodies_that_make_no_sense": "HTTP needs sockets of the kernel",
    "bookie/test_collector.py::test_strangers_are_refused": "HTTP needs sockets of the kernel",
    "bookie/test_file_modes.py": "modes of files are those of a real file system",
    "bookie/test_files.py": "a real file system",
    "bookie/test_moved_directories.py": "directories of a real file system move",
    "bookie/test_read_only.py": "free space is asked for in threads",
    "bookie/test_removed_directories.py": "directories of a real file system go",
    "bookie/connection/test_rights.py": "certificates need TLS, and that needs sockets of the kernel",
    "bookie/connection/test_tls.py": "TLS needs sockets of the kernel",
    "client/bookkeeper/test_bookkeeper_tls.py": "TLS",
    "client/bookies/test_connections.py::test_the_end_of_file_descriptors_is_named": "sockets take file descriptors",
    "client/test_metrics.py::test_another_thread_may_scrape_while_the_client_works": "threads",
    "client/test_threads.py": "threads",
    "client/write/test_idle_writers.py::test_an_idle_writer_is_small": "what objects of the real loop take",
    "metadata/store/zookeeper/test_ended_sessions.py": "a server on a socket of the kernel",
    "metadata/store/zookeeper/test_writes_without_answer.py": "a server on a socket of the kernel",
}


def _reasons(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="real"), args=[ast.Constant(value=str(reason))]):
                yield reason


def _real(path: Path) -> Iterator[tuple[str, str]]:
    """Each module, or test, that is marked as real, and why."""
    name = str(path.relative_to(UNIT))
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets):
            yield from ((name, reason) for reason in _reasons([node.value]))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((f"{name}::{node.name}", reason) for reason in _reasons(node.decorator_list))


@pytest.mark.thorough
def test_what_is_real_is_listed_with_its_reason() -> None:
    modules = [path for part in VIRTUAL for path in sorted((UNIT / part).rglob("test_*.py"))]
    assert dict(found for path in modules for found in _real(path)) == REAL
