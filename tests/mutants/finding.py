"""Lists of ledgers by what they are, and completion."""

from __future__ import annotations

from typing import Final

from tests.mutants import Mutant

_FOUND: Final = "tests/unit/admin/test_admin_client.py::test_ledgers_are_found_by_what_they_are"

MUTANTS = [
    Mutant(
        "a ledger with one of the wanted attributes is found",
        "an operator deletes ledgers that are not the ones asked for",
        "            and all(metadata.custom_metadata.get(key) == value for key, value in self.custom.items())\n",
        "            and any(metadata.custom_metadata.get(k) == v for k, v in self.custom.items() or [('', None)])\n",
        (_FOUND,),
    ),
    Mutant(
        "the last ledgers of a list are not looked at",
        "ledgers that miss copies are not shown",
        "                    some = []\n"
        "            for metadata in await self._wanted(catalog, some, wanted):\n"
        "                yield metadata\n",
        "                    some = []\n",
        (_FOUND,),
    ),
    Mutant(
        "ledgers that any bookie has are found for each bookie",
        "an operator believes that a bookie is needed",
        "self.bookie in fragment.bookies for fragment",
        "fragment.bookies for fragment",
        (_FOUND,),
    ),
]
