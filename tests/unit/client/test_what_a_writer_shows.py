"""What users see of a writer is what is documented for them; what its parts tell each other is not on it."""

from __future__ import annotations

import bkpy

PUBLIC = {
    "abandon",
    "append",
    "append_batch",
    "append_nowait",
    "close",
    "ensemble",
    "flush",
    "force",
    "last_add_confirmed",
    "ledger_id",
    "length",
    "metadata",
    "under_replicated",
    "usable",
}


def test_a_writer_shows_what_is_documented_and_nothing_else() -> None:
    shown = {name for name in dir(bkpy.LedgerWriter) if not name.startswith("_")}
    assert shown == PUBLIC
    assert all(getattr(bkpy.LedgerWriter, name).__doc__ for name in shown)
