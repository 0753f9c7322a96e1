import java.util.Locale;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;

/**
 * What is copied when a bookie goes, and the appends meanwhile; more commands of PeerBench, the same as those of
 * our_healing.py:
 *
 * <pre>
 * store LEDGERS ENTRIES SIZE   writes and closes that many ledgers
 * pace RATE SIZE               begins to append at that rate, to a ledger of its own, whatever is acknowledged
 * lap                          the waits since the last lap, or since the pace began
 * rest                         ends the pace, closes and deletes its ledger
 * </pre>
 */
final class PeerHealing {
    private static final long STALL_S = 60;
    private static final int STORED_AT_ONCE = 64; // ledgers
    private static final int OUTSTANDING = 1000; // entries, of all of them
    private static final long TICK_NANOS = 2_000_000;
    private static final int SAMPLES_MAX = 1 << 22; // of one lap
    private static final byte[] PASSWORD = new byte[0];

    private final String metadataUri;
    private final int[] micros = new int[SAMPLES_MAX];
    private int samples;
    private BookKeeper bk;
    private LedgerHandle writer;
    private Thread pacer;
    private long sent;
    private Semaphore answered;
    private volatile boolean running;
    private volatile int failed = BKException.Code.OK;

    PeerHealing(String metadataUri) {
        this.metadataUri = metadataUri;
    }

    String command(String[] words) throws Exception {
        switch (words[0]) {
            case "store":
                return store(Integer.parseInt(words[1]), Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            case "pace":
                return pace(Integer.parseInt(words[1]), new byte[Integer.parseInt(words[2])]);
            case "lap":
                return lap();
            case "rest":
                return rest();
            default:
                throw new IllegalArgumentException("no such command: " + words[0]);
        }
    }

    // --- what is copied

    private String store(int ledgers, int entries, int size) throws Exception {
        Semaphore permits = new Semaphore(OUTSTANDING);
        byte[] payload = new byte[size];
        failed = BKException.Code.OK;
        ExecutorService executor = Executors.newFixedThreadPool(STORED_AT_ONCE);
        try (BookKeeper client = new BookKeeper(PeerBench.configuration(metadataUri))) {
            List<Future<?>> all = new ArrayList<>();
            for (int i = 0; i < ledgers; i++) {
                all.add(executor.submit(() -> {
                    LedgerHandle ledger = create(client);
                    Semaphore acknowledged = new Semaphore(0);
                    for (int entry = 0; entry < entries; entry++) {
                        Round.acquire(permits, 1);
                        ledger.asyncAddEntry(payload, (rc, handle, entryId, context) -> {
                            failed = failed == BKException.Code.OK ? rc : failed;
                            permits.release();
                            acknowledged.release();
                        }, null);
                    }
                    Round.acquire(acknowledged, entries); // what is not when it is closed fails
                    ledger.close();
                    return null;
                }));
            }
            for (Future<?> one : all) {
                one.get();
            }
        } finally {
            executor.shutdownNow();
        }
        check();
        return "{\"ledgers\": " + ledgers + "}";
    }

    private static LedgerHandle create(BookKeeper client) throws Exception {
        return client.createLedger(3, 3, 2, BookKeeper.DigestType.CRC32C, PASSWORD);
    }

    // --- the appends meanwhile

    private String pace(int rate, byte[] payload) throws Exception {
        bk = new BookKeeper(PeerBench.configuration(metadataUri));
        writer = create(bk);
        answered = new Semaphore(0);
        failed = BKException.Code.OK;
        sent = 0;
        running = true;
        lapped();
        pacer = new Thread(() -> appendAt(rate, payload), "pacer");
        pacer.start();
        return "{\"rate\": " + rate + "}";
    }

    /** What is due is sent at each tick; its wait begins with the tick, though this thread should be late. */
    private void appendAt(int rate, byte[] payload) {
        long began = System.nanoTime();
        for (long tick = 1; running; tick++) {
            long at = began + tick * TICK_NANOS;
            for (long left = at - System.nanoTime(); left > 0; left = at - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            long due = tick * TICK_NANOS * rate / 1_000_000_000L;
            for (; sent < due; sent++) {
                writer.asyncAddEntry(payload, (rc, handle, entryId, context) -> {
                    failed = failed == BKException.Code.OK ? rc : failed;
                    waited(System.nanoTime() - at);
                    answered.release();
                }, null);
            }
        }
    }

    private synchronized void waited(long nanos) {
        micros[samples++] = (int) (nanos / 1000);
    }

    private synchronized int[] lapped() {
        int[] lap = Arrays.copyOf(micros, samples);
        samples = 0;
        return lap;
    }

    private String lap() throws Exception {
        check();
        int[] lap = lapped();
        if (lap.length == 0) {
            throw new Exception("nothing was acknowledged in this lap");
        }
        Arrays.sort(lap);
        return String.format(Locale.ROOT,
                "{\"calls\": %d, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"p999_ms\": %.3f, \"longest_ms\": %.3f}",
                lap.length, at(lap, 0.5), at(lap, 0.99), at(lap, 0.999), at(lap, 1.0));
    }

    private static double at(int[] sorted, double share) {
        return sorted[Math.min(sorted.length - 1, (int) (sorted.length * share))] / 1000.0;
    }

    private String rest() throws Exception {
        running = false;
        pacer.join();
        if (!answered.tryAcquire((int) sent, STALL_S, TimeUnit.SECONDS)) {
            throw new Exception("nothing was answered for " + STALL_S + " s");
        }
        check();
        writer.close();
        long last = writer.getLastAddConfirmed();
        if (last + 1 != sent) {
            throw new Exception(sent + " entries were acknowledged, the ledger has " + (last + 1));
        }
        bk.deleteLedger(writer.getId());
        bk.close();
        return "{\"entries\": " + sent + "}";
    }

    private void check() throws Exception {
        if (failed != BKException.Code.OK) {
            throw BKException.create(failed);
        }
    }
}
