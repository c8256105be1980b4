import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.CompletableFuture;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryNTimes;

/** Times Curator's mutex: see ../README.md. */
public final class Measure {
    public static void main(String[] words) throws Exception {
        CuratorFramework holder = client(words[0]);
        CuratorFramework waiter = client(words[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] order = line.split(" ");
            StringBuilder times = new StringBuilder();
            for (int round = Integer.parseInt(order[1]); round > 0; round--) {
                long time = switch (order[0]) {
                    case "free" -> free(new InterProcessMutex(holder, words[1]));
                    case "handoff" -> handoff(
                            new InterProcessMutex(holder, words[1]),
                            new InterProcessMutex(waiter, words[1]),
                            Long.parseLong(order[2]));
                    default -> throw new IllegalArgumentException(line);
                };
                times.append(time).append(' ');
            }
            System.out.println(times);
        }
        // Curator's threads would stay.
        System.exit(0);
    }

    private static CuratorFramework client(String port) {
        CuratorFramework client = CuratorFrameworkFactory.newClient(
                "127.0.0.1:" + port, 30_000, 30_000, new RetryNTimes(3, 100));
        client.start();
        return client;
    }

    private static long free(InterProcessMutex mutex) throws Exception {
        long start = System.nanoTime();
        mutex.acquire();
        mutex.release();
        return System.nanoTime() - start;
    }

    /** From the release to the moment in which a waiter of another session holds. */
    private static long handoff(InterProcessMutex held, InterProcessMutex wanted, long wait)
            throws Exception {
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
