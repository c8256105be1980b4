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
        String address = "127.0.0.1:" + words[0];
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(address, 30_000, 30_000, new RetryNTimes(3, 100));
        client.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] order = line.split(" ");
            StringBuilder times = new StringBuilder();
            for (int round = Integer.parseInt(order[1]); round > 0; round--) {
                long time = switch (order[0]) {
                    case "free" -> free(new InterProcessMutex(client, words[1]));
                    case "handoff" -> handoff(client, words[1], Long.parseLong(order[2]));
                    default -> throw new IllegalArgumentException(line);
                };
                times.append(time).append(' ');
            }
            System.out.println(times);
        }
        client.close();
        System.exit(0);
    }

    private static long free(InterProcessMutex mutex) throws Exception {
        long start = System.nanoTime();
        mutex.acquire();
        mutex.release();
        return System.nanoTime() - start;
    }

    /** From the release to the moment in which the waiter holds. */
    private static long handoff(CuratorFramework client, String path, long wait) throws Exception {
        InterProcessMutex held = new InterProcessMutex(client, path);
        InterProcessMutex wanted = new InterProcessMutex(client, path);
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
