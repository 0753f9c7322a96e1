"""What the dashboard may do to a cluster, if it is allowed to: what the commands of the same names do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bkpy.dashboard.models import ActionDone
from bkpy.errors import BookieUnavailableError, ConfigError

if TYPE_CHECKING:
    from bkpy.admin.bookie_pages import ClusterPages
    from bkpy.admin.client import AdminClient

ACTIONS: Final = {
    "drain": "Begin to drain the bookie: it takes no new entries, and its ledgers are copied to others.",
    "cancel-drain": "End the draining of the bookie.",
    "recover": "Close the ledger where it ends. Its writer, if there is one, is fenced.",
    "gc": "Start a run of garbage collection on the bookie.",
    "scrub": "Start a round of the scrub on the bookie.",
}


class Actions:
    """By an `AdminClient`; collection and scrub by the bookie's own pages."""

    def __init__(self, admin: AdminClient, pages: ClusterPages) -> None:
        self._admin = admin
        self._pages = pages

    async def act(self, action: str, subject: str) -> ActionDone:
        """Do it. Raises what the cluster raises, `ConfigError` for a subject that can't be."""
        match action:
            case "drain":
                await self._admin.start_drain(subject)
                text = f"bookie {subject} begins to drain"
            case "cancel-drain":
                ended = await self._admin.cancel_drain(subject)
                text = f"the draining of bookie {subject} was ended" if ended else f"bookie {subject} wasn't draining"
            case "recover":
                if not subject.isdecimal():
                    raise ConfigError(f"{subject!r} is no ledger id")
                metadata = await self._admin.close_ledger(int(subject))
                text = f"ledger {subject} was closed at entry {metadata.last_entry}"
            case "gc" | "scrub":
                text = await self._start(action, subject)
            case _:
                raise ConfigError(f"there is no action {action}")
        return ActionDone(text=text)

    async def _start(self, action: str, bookie_id: str) -> str:
        client = self._admin.client
        info = client.bookies.get(bookie_id) or client.read_only_bookies.get(bookie_id)
        if info is None:
            raise BookieUnavailableError("no such bookie is registered now", bookie=bookie_id)
        what = "a run of garbage collection" if action == "gc" else "a round of the scrub"
        started = await self._pages.post(info, f"/{action}")
        return f"{what} was started on bookie {bookie_id}" if started else f"{what} is under way on bookie {bookie_id}"
