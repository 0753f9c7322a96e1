"""The audit trail: an act without its record, a record of somebody else, a trail without a bound."""

from __future__ import annotations

from typing import Final

from tests.mutants import Mutant

_TRAIL: Final = "tests/unit/admin/test_audit_trail.py::"

MUTANTS = [
    Mutant(
        "a draining is begun without its record",
        "nobody can find out who drains a bookie",
        'nodes = Create(path, token.encode()), Create(f"{path}/{token}", value), *audit',
        'nodes = Create(path, token.encode()), Create(f"{path}/{token}", value)',
        (_TRAIL + "test_each_act_is_recorded_with_who_did_it",),
    ),
    Mutant(
        "an act goes on though its record failed",
        "a log is deleted, and nobody knows by whom",
        "                raise _not_recorded(outcome)\n",
        "                return\n",
        (_TRAIL + "test_an_act_that_can_not_be_recorded_does_not_begin",),
    ),
    Mutant(
        "the audit trail is bounded over all kinds",
        "an application that deletes ledgers pushes out who decommissioned a bookie",
        "            by_act[_act_of(name)].append(name)\n",
        '            by_act[""].append(name)\n',
        (_TRAIL + "test_of_each_kind_the_newest_are_kept",),
    ),
    Mutant(
        "a decommissioned bookie is removed without a record",
        "nobody can find out who removed a bookie",
        "cookie, *audit, attempts_max=self._attempts_max",
        "cookie, attempts_max=self._attempts_max",
        (_TRAIL + "test_a_decommissioned_bookie_is_recorded_in_the_transaction_that_removes_it",),
    ),
    Mutant(
        "the actor shows its password",
        "who may read the trail gets a password",
        "secret.partition(b':')[0].decode(errors='replace')",
        "secret.decode(errors='replace')",
        (_TRAIL + "test_the_actor_names_credentials_and_no_secret",),
    ),
]
