import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.CompletableFuture;

/** Times a lock: see ../README.md. */
final class Times {
    /** A lock of one client. */
    interface Lock {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    private Times() {
    }

    /** Answers each line. The two locks are one lock, of two clients. */
    static void answer(Lock held, Lock wanted) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] order = line.split(" ");
            StringBuilder times = new StringBuilder();
            for (int round = Integer.parseInt(order[1]); round > 0; round--) {
                long time = switch (order[0]) {
                    case "free" -> free(held);
                    case "handoff" -> handoff(held, wanted, Long.parseLong(order[2]));
                    default -> throw new IllegalArgumentException(line);
                };
                times.append(time).append(' ');
            }
            System.out.println(times);
        }
        // The client's threads would stay.
        System.exit(0);
    }

    private static long free(Lock lock) throws Exception {
        long start = System.nanoTime();
        lock.acquire();
        lock.release();
        return System.nanoTime() - start;
    }

    /** From the release to the moment in which the other client's waiter holds. */
    private static long handoff(Lock held, Lock wanted, long wait) throws Exception {
        held.acquire();
        CompletableFuture<Long> granted = new CompletableFuture<>();
        Thread waiter = new Thread(() -> {
            try {
                wanted.acquire();
                granted.complete(System.nanoTime());
                wanted.release();
            } catch (Exception error) {
                granted.completeExceptionally(error);
            }
        });
        waiter.start();
        Thread.sleep(wait);
        long start = System.nanoTime();
        held.release();
        long time = granted.get() - start;
        waiter.join();
        return time;
    }
}
