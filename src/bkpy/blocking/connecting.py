"""`connect_sync`: from a URI to a client whose calls wait, on an event loop in a thread of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.blocking.base import ClientThread
from bkpy.blocking.calls import BlockingClient
from bkpy.client.connecting import connecting

if TYPE_CHECKING:
    from typing import Unpack

    from bkpy.client.bookies.placement import Placement
    from bkpy.config.client_arguments import ClientArguments
    from bkpy.runtime.tls import TlsContext


def connect_sync(
    uri: str,
    *,
    ssl: TlsContext | None = None,
    tls: TlsContext | None = None,
    placement: Placement | None = None,
    **settings: Unpack[ClientArguments],
) -> BlockingClient:
    """Connect to the cluster at `uri`, for scripts, notebooks and threads: calls wait, without `await`.

        with bkpy.connect_sync(uri) as client, client.open_log("letters", create=True) as log:
            print(log.append(b"first"))

    Arguments and errors are those of `connect`. Each call and attribute has its name and arguments of the asynchronous
    client; what it makes is blocking, too. Any number of threads may share all of it. Ctrl-C in a call cancels the
    call. `close` ends the client and its thread; so does the end of the interpreter, with a `ResourceWarning`.
    """
    thread = ClientThread(connecting(uri, settings, ssl=ssl, tls=tls, placement=placement))
    return BlockingClient(thread.client, thread)
