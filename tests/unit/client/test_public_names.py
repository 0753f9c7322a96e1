"""What users get to see of the objects that they are given: what is meant for them, each with its explanation."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

import bkpy

if TYPE_CHECKING:
    from tests.in_process import InProcess

MEANT = {
    bkpy.LedgerReader: {
        "close",
        "closed",
        "last_add_confirmed",
        "ledger_id",
        "length",
        "metadata",
        "read",
        "read_blocks",
        "read_last_add_confirmed",
        "read_unconfirmed",
        "tail",
    },
}


def public(names: object) -> set[str]:
    return {name for name in dir(names) if not name.startswith("_")}


@pytest.mark.parametrize("of", MEANT, ids=lambda of: of.__name__)
def test_nothing_is_public_but_what_is_meant_and_explained(of: type) -> None:
    assert public(of) == MEANT[of]
    assert [name for name in sorted(MEANT[of]) if not inspect.getdoc(getattr(of, name))] == []


async def test_neither_has_an_object_public_fields_of_its_own(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    reader = await client.open_ledger(writer.ledger_id)
    assert public(reader) == MEANT[bkpy.LedgerReader]
