"""Defects of who a bookie is: ids that are given up, directories that are emptied, bookies that are back."""

from __future__ import annotations

from tests.mutants import Mutant

_FREED = "tests/unit/bookie/test_freed_ids.py"
_IDENTITY = "tests/unit/bookie/test_identity_commands.py"
_TAKEN = "tests/unit/bookie/test_taken_ids.py"
_DRAINING = "tests/unit/admin/test_drain_work.py"
_TLS = "tests/unit/bookie/connection/test_tls.py"
_LIMBO = "tests/unit/replication/test_limbo_fences.py"
_REBUILD = "tests/unit/storage/tools/rebuild/test_rebuild.py"
_REFUSED = "tests/unit/bookie/test_refused_metadata.py"
_LOSSES = "tests/unit/storage/test_losses.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "a bookie whose registration was overwritten blames another process",
        "operators look for a process that isn't there, at None",
        '                if "address" not in owner:',
        "                if False:",
        (f"{_TAKEN}::test_a_bookie_ends_for_what_somebody_has_written_into_its_registration_and_says_so",),
    ),
    Mutant(
        "an id is freed beside copies that are under way",
        "a swap names a bookie that has been emptied",
        "            if settles:\n                await scan.wait_for_movers()",
        "            if settles:\n                pass",
        (f"{_FREED}::test_a_copy_on_its_way_to_the_bookie_keeps_it_from_being_freed",),
    ),
    Mutant(
        "ledgers in recovery need nobody",
        "a closing write names a bookie that has been emptied",
        "need = await self._settled(ledger_id) if settles else BookieReference.UNSETTLED",
        "need = BookieReference.NONE if settles else BookieReference.UNSETTLED",
        (f"{_FREED}::test_a_recovery_that_has_written_to_the_bookie_keeps_it_from_being_freed",),
    ),
    Mutant(
        "a new bookie under a freed id starts without doubt",
        "it denies what the former one acknowledged",
        "return KnownBookie(cluster, None, retired.limbo_to)",
        "return KnownBookie(cluster, None, limbo_to=-1)",
        (f"{_FREED}::test_a_new_bookie_under_a_freed_id_denies_no_older_ledger",),
    ),
    Mutant(
        "copies deleted though ledgers name the bookie",
        "copies are deleted that a ledger needs",
        "        if not ledgers.clear:",
        "        if False:",
        (f"{_IDENTITY}::test_a_bookie_that_ledgers_name_is_formatted_by_force_alone_and_its_id_stays_taken",),
    ),
    Mutant(
        "ledgers that can't be read don't count",
        "copies are deleted that a ledger needs",
        "return not (self.naming or self.unreadable or self.in_recovery)",
        "return not (self.naming or self.in_recovery)",
        (f"{_IDENTITY}::test_a_ledger_that_cannot_be_read_may_name_the_bookie",),
    ),
    Mutant(
        "force frees the id",
        "a new bookie denies what a ledger in recovery is about to name it for",
        "known is not None and ledgers.clear and not force,",
        "known is not None and ledgers.clear,",
        (f"{_IDENTITY}::test_force_leaves_the_id_taken",),
    ),
    Mutant(
        "a decommissioned bookie starts",
        "an erased directory joins the cluster again, unnoticed",
        "        retired.check_usable()\n        return KnownBookie(",
        "        return KnownBookie(",
        (f"{_FREED}::test_a_decommissioned_bookie_comes_back_only_when_that_is_said",),
    ),
    Mutant(
        "a start makes a new cookie for one that was deleted meanwhile",
        "a bookie that was decommissioned is a member again, unnoticed",
        "if cookie is None and self._known is not None:\n    raise self._deleted()",
        "if cookie is None:\n    return None",
        (f"{_FREED}::test_a_bookie_that_is_decommissioned_while_it_starts_gets_no_new_cookie",),
    ),
    Mutant(
        "a start replaces a cookie that another process has written meanwhile",
        "the other bookie's directories are shut out, with all that they hold",
        "if cookie != self._known:\n    raise IdentityError(",
        "if False:\n    raise IdentityError(",
        (f"{_TAKEN}::test_a_new_bookie_takes_no_id_that_another_one_took_while_it_started",),
    ),
    Mutant(
        "any directories come back under an id that was given up",
        "they deny what another storage has acknowledged since",
        "if not retired.decommissioned or retired.instance != instance:",
        "if not retired.decommissioned:",
        (f"{_FREED}::test_directories_of_before_another_storage_had_the_id_are_refused",),
    ),
    Mutant(
        "directories are wiped whoever they belong to",
        "another bookie's journal is gone",
        "if not is_owned(files, directory, owner) and directory not in allowed:",
        "if False:",
        (f"{_IDENTITY}::test_nothing_is_removed_from_directories_of_another_bookie",),
    ),
    Mutant(
        "what was given up long ago is emptied again",
        "an update fails for good on a directory that another bookie has by now",
        "            elif self._is_left(path):",
        "            else:",
        (f"{_IDENTITY}::test_a_journal_directory_that_is_another_bookies_by_now_is_left_alone",),
    ),
    Mutant(
        "a rebuild takes directories of other bookies",
        "a bookie that has stored nothing yet loses its directory, with its cookie",
        "                    self.check_owner(cookie, path)",
        "                    pass",
        (f"{_IDENTITY}::test_a_rebuild_does_not_take_the_directory_of_another_bookie",),
    ),
    Mutant(
        "any cookie is one's own",
        "a bookie that was cut off takes the place of the new one with its id, and denies what that has",
        "if isinstance(found, Answer) and found.value is not None and found.value[0] == self._cookie:",
        "if isinstance(found, Answer) and found.value is not None:",
        (f"{_FREED}::test_one_that_was_cut_off_when_it_was_decommissioned_never_registers_again",),
    ),
    Mutant(
        "a cookie of another version is another bookie's",
        "bookies end when the metadata store goes back to an older copy, and say that others have their entries",
        "return await create_certainly(self._store, node, Check(cookie, found.value[1]), attempts_max=1)",
        "return await create_certainly(self._store, node, Check(cookie, 0), attempts_max=1)",
        (f"{_FREED}::test_one_whose_cookie_has_another_version_registers_again",),
    ),
    Mutant(
        "a bookie that isn't registered is lost",
        "clients go on storing on a bookie that is no part of the cluster any more",
        "if self._lost and refusal is None and await answers(self._context, self._bookie_id):",
        "if False:",
        (f"{_FREED}::test_a_bookie_that_answers_is_not_lost",),
    ),
    Mutant(
        "a bookie that refuses an administrator's client gives no answer",
        "`bkpy bookie decommission --lost` without a certificate removes a bookie that runs and serves others",
        "except (TlsError, UnauthorizedError):\n    raise\nexcept BookKeeperError:\n    return False",
        "except BookKeeperError:\n    return False",
        (f"{_TLS}::test_a_bookie_that_refuses_an_administrators_client_is_not_lost",),
    ),
    Mutant(
        "what runs beside a decommissioned bookie goes on",
        "the cluster's auditor is on a machine that is about to be switched off",
        "            await self._stop_replication()",
        "            pass",
        (f"{_FREED}::test_the_auditor_of_a_decommissioned_bookie_leaves_the_election",),
    ),
    Mutant(
        "a scan counts in whatever session it ends",
        "a bookie is decommissioned by what a server knew that lags behind",
        "        if self._store.session_id != before:  # the server",
        "        if False:  # the server",
        (f"{_DRAINING}::test_a_scan_that_outlives_its_session_counts_for_nothing",),
    ),
    Mutant(
        "a decommissioning takes its draining back only once it knows that this has begun",
        "a bookie that was said to be lost refuses entries when it comes back, after a Ctrl-C",
        "            self._own = Drain(self._bookie_id, self._drains.new_token())\n"
        "            outcome = await self._drains.begin(self._bookie_id, token=self._own.token)\n",
        "            own = Drain(self._bookie_id, self._drains.new_token())\n"
        "            outcome = await self._drains.begin(self._bookie_id, token=own.token)\n"
        "            self._own = own\n",
        (f"{_DRAINING}::test_a_decommissioning_that_is_cancelled_at_any_step_leaves_no_draining",),
    ),
    Mutant(
        "a decommissioning that is cancelled as it takes its draining back leaves that",
        "a bookie that was said to be lost refuses entries when it comes back, after a Ctrl-C",
        "        finally:\n            await asyncio.wait([cancelling])\n",
        "        finally:\n            cancelling.cancel()\n",
        (f"{_DRAINING}::test_a_decommissioning_that_is_cancelled_at_any_step_leaves_no_draining",),
    ),
    Mutant(
        "a draining ends though ledgers have metadata that can't be read",
        "the operator is told that the bookie can be decommissioned, which is refused",
        "                self._named.add(ledger_id)\n                progress.ledgers += 1\n"
        "                progress.blocked[ledger_id] = UNREADABLE\n",
        "                progress.blocked[ledger_id] = UNREADABLE\n",
        (f"{_DRAINING}::test_a_ledger_whose_metadata_can_not_be_read_counts_as_naming_the_bookie",),
    ),
    Mutant(
        "nobody looks once more before a bookie goes",
        "a bookie that came back is decommissioned while it takes entries",
        "        await self._object()\n        cookie = await read_cookie(self._store, self._root, self._bookie_id)",
        "        cookie = await read_cookie(self._store, self._root, self._bookie_id)",
        (f"{_DRAINING}::test_a_lost_bookie_that_is_back_before_it_goes_stays",),
    ),
    Mutant(
        "a bookie says that it refuses before it does",
        "a decommissioned bookie is named for an entry that it took meanwhile",
        "        await self._follow_tenure(now)\n        if drain is not None and drain.unreadable:",
        "        if drain is not None and not drain.refuses:\n            await self._confirm(drain)\n"
        "        await self._follow_tenure(now)\n        if drain is not None and drain.unreadable:",
        (f"{_DRAINING}::test_a_bookie_says_that_it_refuses_only_when_it_does",),
    ),
    Mutant(
        "limbo is a fence to writers",
        "a healthy writer ends, though nobody has asked for a fence",
        "        return info is not None and info.limbo and info.fence_of_limbo",
        "        return False",
        (f"{_LIMBO}::test_the_writer_of_an_older_ledger_goes_on_without_it",),
    ),
    Mutant(
        "limbo is as good as a fence that is asked for",
        "a fence is answered that no journal has: a zombie writer is told to go elsewhere, and goes on",
        "            if info is not None and info.fenced and not info.fence_of_limbo:\n                return True",
        "            if info is not None and info.fenced:\n                return True",
        (f"{_LOSSES}::test_what_a_fence_comes_from_survives_a_power_cut",),
    ),
    Mutant(
        "a fence of before a loss is one of limbo",
        "the writer that a recovery has ended is told to go elsewhere",
        "of_limbo = row.fence_of_limbo or not row.fenced",
        "of_limbo = True",
        (f"{_LOSSES}::test_a_fence_of_before_the_loss_is_no_fence_of_limbo",),
    ),
    Mutant(
        "a new index is another storage in any case",
        "all copies of a bookie that lost nothing are moved",
        "            settled = {path: await self._keep_uuid(path, found) for path, found in settled.items()}",
        "            pass",
        (f"{_REBUILD}::test_an_index_keeps_its_uuid_only_if_nothing_is_missing",),
    ),
    Mutant(
        "a new index is the same storage though something is missing",
        "what a bookie lost is copied to nobody",
        "        if trusted and not missing.limbo and not any(found.limbo for found in settled.values()):",
        "        if trusted:",
        (f"{_REBUILD}::test_an_index_keeps_its_uuid_only_if_nothing_is_missing",),
    ),
    Mutant(
        "whoever is registered is nobody",
        "a bookie is rebuilt beside the process that has its id",
        "            if await self._store.exists(path):\n                return True",
        "            pass",
        (f"{_TAKEN}::test_none_is_rebuilt_beside_a_process_whose_registration_is_unreadable",),
    ),
    Mutant(
        "a bookie that may not register again for a while ends",
        "one wrong access control list ends all bookies",
        "            except UnauthorizedError as error:  # rights may come back, and clients read here meanwhile\n"
        "                self._report(error)\n",
        "",
        (f"{_REFUSED}::test_a_bookie_whose_node_is_gone_goes_on_until_it_may_register_again",),
    ),
    Mutant(
        "a bookie that may not read its cookie for a while ends",
        "one wrong access control list ends all bookies",
        "            except UnauthorizedError as error:  # of the cookie: rights may come back, and entries are here "
        "meanwhile",
        "            except TimeoutError as error:",
        (f"{_REFUSED}::test_a_bookie_that_may_not_read_its_cookie_follows_its_drain_and_the_end_of_that",),
    ),
    Mutant(
        "a bookie that may not read its registration fails to stop",
        "an error at the end of a bookie that has done all else",
        "except (MetadataUnavailableError, UnauthorizedError, TimeoutError) as error:\n            log.warning(\n"
        '                "failed to deregister',
        "except (MetadataUnavailableError, TimeoutError) as error:\n            log.warning(\n"
        '                "failed to deregister',
        (f"{_REFUSED}::test_a_bookie_that_may_not_read_its_registration_stops",),
    ),
]
