"""How many files a bookie may open, and how many connections that leaves.

Every connection is a file. If connections took all files that the process may open, the journal could not open its next
one, and the bookie would end. So connections get the files that the storage can't need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from bkpy.config.bookie import BookieSettings

_OF_PROCESS: Final = 32  # the loop, standard streams, ZooKeeper, sockets that listen, locks
_OF_JOURNAL_DIRECTORY: Final = 8  # the current file, the next one, files being replayed or kept, the directory
_OF_LEDGER_DIRECTORY: Final = 8  # the current log, the next one, the index's two files, the directory
_OF_HANDSHAKE: Final = 2  # TLS has a handle of its own
_OF_PAGE_CONNECTION: Final = 3  # its own, a second handle, and the loop's until that is closed
_SHARE_OF_NEW_CONNECTIONS: Final = 8  # one in so many


def storage_files(settings: BookieSettings) -> int:
    """Files that the storage and the process may have open, and a reserve."""
    return (
        _OF_PROCESS
        + settings.files_spare
        + (_OF_PAGE_CONNECTION * settings.metrics_connections_max if settings.metrics_port >= 0 else 0)
        + len(settings.journal_directories) * _OF_JOURNAL_DIRECTORY
        + len(settings.ledger_directories) * (_OF_LEDGER_DIRECTORY + settings.open_entry_logs_max)
    )


def fit_files(settings: BookieSettings, files_max: int) -> BookieSettings:
    """The settings with as many connections as a process that may open `files_max` files has room for.

    The kernel's backlog counts as well: the loop accepts all of it at once, before it refuses any connection.
    Raises `ConfigError` if there is no room for any.
    """
    left = files_max - storage_files(settings)
    of_handshake = _OF_HANDSHAKE if settings.tls_certificate_file is not None else 0
    new_connections = (
        settings.new_connections_max + settings.listen_backlog + of_handshake * settings.tls_handshakes_max
    )
    if settings.connections_max + new_connections <= left:
        return settings
    few = left // _SHARE_OF_NEW_CONNECTIONS
    if few < _OF_HANDSHAKE:
        raise ConfigError(
            f"this process may open {files_max} files, and the storage needs {storage_files(settings)}: "
            "raise the limit (ulimit -n, LimitNOFILE)"
        )
    fitting = settings.model_copy(
        update={
            "new_connections_max": min(settings.new_connections_max, few),
            "listen_backlog": min(settings.listen_backlog, few),
            "tls_handshakes_max": min(settings.tls_handshakes_max, few // _OF_HANDSHAKE),
        }
    )
    left -= fitting.new_connections_max + fitting.listen_backlog + of_handshake * fitting.tls_handshakes_max
    return fitting.model_copy(update={"connections_max": min(settings.connections_max, left)})
