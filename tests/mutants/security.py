"""Defects in what keeps strangers out, or costs them too little."""

from __future__ import annotations

from tests.mutants import Mutant

_RIGHTS = "tests/unit/bookie/connection/test_rights.py"
_TLS = "tests/unit/bookie/connection/test_tls.py"
_DISPUTES = "tests/unit/bookie/connection/test_key_disputes.py"
_MESSAGES = "tests/unit/protocol/wire/test_messages.py"
_CLOSED = "tests/unit/bookie/connection/test_closed_connections.py"
_ACCESS = "tests/unit/protocol/test_access.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "a bookie that allows a client nothing fails its creations",
        "one file of rights that differs from the others ends writers that need another bookie",
        "if isinstance(result, BookieUnavailableError | MetadataUnavailableError | UnauthorizedError):",
        "if isinstance(result, BookieUnavailableError | MetadataUnavailableError):",
        (
            "tests/unit/client/bookies/test_choosing_bookies.py::"
            "test_a_bookie_that_allows_the_client_nothing_is_passed_over",
        ),
    ),
    Mutant(
        "ZooKeeper lists what a session has shown",
        "a certificate opens what was made with a password",
        "    if len(entries) < len(auth) or not entries:",
        "    if auth:",
        (
            "tests/unit/metadata/store/zookeeper/test_owners.py::test_a_password_is_listed_as_zookeeper_does_it",
            "tests/cluster/test_zookeeper_security.py::"
            "test_a_certificate_alone_opens_nothing_that_was_made_with_a_password",
        ),
    ),
    Mutant(
        "who wants TLS is waited for like who is still to be started",
        "a client at the wrong port is told nothing for ten seconds",
        "        if wants_tls:\n            raise _NoServer(",
        "        if wants_tls and self._refused_timeout_s == 0:\n            raise _NoServer(",
        ("tests/cluster/test_zookeeper_security.py::test_who_is_not_trusted_by_zookeeper_is_told_why",),
    ),
    Mutant(
        "a ledger that may not be read makes a look unsure",
        "one such ledger ends all collection",
        "except UnauthorizedError as error:  # of this one",
        "except LookupError as error:  # of this one",
        ("tests/unit/bookie/test_collector.py::test_a_ledger_that_may_not_be_read_keeps_no_others",),
    ),
    Mutant(
        "clients need no certificate",
        "whoever reaches the port reads all ledgers",
        "context.verify_mode = ssl.CERT_REQUIRED",
        "context.verify_mode = ssl.CERT_OPTIONAL",
        (f"{_TLS}::test_a_client_whose_certificate_is_not_good_is_told_so",),
    ),
    Mutant(
        "who may only read can fence",
        "a reader ends the writers of all ledgers",
        "if read_lac.flags & Flags.RECOVERY and Op.ADD in self._connection.forbidden:",
        "if not read_lac.ledger_id and Op.ADD in self._connection.forbidden and read_lac.flags < 0:",
        (f"{_RIGHTS}::test_a_reader_may_read_and_no_more",),
    ),
    Mutant(
        "rights that change are for new connections only",
        "a name that was taken out of the file writes on for as long as it stays connected",
        "            connection.know_rights()",
        "            connection.no_right('')",
        (f"{_RIGHTS}::test_a_writer_that_may_only_read_now",),
    ),
    Mutant(
        "a star in a rule reaches over dots",
        "whoever gets a certificate for a host of a subdomain has the rights of those above",
        'return re.compile(f"{first}{atoms}[^./:]*{last}"',
        'return re.compile(f"{first}{atoms}.*{last}"',
        (f"{_ACCESS}::test_a_rule_means_no_more_than_it_says",),
    ),
    Mutant(
        "handshakes are not bounded",
        "strangers who say nothing take all files of the bookie",
        "            self._drop(oldest)",
        "            self._under_way.pop(oldest)",
        (f"{_TLS}::test_strangers_cost_no_connection_and_no_memory_of_the_budget",),
    ),
    Mutant(
        "a failed handshake says nothing",
        "a client whose certificate has expired learns that the connection was closed, and no more",
        "        words = last_words(error)",
        '        words = b""',
        (f"{_TLS}::test_a_client_whose_certificate_is_not_good_is_told_so",),
    ),
    Mutant(
        "who may only read can fence by reading an entry",
        "a reader ends the writers of all ledgers",
        "            if read.flags & Flags.RECOVERY and Op.ADD in self._connection.forbidden:",
        "            if read.flags < 0 and Op.ADD in self._connection.forbidden:",
        (f"{_RIGHTS}::test_no_request_of_a_reader_changes_anything_whatever_it_is_called",),
    ),
    Mutant(
        "the text of what is nested too deeply depends on the stack",
        "a bookie logs the same mistake again at each look",
        'raise ValueError("it is nested too deeply") from None',
        "raise",
        (
            "tests/unit/bookie/connection/test_rights.py::test_an_error_of_the_file_has_the_same_text_wherever_it_is_read",
        ),
    ),
    Mutant(
        "a file of rights that makes no sense gives all rights",
        "a slip in an editor lets everybody write",
        "        try:\n            self._rules = AccessRules(read_access_file(path))",
        "        self._rules = None\n        try:\n            self._rules = AccessRules(read_access_file(path))",
        (f"{_RIGHTS}::test_a_file_that_makes_no_sense_takes_no_right_and_gives_none",),
    ),
    Mutant(
        "those who look at a page are not bounded",
        "whoever reaches the metrics page takes all files of the bookie",
        "            self._drop(next(iter(self._here)))",
        "            self._here.pop(next(iter(self._here)))",
        ("tests/unit/runtime/test_metrics_page.py::test_those_who_only_hold_connections_keep_nobody_out",),
    ),
    Mutant(
        "a common name counts as a host's",
        "a client's certificate does as that of a bookie whose host is called like the client",
        "context.hostname_checks_common_name = self._side is Side.ZOOKEEPER",
        "context.hostname_checks_common_name = self._side is not None",
        (f"{_TLS}::test_a_common_name_is_not_the_name_of_a_host",),
    ),
    Mutant(
        "the first key that is presented for a ledger stays",
        "a stranger keeps the writers and recoveries of coming ledgers out for good",
        "return Status.OK if proven == key else Status.UNAUTHORIZED",
        "return Status.OK if not proven else Status.UNAUTHORIZED",
        (f"{_DISPUTES}::test_a_stranger_who_is_first_keeps_no_writer_out",),
    ),
    Mutant(
        "a wrong key gives way, and its fence stays",
        "a stranger ends the writers of coming ledgers",
        "fenced = info.fenced and (deleted or info.limbo)",
        "fenced = info.fenced",
        (f"{_DISPUTES}::test_a_stranger_who_is_first_keeps_no_writer_out",),
    ),
    Mutant(
        "a fence goes with a wrong key wherever it is",
        "a writer that was cut off goes on where its ledger was collected",
        "fenced = info.fenced and (deleted or info.limbo)",
        "fenced = False",
        (f"{_DISPUTES}::test_a_ledger_that_was_deleted_here_stays_fenced",),
    ),
    Mutant(
        "a fence that is under way outlives its key",
        "a recovery waits for a stranger's fence, and has set none",
        "return self._fencing.get(ledger_id) or self._publishing.get(ledger_id)",
        "return self._publishing.get(ledger_id)",
        (
            "tests/unit/storage/ledgers/test_replaced_keys.py::"
            "test_a_fence_that_is_still_being_written_concerns_the_old_key_alone",
        ),
    ),
    Mutant(
        "an explicit last add confirmed that is under way outlives its key",
        "a stranger's last add confirmed is read as the ledger's after a power cut",
        "return self._fencing.get(ledger_id) or self._publishing.get(ledger_id)",
        "return self._fencing.get(ledger_id)",
        (
            "tests/unit/storage/ledgers/test_replaced_keys.py::"
            "test_an_explicit_lac_that_is_still_being_written_stays_with_the_old_key",
        ),
    ),
    Mutant(
        "a fence that went with its key is replayed over entries under the right one",
        "a writer is fenced that nobody has fenced, after a power cut in a checkpoint",
        "        if ledger_id in self._ahead:\n",
        "        if False:\n",
        (
            "tests/unit/storage/ledgers/test_replaced_keys.py::"
            "test_a_crash_at_every_operation_of_the_checkpoint_that_writes_entries_under_the_right_key",
        ),
    ),
    Mutant(
        "a replaced key is forgotten at a crash",
        "the stranger is back after a power cut",
        "            info = self._with_key(info, body)",
        "            self._goes_on(ledger_id)",
        (
            "tests/unit/storage/ledgers/test_replaced_keys.py::"
            "test_a_power_cut_brings_back_no_wrong_key_and_none_of_its_fences",
        ),
    ),
    Mutant(
        "entries under a wrong key go over to the right one",
        "a stranger's entries are read as the ledger's",
        "        if shard.highest(info) >= 0:\n            return Status.UNKNOWN",
        "        if shard.highest(info) < -1:\n            return Status.UNKNOWN",
        (f"{_DISPUTES}::test_entries_under_a_wrong_key_stay_and_an_operator_hears_of_it",),
    ),
    Mutant(
        "frames behind one whose key is looked up wait for it",
        "a stranger holds up all ledgers of a client",
        "        disputed = await self._decide(frame, columns, arrived, {}, {})",
        "        disputed = await self._decide(frame, columns, arrived, {}, {})\n"
        "        if disputed:\n"
        "            size = 0\n"
        "            await self._decide_by_metadata(frame, columns, arrived, disputed, size)\n"
        "            return",
        (f"{_DISPUTES}::test_a_lookup_holds_up_no_other_ledger_of_the_connection",),
    ),
    Mutant(
        "what a client was authorised to do stays so when its key was found wrong",
        "a stranger fences a ledger whose writer has proved its key",
        "elif claim.authorised and ledger_id not in self._keys.authorised:",
        "elif claim.authorised and claim.key is not None:",
        (f"{_DISPUTES}::test_a_request_that_waits_does_not_fence_with_a_key_that_was_found_wrong",),
    ),
    Mutant(
        "a drawn id counts as one whose ledger was deleted",
        "a collector fences a ledger whose writer is about to begin",
        "return ProbeState.NOT_MADE if held else ProbeState.NO_LEDGER",
        "return ProbeState.NO_LEDGER",
        (f"{_DISPUTES}::test_a_strangers_key_is_not_collected_between_the_drawing_of_its_id_and_the_creation",),
    ),
    Mutant(
        "lists are made as long as their headers say",
        "a stranger stops a bookie for a tenth of a second with 4 KiB",
        "    return claimed > len(head)\n",
        "    return claimed < 0\n",
        (f"{_MESSAGES}::test_arrays_inside_arrays_cost_no_more_than_the_bytes_that_came",),
    ),
    Mutant(
        "only heads that are full of headers are looked at closely",
        "a frame of 64 KiB costs a bookie hundreds of MiB",
        "            if number <= len(head):  # msgpack refuses the others before it makes a list\n",
        "            if number < 0:\n",
        (f"{_MESSAGES}::test_arrays_inside_arrays_cost_no_more_than_the_bytes_that_came",),
    ),
    Mutant(
        "messages without arrays may have long ones",
        "a stranger stops a bookie for a tenth of a second with 4 KiB, before its rights are looked at",
        "value = _unpack(head, None if list in kinds or (int, list) in kinds else len(kinds))",
        "value = msgpack.unpackb(head, max_map_len=16)",
        (f"{_MESSAGES}::test_arrays_inside_arrays_cost_no_more_than_the_bytes_that_came",),
    ),
    Mutant(
        "appends hold on to a connection that is lost",
        "each client that was there leaves its keys behind until the cycle collector runs",
        "            self._service.receive_budget.change(-self.backlog.popleft()[0])\n"
        "        self._connection = LostConnection(self._connection.address)",
        "            self._service.receive_budget.change(-self.backlog.popleft()[0])",
        (f"{_CLOSED}::test_a_closed_connection_is_freed_without_the_cycle_collector[greeted]",),
    ),
    Mutant(
        "a receive buffer holds on to a connection that is lost",
        "each client that was there leaves its keys behind until the cycle collector runs",
        "        self._on_room = lambda: None  # breaks the reference to the owner, which has this buffer",
        "        self._wanted = 0",
        (f"{_CLOSED}::test_a_closed_connection_is_freed_without_the_cycle_collector[said nothing]",),
    ),
    Mutant(
        "presented keys are not bounded together",
        "a stranger takes a gigabyte with a hundred connections",
        "        if self._part.used > self._bytes_max:\n            self._shrink(",
        "        if self._part.used < 0:\n            self._shrink(",
        (f"{_CLOSED}::test_keys_count_and_those_with_the_most_forget_first",),
    ),
    Mutant(
        "web pages may give commands",
        "any site that an administrator looks at makes bookies work",
        'if "Origin" in headers or headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):',
        'if "Origin" in headers and request.method == "GET":',
        ("tests/unit/bookie/admin/test_admin_pages.py::test_other_sites_rebound_names_and_proxies_are_refused",),
    ),
    Mutant(
        "a bookie answers to any name",
        "a site that makes its name point to a bookie reads its pages",
        'if not is_address(host) and host not in ("localhost",',
        'if not host and host not in ("localhost",',
        ("tests/unit/bookie/admin/test_admin_pages.py::test_other_sites_rebound_names_and_proxies_are_refused",),
    ),
    Mutant(
        "a bookie's files are for all to read",
        "any account of the machine reads entries and keys",
        "os.open(path, flags | os.O_CLOEXEC, 0o600)",
        "os.open(path, flags | os.O_CLOEXEC, 0o644)",
        ("tests/unit/bookie/test_file_modes.py::test_a_new_bookie_shows_others_nothing",),
    ),
    Mutant(
        "what an older version made stays open",
        "any account of the machine reads entries and keys",
        "            if False in [self._files.restrict(path) for path in paths]:",
        "            if False in [self._files.exists(path) for path in paths]:",
        ("tests/unit/bookie/test_file_modes.py::test_a_bookies_own_directories_are_closed_at_its_start_and_no_others",),
    ),
    Mutant(
        "what an append waits for is decided for some of its ledgers only",
        "a bookie refuses the owner of a ledger because a stranger came first, and is left by its writer",
        "undecided = {i: claim for i, claim in made.items() if i not in decided}",
        "undecided = {} if decided else made",
        (f"{_DISPUTES}::test_an_append_that_waits_is_not_refused_for_another_ledger_that_a_stranger_opens_meanwhile",),
    ),
    Mutant(
        "a bookie hangs up on refused clients only when their time is up",
        "a client whose certificate can't be read waits for its time-out, and doesn't know that it is refused",
        "        sock.send(words)\n        sock.shutdown(socket.SHUT_WR)\n",
        "        sock.send(words)\n",
        (f"{_TLS}::test_a_client_that_is_refused_without_an_alert_does_not_wait_for_its_time_out",),
    ),
]
