import java.util.List;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * What failures cost; more commands of PeerBench. Bookies are killed, stopped and woken by the harness:
 *
 * <pre>
 * load ENSEMBLE ACKQUORUM SIZE OUTSTANDING   begins to write, with a new client; the answer has the ledger's bookies
 * mark                                       the longest time without an acknowledgement since the last mark
 * finish                                     ends the load, closes and deletes the ledger; the answer has the longest
 *                                            time since the last mark
 * prepare                                    a ledger of one acknowledged entry, by a new client
 * submit ENTRIES SIZE                        hands that many entries over, and returns
 * abandon                                    waits until all are acknowledged; leaves the ledger open
 * recover MODE                               recovers it with a new client; MODE is `defaults` or `tuned`
 * </pre>
 */
final class PeerFailures {
    private static final long STALL_S = 60;
    private static final int RECOVERY_READS = 256; // more are no faster, fewer are slower
    private static final byte[] PASSWORD = new byte[0];

    private final String metadataUri;
    private BookKeeper bk;
    private LedgerHandle writer;
    private Semaphore pending;
    private int outstanding;
    private int entryBytes;
    private volatile boolean running;
    private volatile int failed = BKException.Code.OK;

    private long longestNanos;
    private long seenAt;
    private long entries;

    PeerFailures(String metadataUri) {
        this.metadataUri = metadataUri;
    }

    String command(String[] words) throws Exception {
        switch (words[0]) {
            case "load":
                return load(Integer.parseInt(words[1]), Integer.parseInt(words[2]), Integer.parseInt(words[3]),
                        Integer.parseInt(words[4]));
            case "mark":
                return String.format(Locale.ROOT, "{\"gap_ms\": %.3f}", mark() / 1e6);
            case "finish":
                return finish();
            case "prepare":
                return prepare();
            case "submit":
                return submit(Integer.parseInt(words[1]), Integer.parseInt(words[2]));
            case "abandon":
                return abandon();
            case "recover":
                return recover(words[1].equals("tuned"));
            default:
                throw new IllegalArgumentException("no such command: " + words[0]);
        }
    }

    // --- a bookie that is killed under load

    private String load(int ensemble, int ackQuorum, int size, int chains) throws Exception {
        begin(ensemble, ackQuorum);
        entryBytes = size;
        outstanding = chains;
        pending = new Semaphore(chains);
        running = true;
        mark();
        byte[] payload = new byte[size];
        for (int i = 0; i < chains; i++) {
            pending.acquire();
            addAgain(payload);
        }
        List<String> bookies = writer.getLedgerMetadata().getEnsembleAt(0).stream()
                .map(id -> "\"" + id + "\"").collect(Collectors.toList());
        return "{\"ensemble\": " + bookies + "}";
    }

    private void addAgain(byte[] payload) {
        writer.asyncAddEntry(payload, (rc, handle, entryId, context) -> {
            if (rc != BKException.Code.OK) {
                failed = rc;
            } else {
                acknowledged();
                if (running) {
                    addAgain(payload);
                    return;
                }
            }
            pending.release();
        }, null);
    }

    private synchronized void acknowledged() {
        entries++;
        look();
    }

    private synchronized long mark() {
        look();
        long longest = longestNanos;
        longestNanos = 0;
        return longest;
    }

    private void look() {
        long now = System.nanoTime();
        longestNanos = Math.max(longestNanos, now - seenAt);
        seenAt = now;
    }

    private String finish() throws Exception {
        running = false;
        await(outstanding);
        long gap = mark(); // until the last of them, however late
        writer.close();
        long last = writer.getLastAddConfirmed();
        if (last + 1 != entries) {
            throw new Exception(entries + " entries were acknowledged, the ledger has " + (last + 1));
        }
        int ensembles = writer.getLedgerMetadata().getAllEnsembles().size();
        bk.deleteLedger(writer.getId());
        bk.close();
        return String.format(Locale.ROOT, "{\"entries\": %d, \"ensembles\": %d, \"gap_ms\": %.3f}",
                entries, ensembles, gap / 1e6);
    }

    // --- a ledger whose writer is gone

    private String prepare() throws Exception {
        begin(3, 2);
        writer.addEntry(new byte[1]);
        return "{\"ledger\": " + writer.getId() + "}";
    }

    /** While the bookies are stopped: then no entry can say that one of the others was acknowledged. */
    private String submit(int count, int size) throws Exception {
        outstanding = count;
        entryBytes = size;
        pending = new Semaphore(0);
        byte[] payload = new byte[size];
        for (int i = 0; i < count; i++) {
            writer.asyncAddEntry(payload, (rc, handle, entryId, context) -> {
                if (rc != BKException.Code.OK) {
                    failed = rc;
                }
                pending.release();
            }, null);
        }
        return "{\"submitted\": " + count + "}";
    }

    private String abandon() throws Exception {
        await(outstanding);
        try (BookKeeper other = new BookKeeper(PeerBench.configuration(metadataUri));
                LedgerHandle reader = other.openLedgerNoRecovery(
                        writer.getId(), BookKeeper.DigestType.CRC32C, PASSWORD)) {
            long known = reader.readLastConfirmed();
            return "{\"unconfirmed\": " + (writer.getLastAddConfirmed() - known) + "}";
        }
    }

    private String recover(boolean tuned) throws Exception {
        ClientConfiguration conf = PeerBench.configuration(metadataUri);
        if (tuned) {
            conf.setEnableParallelRecoveryRead(true);
            conf.setRecoveryReadBatchSize(RECOVERY_READS);
            conf.setRecoveryBatchReadEnabled(true);
        }
        try (BookKeeper other = new BookKeeper(conf)) {
            long began = System.nanoTime();
            LedgerHandle reader = other.openLedger(writer.getId(), BookKeeper.DigestType.CRC32C, PASSWORD);
            double took = (System.nanoTime() - began) / 1e6;
            long expected = 1 + (long) outstanding * entryBytes;
            if (reader.getLastAddConfirmed() != outstanding || reader.getLength() != expected) {
                throw new Exception("recovered up to " + reader.getLastAddConfirmed() + ", " + reader.getLength());
            }
            reader.close();
            other.deleteLedger(writer.getId());
            bk.close();
            return String.format(Locale.ROOT, "{\"recovery_ms\": %.3f}", took);
        }
    }

    // --- what both need

    private void begin(int ensemble, int ackQuorum) throws Exception {
        bk = new BookKeeper(PeerBench.configuration(metadataUri));
        writer = bk.createLedger(ensemble, ensemble, ackQuorum, BookKeeper.DigestType.CRC32C, PASSWORD);
        entries = 0;
        failed = BKException.Code.OK;
    }

    private void await(int count) throws Exception {
        if (!pending.tryAcquire(count, STALL_S, TimeUnit.SECONDS)) {
            throw new Exception("nothing was answered for " + STALL_S + " s");
        }
        if (failed != BKException.Code.OK) {
            throw BKException.create(failed);
        }
    }
}
