import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * A load on Apache BookKeeper; {@link Commands} of the harness:
 *
 * <pre>
 * open LEDGERS                              makes the ledgers for `append`, instead of earlier ones
 * append DRIVE SIZE OUTSTANDING SECONDS     one round; DRIVE is `semaphore` or `chain`
 * fill ENTRIES SIZE                         writes and closes the ledger for `read`, instead of an earlier one
 * read MODE SECONDS                         one round; MODE is `entries` or `batch`
 * close                                     closes and deletes all ledgers
 * </pre>
 *
 * and those of {@link PeerFailures} and {@link PeerHealing}.
 *
 * `semaphore`: this thread adds whenever one of OUTSTANDING permits is free, to the ledgers in turn. `chain`: each of
 * OUTSTANDING chains adds to its ledger again when its last add is acknowledged, from the callback. The process lives
 * over all rounds, so that its compiled code does.
 */
public final class PeerBench {
    private static final int READS_IN_FLIGHT = 8;
    private static final int READ_ENTRIES = 1000;
    private static final int FILL_OUTSTANDING = 1000;
    private static final byte[] PASSWORD = new byte[0];

    private final BookKeeper bk;
    private final PeerFailures failures;
    private final PeerHealing healing;
    private final List<LedgerHandle> writers = new ArrayList<>();
    private LedgerHandle reader;

    private PeerBench(String metadataUri) throws Exception {
        bk = new BookKeeper(configuration(metadataUri));
        failures = new PeerFailures(metadataUri);
        healing = new PeerHealing(metadataUri);
    }

    static ClientConfiguration configuration(String metadataUri) {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(metadataUri);
        conf.setUseV2WireProtocol(true);
        conf.setThrottleValue(0);
        conf.setAddEntryTimeout(30);
        conf.setReadEntryTimeout(30);
        conf.setZkTimeout(60_000);
        return conf;
    }

    public static void main(String[] args) throws Exception {
        Commands.serve(() -> new PeerBench(args[0])::command);
    }

    private String command(String[] words) throws Exception {
        switch (words[0]) {
            case "open":
                return open(Integer.parseInt(words[1]));
            case "append":
                return append(words[1].equals("chain"), new byte[Integer.parseInt(words[2])],
                        Integer.parseInt(words[3]), Double.parseDouble(words[4]));
            case "fill":
                return fill(Integer.parseInt(words[1]), new byte[Integer.parseInt(words[2])]);
            case "read":
                return read(words[1].equals("batch"), Double.parseDouble(words[2]));
            case "close":
                return close();
            case "store":
            case "pace":
            case "lap":
            case "rest":
                return healing.command(words);
            default:
                return failures.command(words);
        }
    }

    /** A new ledger; waits for bookies that have been restarted and aren't known yet. */
    private LedgerHandle create() throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Round.STALL_S);
        while (true) {
            try {
                return bk.createLedger(3, 3, 2, BookKeeper.DigestType.CRC32C, PASSWORD);
            } catch (BKException.BKNotEnoughBookiesException e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                Thread.sleep(100);
            }
        }
    }

    private String open(int ledgers) throws Exception {
        closeWriters();
        for (int i = 0; i < ledgers; i++) {
            writers.add(create());
        }
        return "{\"ledgers\": " + ledgers + "}";
    }

    private String close() throws Exception {
        closeWriters();
        closeReader();
        return "{\"ledgers\": 0}";
    }

    private void closeReader() throws Exception {
        if (reader != null) {
            reader.close();
            bk.deleteLedger(reader.getId());
            reader = null;
        }
    }

    private void closeWriters() throws Exception {
        for (LedgerHandle writer : writers) {
            writer.close();
            bk.deleteLedger(writer.getId());
        }
        writers.clear();
    }

    private String append(boolean chain, byte[] payload, int outstanding, double seconds) throws Exception {
        Semaphore permits = new Semaphore(outstanding);
        Round round = new Round(seconds);
        if (chain) {
            for (int i = 0; i < outstanding; i++) {
                permits.acquire();
                addAgain(writers.get(i % writers.size()), payload, round, permits);
            }
        } else {
            for (int i = 0; round.goesOn(); i++) {
                Round.acquire(permits, 1);
                long began = System.nanoTime();
                writers.get(i % writers.size()).asyncAddEntry(payload, (rc, handle, entryId, context) -> {
                    if (rc == BKException.Code.OK) {
                        round.count(1, began);
                    } else {
                        round.failure = BKException.create(rc);
                    }
                    permits.release();
                }, null);
            }
        }
        Round.acquire(permits, outstanding); // all are acknowledged before the round's figures are read
        return round.result();
    }

    private void addAgain(LedgerHandle writer, byte[] payload, Round round, Semaphore permits) {
        long began = System.nanoTime();
        writer.asyncAddEntry(payload, (rc, handle, entryId, context) -> {
            if (rc != BKException.Code.OK) {
                round.failure = BKException.create(rc);
            } else if (round.count(1, began)) {
                addAgain(writer, payload, round, permits);
                return;
            }
            permits.release();
        }, null);
    }

    private String fill(int entries, byte[] payload) throws Exception {
        closeReader();
        Semaphore permits = new Semaphore(FILL_OUTSTANDING);
        AtomicInteger failed = new AtomicInteger(BKException.Code.OK);
        LedgerHandle writer = create();
        for (int i = 0; i < entries; i++) {
            Round.acquire(permits, 1);
            writer.asyncAddEntry(payload, (rc, handle, entryId, context) -> {
                if (rc != BKException.Code.OK) {
                    failed.set(rc);
                }
                permits.release();
            }, null);
        }
        Round.acquire(permits, FILL_OUTSTANDING);
        if (failed.get() != BKException.Code.OK) {
            throw BKException.create(failed.get());
        }
        writer.close();
        reader = bk.openLedgerNoRecovery(writer.getId(), BookKeeper.DigestType.CRC32C, PASSWORD);
        return "{\"ledger\": " + writer.getId() + "}";
    }

    /** The ledger from end to end again and again, READS_IN_FLIGHT ranges of READ_ENTRIES asked for at a time. */
    private String read(boolean batch, double seconds) throws Exception {
        Round round = new Round(seconds);
        Semaphore permits = new Semaphore(READS_IN_FLIGHT);
        long next = 0;
        while (round.goesOn()) {
            Round.acquire(permits, 1);
            long last = Math.min(next + READ_ENTRIES - 1, reader.getLastAddConfirmed());
            readRange(batch, next, last, System.nanoTime(), round, permits);
            next = last == reader.getLastAddConfirmed() ? 0 : last + 1;
        }
        Round.acquire(permits, READS_IN_FLIGHT);
        return round.result();
    }

    private void readRange(boolean batch, long first, long last, long began, Round round, Semaphore permits) {
        CompletableFuture<LedgerEntries> future = batch
                ? reader.batchReadAsync(first, (int) (last - first + 1), 0) : reader.readAsync(first, last);
        future.whenComplete((entries, error) -> {
            if (error != null) {
                round.failure = error;
                permits.release();
                return;
            }
            int count = 0;
            for (var entry : entries) {
                count += entry.getLength() > 0 ? 1 : 0;
            }
            entries.close();
            round.count(count, began);
            if (first + count <= last && round.failure == null && count > 0) {
                readRange(batch, first + count, last, began, round, permits); // a batch is at most one frame
            } else {
                permits.release();
            }
        });
    }
}
