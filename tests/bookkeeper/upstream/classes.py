"""Which of Apache BookKeeper's own test classes run on bookies of ours, and what each is known to do.

`python -m tests.bookkeeper.upstream.classes` prints the table of docs/bookkeeper.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class TestClass(NamedTuple):
    """How many of its tests pass, which fail and why, and which are ignored in BookKeeper's sources themselves.

    `racing`: tests whose own steps race, so that they pass or fail by the machine's speed.
    """

    __test__ = False

    passed: int
    failures: Mapping[str, str] = {}
    ignored: frozenset[str] = frozenset()
    racing: Mapping[str, str] = {}


JAVA_BOOKIE: Final = "puts a Java bookie that is slow or broken into its own process"
JAVA_STORAGE: Final = "starts collection in a Java bookie's storage"
JAVA_PLUGIN: Final = "runs a plugin in a Java bookie, or a bookie in its own process"
IN_THE_CLEAR: Final = "speaks in the clear to bookies with certificates, which Java's allow"
KEY_PASSWORD: Final = "gives a bookie's key a password"
OTHER_KEY: Final = "starts a bookie whose key is not its certificate's"
JAVA_STATE: Final = "makes a bookie read-only through a Java bookie's methods"
SLOW_OPENING: Final = "passes if a ledger is opened within 100 ms of its last append"
LATE_CLOSE: Final = "passes if a reader closes before it hears that its ledger is closed"

# The parameters of TestTLS: key stores and trust stores JKS, PEM, PEM with protocol v2, PKCS12, and three mixtures.
_TLS: Final = range(7)
_TLS_WITH_PEM: Final = (1, 2, 5)
_TLS_FAILURES: Final = {
    **dict.fromkeys(
        (
            *("testConnectToLocalTLSClusterTLSClient", "testRoleBasedAuthZInCertificate"),
            *("testBookieAuthPluginRequireClientTLSAuthentication", "testBookieAuthPluginDenyAccessToClientWithoutTLS"),
            "testBookieAuthPluginRequireClientTLSAuthenticationLocal",
            "testBookieAuthPluginDenyAccesstoClientWithoutTLSAuthentication",
            "testBookieAuthPluginDenyAccessToClientWithoutTLSAuthenticationLocal",
        ),
        JAVA_PLUGIN,
    ),
    **dict.fromkeys(
        ("testConnectToTLSClusterMixedClient", "testConnectToTLSClusterNonTLSClient", "testTLSChannelCounters"),
        IN_THE_CLEAR,
    ),
    "testStartTLSServerBadPassword": KEY_PASSWORD,
}
_TLS_OTHER_KEY: Final = ("testKeyMismatchFailure", "testRefreshDurationForBookieCerts")

CLASSES: Final = {
    "test.AsyncLedgerOpsTest": TestClass(1),
    "replication.AuditorLedgerCheckerTest": TestClass(
        14, dict.fromkeys(("testReadOnlyBookieExclusionFromURLedgersCheck", "testReadOnlyBookieShutdown"), JAVA_STATE)
    ),
    "replication.AuditorPlacementPolicyCheckTest": TestClass(8),
    "replication.AuditorRollingRestartTest": TestClass(1),
    "client.BookKeeperClientZKSessionExpiry": TestClass(1),
    "client.BookKeeperTest": TestClass(23),
    "replication.BookieAutoRecoveryTest": TestClass(7),
    "bookie.BookieDeferredSyncTest": TestClass(5),
    "test.BookieFailureTest": TestClass(8),
    "client.BookieNetworkAddressChangeTest": TestClass(
        2, ignored=frozenset({"testFollowBookieAddressChangeTrckingDisabled"})
    ),
    "test.BookieReadWriteTest": TestClass(16),
    "client.BookieRecoveryTest": TestClass(12),
    "client.BookieRecoveryUseIOThreadTest": TestClass(1),
    "bookie.BookieStickyReadsTest": TestClass(4),
    "verifier.BookkeeperVerifierTest": TestClass(1),
    "proto.ClientSocketDisconnectTest": TestClass(1),
    "test.CloseTest": TestClass(2),
    "client.ConcurrentV2RecoveryTest": TestClass(1),
    "test.ConditionalSetTest": TestClass(1),
    "client.api.ExplicitLACWithWriteHandleAPITest": TestClass(1),
    "client.ExplicitLacTest": TestClass(
        12, racing={f"testExplicitLACIsPersisted[{n}]": SLOW_OPENING for n in range(3)}
    ),
    "client.GenericEnsemblePlacementPolicyTest": TestClass(6),
    "test.LedgerCreateDeleteTest": TestClass(3),
    "client.api.LedgerMetadataTest": TestClass(2),
    "client.LedgerCloseTest": TestClass(
        2,
        dict.fromkeys(
            ("testLedgerCloseDuringUnrecoverableErrors", "testLedgerCheckerShouldnotSelectInvalidLastFragments"),
            JAVA_BOOKIE,
        ),
    ),
    "client.LedgerRecoveryTest": TestClass(
        7,
        {
            "testLedgerRecoveryWithSlowBookie": JAVA_BOOKIE,
            "testLedgerRecoveryWithRollingRestart": JAVA_BOOKIE,
            "testBookieFailureDuringRecovery": JAVA_BOOKIE,
            "testEnsembleChangeDuringRecovery": JAVA_BOOKIE,
        },
    ),
    "server.http.service.ListLedgerServiceTest": TestClass(4),
    "client.ListLedgersTest": TestClass(3),
    "test.MultipleThreadReadTest": TestClass(3),
    "client.SlowBookieTest": TestClass(8),
    "client.TestAddEntryQuorumTimeout": TestClass(3),
    "client.TestBatchedRead": TestClass(6),
    "client.TestBookieHealthCheck": TestClass(3),
    "client.TestBookieWatcher": TestClass(3),
    "client.TestDelayEnsembleChange": TestClass(6),
    "client.TestDisableEnsembleChange": TestClass(4),
    "client.TestFencing": TestClass(
        8, {"testWriteAfterDeleted": JAVA_STORAGE, "testConcurrentFenceAndDeleteLedger": JAVA_STORAGE}
    ),
    "client.TestGetBookieInfoTimeout": TestClass(2),
    "client.TestLedgerChecker": TestClass(12),
    "client.TestLedgerFragmentReplication": TestClass(5),
    "client.TestParallelRead": TestClass(6),
    "client.TestPendingReadLacOp": TestClass(2),
    "client.TestPiggybackLAC": TestClass(3),
    "client.TestReadEntryListener": TestClass(8),
    "client.TestReadLastConfirmedLongPoll": TestClass(
        3, racing={f"testReadLACLongPollWhenSomeBookiesDown[{n}]": LATE_CLOSE for n in range(3)}
    ),
    "client.TestReadLastEntry": TestClass(4),
    "client.TestReadTimeout": TestClass(1),
    "replication.TestReplicationWorker": TestClass(16),
    "client.TestSequenceRead": TestClass(1),
    "client.TestSpeculativeBatchRead": TestClass(6),
    "client.TestSpeculativeRead": TestClass(6),
    "tls.TestTLS": TestClass(
        7 * 12 + 3,
        {f"{test}[{n}]": reason for test, reason in _TLS_FAILURES.items() for n in _TLS}
        | {f"{test}[{n}]": OTHER_KEY for test in _TLS_OTHER_KEY for n in _TLS_WITH_PEM},
        frozenset(
            f"{test}[{n}]"
            for test in (*_TLS_OTHER_KEY, "testRefreshDurationForBookkeeperClientCerts")
            for n in _TLS
            if n not in _TLS_WITH_PEM
        ),
    ),
    "client.TestTryReadLastConfirmed": TestClass(3),
    "client.TestWatchEnsembleChange": TestClass(8),
}


def _named(found: Mapping[str, str], why: str) -> Iterable[str]:
    """The tests with this reason, each once for all of its parameters."""
    return dict.fromkeys(test.partition("[")[0] for test, reason in found.items() if reason == why)


def table() -> Iterator[str]:
    """The lines of the table, the sums last."""
    yield "| class | passed | failed | |"
    yield "| --- | ---: | ---: | --- |"
    for name, known in sorted(CLASSES.items(), key=lambda item: item[0].rpartition(".")[2]):
        found = {**known.failures, **known.racing}
        reasons = dict.fromkeys(found.values())
        notes = [f"{', '.join(f'`{test}`' for test in _named(found, why))}: {why}" for why in reasons]
        if known.ignored:
            notes.append(f"{len(known.ignored)} that BookKeeper ignores")
        yield f"| `{name}` | {known.passed} | {len(known.failures)} | {'; '.join(notes)} |"
    passed = sum(known.passed for known in CLASSES.values())
    failed = sum(len(known.failures) for known in CLASSES.values())
    yield f"| **{len(CLASSES)} classes** | **{passed}** | **{failed}** | |"


if __name__ == "__main__":
    print(*table(), sep="\n")
