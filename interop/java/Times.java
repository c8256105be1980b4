import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;

/** Times a lock: see ../README.md. */
final class Times {
    /** A lock of one client. */
    interface Lock {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    /** A client. */
    interface Client {
        Lock named(String name) throws Exception;
    }

    /** A hold that is waited for longer is late. */
    private static final long PROMPT = 10_000_000;

    private Times() {
    }

    /** Answers each line. The two clients take the same locks. */
    static void answer(Client holder, Client waiter, String key) throws Exception {
        Lock held = holder.named(key);
        Lock wanted = waiter.named(key);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] order = line.split(" ");
            long[] times = switch (order[0]) {
                case "free" -> rounds(order, () -> free(held));
                case "handoff" -> rounds(order, () -> handoff(held, wanted, Long.parseLong(order[2])));
                case "crowd" -> crowd(holder, key, order);
                default -> throw new IllegalArgumentException(line);
            };
            StringBuilder answer = new StringBuilder();
            for (long time : times) {
                answer.append(time).append(' ');
            }
            System.out.println(answer);
        }
        // The client's threads would stay.
        System.exit(0);
    }

    private static long[] rounds(String[] order, Callable<Long> round) throws Exception {
        long[] times = new long[Integer.parseInt(order[1])];
        for (int at = 0; at < times.length; at++) {
            times[at] = round.call();
        }
        return times;
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

    private static long[] crowd(Client client, String key, String[] order) throws Exception {
        int workers = Integer.parseInt(order[1]);
        double[] sums = sums(Integer.parseInt(order[2]), Double.parseDouble(order[3]));
        long work = Long.parseLong(order[5]) * 1_000;
        long limit = Long.parseLong(order[6]) * 1_000_000;
        ConcurrentLinkedQueue<Long> all = new ConcurrentLinkedQueue<>();
        ConcurrentLinkedQueue<Exception> errors = new ConcurrentLinkedQueue<>();
        Thread[] threads = new Thread[workers];
        long start = System.nanoTime();
        for (int worker = 0; worker < workers; worker++) {
            Random random = new Random(worker);
            threads[worker] = new Thread(() -> {
                try {
                    while (System.nanoTime() - start < limit) {
                        Lock lock = client.named(key + "-" + choice(sums, random));
                        long began = System.nanoTime();
                        lock.acquire();
                        all.add(System.nanoTime() - began);
                        if (work > 0) {
                            Thread.sleep(work / 1_000_000, (int) (work % 1_000_000));
                        }
                        lock.release();
                    }
                } catch (Exception error) {
                    errors.add(error);
                }
            });
            threads[worker].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (!errors.isEmpty()) {
            throw errors.peek();
        }
        long elapsed = System.nanoTime() - start;
        long[] waits = all.stream().mapToLong(Long::longValue).sorted().toArray();
        int count = waits.length;
        long prompt = Math.max(1, Arrays.stream(waits).filter(wait -> wait <= PROMPT).count());
        return new long[] {
            elapsed / count, Arrays.stream(waits).sum() / count, waits[(int) (count * 0.95)],
            waits[(int) (count * 0.99)], waits[count - 1], elapsed / prompt,
        };
    }

    /** The probability of each of the names or one before it. */
    private static double[] sums(int names, double skew) {
        double[] sums = new double[names];
        double sum = 0;
        for (int rank = 0; rank < names; rank++) {
            sum += Math.pow(rank + 1, -skew);
            sums[rank] = sum;
        }
        return sums;
    }

    private static int choice(double[] sums, Random random) {
        int place = Arrays.binarySearch(sums, random.nextDouble() * sums[sums.length - 1]);
        return Math.min(place < 0 ? -place - 1 : place, sums.length - 1);
    }
}
