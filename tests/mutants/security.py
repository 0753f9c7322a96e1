"""Defects in what keeps strangers out, or costs them too little."""

from __future__ import annotations

from tests.mutants import Mutant

_RIGHTS = "tests/unit/bookie/test_rights.py"
_TLS = "tests/unit/bookie/test_tls.py"
_ACCESS = "tests/unit/protocol/test_access.py"

MUTANTS: list[Mutant] = [
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
        (f"{_RIGHTS}::test_a_name_that_loses_its_right_while_it_writes",),
    ),
    Mutant(
        "a star in a rule reaches over dots",
        "whoever gets a certificate for a host of a subdomain has the rights of those above",
        '    return re.compile("[^./:]*".join(map(re.escape, rule.split("*"))), flags)',
        '    return re.compile(".*".join(map(re.escape, rule.split("*"))), flags)',
        (f"{_ACCESS}::test_a_rule_means_no_more_than_it_says",),
    ),
    Mutant(
        "handshakes are not bounded",
        "strangers who say nothing take all files of the bookie",
        "            self._drop(oldest)",
        "            self._going_on.pop(oldest)",
        (f"{_TLS}::test_strangers_cost_no_connection_and_no_memory_of_the_budget",),
    ),
    Mutant(
        "a failed handshake says nothing",
        "a client whose certificate has expired learns that the connection was closed, and no more",
        "        words = last_words(error)",
        '        words = b""',
        (f"{_TLS}::test_a_client_whose_certificate_is_not_good_is_told_so",),
    ),
]
