import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/**
 * One round: what was acknowledged between its ramp and its end, and the waits of those calls. It goes on until one has
 * come back: on a busy machine, a client that has just started may take longer than a short round.
 */
final class Round {
    static final long STALL_S = 60;
    private static final int SAMPLES_MAX = 1 << 22; // of one round: 4 million calls, far above what it reaches
    private static final double RAMP_SHARE = 0.1; // of a round, before it is counted
    private static final int[] MICROS = new int[SAMPLES_MAX]; // of the only round that runs

    final long countFrom;
    volatile long end;
    final AtomicInteger calls = new AtomicInteger();
    final AtomicLong entries = new AtomicLong();
    final AtomicLong all = new AtomicLong(); // entries of ramp and end, too
    volatile Throwable failure;

    Round(double seconds) {
        long now = System.nanoTime();
        countFrom = now + (long) (seconds * RAMP_SHARE * 1e9);
        end = now + (long) (seconds * (1 + RAMP_SHARE) * 1e9);
    }

    boolean goesOn() {
        return (System.nanoTime() < end || calls.get() == 0) && failure == null;
    }

    /** Whether the round goes on. */
    boolean count(int count, long began) {
        long now = System.nanoTime();
        all.addAndGet(count);
        if (now >= countFrom && (now < end || calls.get() == 0)) {
            end = Math.max(end, now);
            entries.addAndGet(count);
            MICROS[calls.getAndIncrement()] = (int) ((now - began) / 1000);
        }
        return now < end && failure == null;
    }

    String result() throws Exception {
        if (failure != null) {
            throw new Exception(failure);
        }
        int n = calls.get();
        if (n == 0) {
            throw new Exception("nothing was acknowledged in this round");
        }
        Arrays.sort(MICROS, 0, n);
        return String.format(Locale.ROOT,
                "{\"entries_per_s\": %.1f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"p999_ms\": %.3f, \"calls\": %d,"
                        + " \"all_entries\": %d}",
                entries.get() / ((end - countFrom) / 1e9), at(n, 0.5), at(n, 0.99), at(n, 0.999), n, all.get());
    }

    private static double at(int n, double share) {
        return MICROS[Math.min(n - 1, (int) (n * share))] / 1000.0;
    }

    static void acquire(Semaphore permits, int count) throws Exception {
        if (!permits.tryAcquire(count, STALL_S, TimeUnit.SECONDS)) {
            throw new Exception("nothing was answered for " + STALL_S + " s");
        }
    }
}
