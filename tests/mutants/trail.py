"""The audit trail: an act without its record, a record of somebody else, a trail without a bound."""

from __future__ import annotations

from typing import Final

from tests.mutants import Mutant

_TRAIL: Final = "tests/unit/admin/test_audit_trail.py::"

MUTANTS = [
    Mutant(
        "the oldest acts are those with the lowest times in their names",
        "a machine whose clock was ahead keeps later acts out of the trail",
        "        return [name for _, name in sorted(zip(written, names, strict=True))]\n",
        "        return sorted(names)\n",
        (_TRAIL + "test_acts_of_a_machine_whose_clock_was_ahead_displace_no_later_ones",),
    ),
    Mutant(
        "a deletion that can't be recorded says that there is no such ledger",
        "an operator takes the ledger for deleted",
        '        case Missing() if outcome.index:\n            raise MetadataConflictError(f"nothing was deleted',
        '        case Missing() if outcome.index < 0:\n            raise MetadataConflictError(f"nothing was deleted',
        (_TRAIL + "test_a_ledger_is_not_said_to_be_missing_because_its_act_cannot_be_recorded",),
    ),
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
    Mutant(
        "an act is recorded as done that failed",
        "the trail claims what did not happen",
        "        yield\n        for node in nodes:  # if this fails, the act is done all the same\n",
        "        try:\n            yield\n        finally:\n          for node in nodes:\n",
        (_TRAIL + "test_an_act_in_trouble_at_any_step_has_one_record_if_it_was_done[re_replication-cancelled late]",),
    ),
    Mutant(
        "an act that is done stays one that was begun",
        "nobody can tell acts that were done from those that failed",
        "_encode(replace(begun, done=True)), 0, attempts_max=1",
        "_encode(begun), 0, attempts_max=1",
        (_TRAIL + "test_each_act_is_recorded_with_who_did_it",),
    ),
    Mutant(
        "the end of a draining is not recorded",
        "nobody can find out who kept the bookie",
        "unique, Delete(path), *audit, attempts_max",
        "unique, Delete(path), attempts_max",
        (_TRAIL + "test_an_act_in_trouble_at_any_step_has_one_record_if_it_was_done[cancel_drain-reply lost]",),
    ),
    Mutant(
        "the end of a draining of an older version is not recorded",
        "nobody can find out who kept the bookie",
        "return await delete_together(self._store, Delete(path), *audit, attempts_max=1)",
        "return await delete_together(self._store, Delete(path), attempts_max=1)",
        (_TRAIL + "test_the_end_of_a_draining_of_an_older_version_is_recorded_with_it",),
    ),
    Mutant(
        "a ledger is deleted beside its record",
        "the ledger is gone, and nobody knows by whom",
        "if belongs is None:\n            return await self._catalog.delete(ledger_id, *audit)",
        "if belongs is None:\n            return await self._catalog.delete(ledger_id)",
        (_TRAIL + "test_each_act_is_recorded_with_who_did_it",),
    ),
    Mutant(
        "a restore is not recorded",
        "nobody can find out who made the cluster",
        "        *audit,\n    ]\n",
        "    ]\n",
        ("tests/unit/admin/test_restore.py::test_a_restore_and_its_confirmation_are_recorded_with_who_did_them",),
    ),
    Mutant(
        "later permission to collect is not recorded",
        "nobody can find out who let ledgers be deleted",
        "if confirmed and (found.restore.collects_later or not collect_later):",
        "if confirmed and found.restore.collects_later:",
        ("tests/unit/admin/test_restore.py::test_a_restore_and_its_confirmation_are_recorded_with_who_did_them",),
    ),
    Mutant(
        "rewritten cookies are not recorded",
        "nobody can find out who changed a bookie's identity",
        "return recorded(self._trail, act, self._settings.bookie_id, details)",
        "return contextlib.nullcontext()",
        ("tests/unit/bookie/test_identity_commands.py::test_a_rewritten_cookie_and_a_formatting_are_recorded_once",),
    ),
    Mutant(
        "the log says of an act that begins that it is done",
        "whoever reads the log takes a refused act for one that was done",
        'log.info("audit: %s", replace(record, done=False))',
        'log.info("audit: %s", record)',
        (_TRAIL + "test_each_act_is_recorded_with_who_did_it",),
    ),
]
