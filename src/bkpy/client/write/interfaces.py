"""What a replication is given: the parts that all of one client share, and what it needs of its owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.client.bookies.ensembles import Ensembles
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.client.write.dispatcher import AddDispatcher
    from bkpy.client.write.stragglers import Stragglers
    from bkpy.config.client import ClientSettings
    from bkpy.errors import BookKeeperError
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.runtime.interfaces import Runtime


class ReplicationParts(NamedTuple):
    """What all replications of one client share."""

    ensembles: Ensembles
    pool: BookiePool
    dispatcher: AddDispatcher
    stragglers: Stragglers
    settings: ClientSettings
    runtime: Runtime


class Source(Protocol):
    """What has entries to replicate: the batcher of a writer, or a recovery."""

    @property
    def has_unsent(self) -> bool:
        """Whether there is something to drain."""

    @property
    def has_pending(self) -> bool:
        """Whether something that it has is not confirmed, sent or not."""

    @property
    def idle(self) -> bool:
        """Whether nothing is pending and nothing will come: then a failed bookie concerns no append."""

    def drain(self) -> None:
        """Put all that is unsent into the queues of its write sets, unless the acknowledgements are frozen."""

    def on_confirmed(self, confirmed: int, count: int) -> None:
        """Everything up to `confirmed` is on its ack quorum, `count` entries more than before."""

    def on_failed(self, error: BookKeeperError) -> None:
        """Nothing more can be confirmed. Called once."""

    def on_rest(self) -> None:
        """Nothing was sent for a while, and nothing is pending."""


class OpenFragment(Protocol):
    """What the store of its fragments is to know of a replication."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def metadata(self) -> LedgerMetadata: ...

    @property
    def confirmed(self) -> int:
        """The highest id that is on its ack quorum."""

    @property
    def error(self) -> BookKeeperError | None:
        """What has ended it."""


class AppendReceiver(Protocol):
    """What receives the events of a batcher: the appends of a ledger's writer, or of a log's."""

    def on_confirmed(self) -> None:
        """The batcher has confirmed entries, and resolved their futures."""

    def on_failed(self, error: BookKeeperError) -> None:
        """The batcher has failed: it confirms nothing more, and nothing can be added to it."""

    def as_error(self, error: BookKeeperError) -> BookKeeperError:
        """What such an error means to the appenders."""

    @property
    def may_add(self) -> bool:
        """Whether appends that were taken may still be added, though the ledger's writer is being closed."""


class FragmentStore(Protocol):
    """Where a change of the ensemble is stored."""

    async def store(
        self, fragment: OpenFragment, ensemble: Sequence[str], replaced: Collection[str]
    ) -> LedgerMetadata | None:
        """Make `ensemble` that of the entries above last add confirmed; returns the metadata to go on with.

        These may name another ensemble, which somebody else has stored. None if nothing was changed and nothing will
        be. Called while the acknowledgements are frozen. Raises what ends the replication.
        """

    async def taken_in(self, fragment: OpenFragment, bookie_ids: Collection[str], first_entry: int) -> None:
        """Record that these bookies, absent when the ledger was created, take all entries from `first_entry` on.

        Tries until that is done or the replication has ended: else a worker looks at more than it needs to.
        """
