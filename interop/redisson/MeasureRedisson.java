import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.CompletableFuture;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** Times Redisson's lock: see ../README.md. */
public final class MeasureRedisson {
    public static void main(String[] words) throws Exception {
        RedissonClient holder = Redisson.create(HoldRedisson.config(words[0], 30_000));
        RedissonClient waiter = Redisson.create(HoldRedisson.config(words[0], 30_000));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] order = line.split(" ");
            StringBuilder times = new StringBuilder();
            for (int round = Integer.parseInt(order[1]); round > 0; round--) {
                long time = switch (order[0]) {
                    case "free" -> free(holder.getLock(words[1]));
                    case "handoff" -> handoff(
                            holder.getLock(words[1]),
                            waiter.getLock(words[1]),
                            Long.parseLong(order[2]));
                    default -> throw new IllegalArgumentException(line);
                };
                times.append(time).append(' ');
            }
            System.out.println(times);
        }
        // Redisson's threads would stay.
        System.exit(0);
    }

    private static long free(RLock lock) {
        long start = System.nanoTime();
        lock.lock();
        lock.unlock();
        return System.nanoTime() - start;
    }

    /** From the release to the moment in which a waiter of another instance holds. */
    private static long handoff(RLock held, RLock wanted, long wait) throws Exception {
        held.lock();
        CompletableFuture<Long> granted = new CompletableFuture<>();
        Thread waiter = new Thread(() -> {
            wanted.lock();
            granted.complete(System.nanoTime());
            wanted.unlock();
        });
        waiter.start();
        Thread.sleep(wait);
        long start = System.nanoTime();
        held.unlock();
        long time = granted.get() - start;
        waiter.join();
        return time;
    }
}
