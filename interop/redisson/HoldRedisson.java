import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Drives Redisson's locks: see ../README.md. */
public final class HoldRedisson {
    public static void main(String[] words) throws Exception {
        RedissonClient client = Redisson.create(config(words[0], Long.parseLong(words[3])));
        Driver driver = driver(client, words[1], words[2]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(driver.answer(line.split(" ")));
        }
        // Redisson's threads would stay.
        System.exit(0);
    }

    /** Answers a line. */
    private interface Driver {
        String answer(String[] words) throws Exception;
    }

    private static Driver driver(RedissonClient client, String name, String kind) {
        switch (kind) {
            case "permits":
                return new Permits(client.getPermitExpirableSemaphore(name));
            case "semaphore":
                RSemaphore semaphore = client.getSemaphore(name);
                return words -> semaphore(semaphore, words);
            case "latch":
                RCountDownLatch latch = client.getCountDownLatch(name);
                return words -> latch(latch, words);
            default:
                RLock lock = lock(client, name, kind);
                return words -> answer(client, lock, name, words);
        }
    }

    /** A permit at a time. `size N` sets how many there are, unless that is known. */
    private static final class Permits implements Driver {
        private final RPermitExpirableSemaphore semaphore;
        private String permit;

        Permits(RPermitExpirableSemaphore semaphore) {
            this.semaphore = semaphore;
        }

        @Override
        public String answer(String[] words) throws Exception {
            switch (words[0]) {
                case "size":
                    return String.valueOf(semaphore.trySetPermits(Integer.parseInt(words[1])));
                case "try":
                    String got = semaphore.tryAcquire(0, term(words), TimeUnit.MILLISECONDS);
                    permit = got == null ? permit : got;
                    return got == null ? "busy" : "held";
                case "wait":
                    permit = semaphore.acquire(term(words), TimeUnit.MILLISECONDS);
                    return "held";
                case "renew":
                    return String.valueOf(
                            semaphore.updateLeaseTime(permit, term(words), TimeUnit.MILLISECONDS));
                case "release":
                    return semaphore.tryRelease(permit) ? "released" : "not held";
                case "count":
                    return semaphore.availablePermits() + " 0";
                default:
                    throw new IllegalArgumentException(words[0]);
            }
        }

        private static long term(String[] words) {
            long term = Long.parseLong(words[1]);
            return term == 0 ? -1 : term;
        }
    }

    /** Its permits have no terms and no owners. */
    private static String semaphore(RSemaphore semaphore, String[] words) throws Exception {
        switch (words[0]) {
            case "size":
                return String.valueOf(semaphore.trySetPermits(Integer.parseInt(words[1])));
            case "try":
                return semaphore.tryAcquire() ? "held" : "busy";
            case "wait":
                semaphore.acquire();
                return "held";
            case "release":
                semaphore.release();
                return "released";
            case "count":
                return semaphore.availablePermits() + " 0";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static String latch(RCountDownLatch latch, String[] words) throws Exception {
        switch (words[0]) {
            case "size":
                return String.valueOf(latch.trySetCount(Long.parseLong(words[1])));
            case "count":
                return latch.getCount() + " 0";
            case "await":
                latch.await();
                return "open";
            case "down":
                latch.countDown();
                return "counted";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** A port, `cluster:PORT,PORT` or `sentinel:PORT,PORT`, all on 127.0.0.1; `cluster+on` and `+off` set the mode. */
    static Config config(String servers, long watchdog) {
        Config config = new Config();
        config.setThreads(4).setNettyThreads(2).setLockWatchdogTimeout(watchdog);
        String[] ports = servers.substring(servers.indexOf(':') + 1).split(",");
        for (int at = 0; at < ports.length; at++) {
            ports[at] = "redis://127.0.0.1:" + ports[at];
        }
        if (servers.startsWith("cluster")) {
            String kind = servers.substring(0, servers.indexOf(':'));
            setShardedSubscriptionMode(config.useClusterServers(), kind.substring("cluster".length()));
            config.useClusterServers().addNodeAddress(ports).setScanInterval(500)
                    .setMasterConnectionMinimumIdleSize(2).setMasterConnectionPoolSize(8)
                    .setSlaveConnectionMinimumIdleSize(1).setSlaveConnectionPoolSize(4);
        } else if (servers.startsWith("sentinel:")) {
            config.useSentinelServers().addSentinelAddress(ports).setMasterName("main")
                    .setScanInterval(500).setCheckSentinelsList(false)
                    .setMasterConnectionMinimumIdleSize(2).setMasterConnectionPoolSize(8)
                    .setSlaveConnectionMinimumIdleSize(1).setSlaveConnectionPoolSize(4);
        } else {
            config.useSingleServer().setAddress(ports[0])
                    .setConnectionMinimumIdleSize(2).setConnectionPoolSize(8);
        }
        return config;
    }

    /** Releases before 3.29 have no such mode. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setShardedSubscriptionMode(Object servers, String mode) {
        if (mode.isEmpty()) {
            return;
        }
        try {
            Class<?> type = Class.forName("org.redisson.config.ShardedSubscriptionMode");
            Object value = Enum.valueOf((Class<Enum>) type, mode.substring(1).toUpperCase());
            servers.getClass().getMethod("setShardedSubscriptionMode", type).invoke(servers, value);
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException(mode, error);
        }
    }

    static RLock lock(RedissonClient client, String name, String kind) {
        switch (kind) {
            case "lock":
                return client.getLock(name);
            case "fair":
                return client.getFairLock(name);
            case "spin":
                return client.getSpinLock(name);
            case "fenced":
                return client.getFencedLock(name);
            case "read":
                return client.getReadWriteLock(name).readLock();
            case "write":
                return client.getReadWriteLock(name).writeLock();
            case "non-reentrant":
                // Older releases have neither of these.
                return newer(client, "getNonReentrantLock", new Class<?>[] {String.class}, name);
            case "group":
                Class<?>[] types = {String.class, Collection.class};
                return newer(client, "getMultiLock", types, name, List.of("sku-1", "sku-2"));
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    private static RLock newer(
            RedissonClient client, String method, Class<?>[] types, Object... arguments) {
        try {
            return (RLock) RedissonClient.class.getMethod(method, types).invoke(client, arguments);
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException(method, error);
        }
    }

    private static String answer(RedissonClient client, RLock lock, String name, String[] words)
            throws Exception {
        switch (words[0]) {
            case "try":
                // Without a term, the watchdog renews the lock.
                long term = Long.parseLong(words[1]);
                return lock.tryLock(0, term == 0 ? -1 : term, TimeUnit.MILLISECONDS) ? "held" : "busy";
            case "wait":
                term = Long.parseLong(words[1]);
                lock.lock(term == 0 ? -1 : term, TimeUnit.MILLISECONDS);
                return "held";
            case "release":
                try {
                    lock.unlock();
                    return "released";
                } catch (IllegalMonitorStateException noHolder) {
                    return "not held";
                }
            case "force":
                return lock.forceUnlock() ? "released" : "not held";
            case "count":
                return lock.isLocked() + " " + lock.getHoldCount();
            case "token":
                Long token = client.getFencedLock(name).getToken();
                return String.valueOf(token);
            case "fence":
                Long fence = ((RFencedLock) lock).tryLockAndGetToken();
                return String.valueOf(fence);
            case "contend":
                return contend(client, lock, name, words);
            case "outlast":
                return outlast(lock, words);
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** `contend THREADS MS FILE`: threads that each add one to the number in a file, under the lock. */
    private static String contend(RedissonClient client, RLock lock, String name, String[] words)
            throws Exception {
        Path file = Path.of(words[3]);
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[2]));
        Thread[] threads = new Thread[Integer.parseInt(words[1])];
        long[] counts = new long[threads.length];
        for (int at = 0; at < threads.length; at++) {
            int own = at;
            threads[at] = new Thread(() -> {
                try {
                    while (System.nanoTime() < end) {
                        lock.lock();
                        try {
                            long before = Long.parseLong(Files.readString(file).trim());
                            Files.writeString(file, String.valueOf(before + 1));
                            counts[own]++;
                        } finally {
                            lock.unlock();
                        }
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            });
            threads[at].start();
        }
        long total = 0;
        for (int at = 0; at < threads.length; at++) {
            threads[at].join();
            total += counts[at];
        }
        return String.valueOf(total);
    }

    /**
     * Ends every hold of this thread. A command whose answer was lost is sent again, so one tryLock may have entered
     * twice, and the watchdog would keep that for good.
     */
    private static void leave(RLock lock) {
        try {
            while (lock.isHeldByCurrentThread()) {
                System.err.println("still held: " + lock.getHoldCount());
                lock.unlock();
            }
        } catch (Exception error) {
            System.err.println(error);
        }
    }

    /**
     * `outlast THREADS MS LATE FILE`: as `contend`, but goes on after errors, for a server that dies. Answers how
     * often all have counted, and how often after LATE ms.
     */
    private static String outlast(RLock lock, String[] words) throws Exception {
        Path file = Path.of(words[4]);
        long start = System.nanoTime();
        long end = start + TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[2]));
        long late = start + TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[3]));
        Thread[] threads = new Thread[Integer.parseInt(words[1])];
        long[] counts = new long[2];
        for (int at = 0; at < threads.length; at++) {
            threads[at] = new Thread(() -> {
                while (System.nanoTime() < end) {
                    try {
                        if (!lock.tryLock(2, TimeUnit.SECONDS)) {
                            continue;
                        }
                        long before = Long.parseLong(Files.readString(file).trim());
                        Files.writeString(file, String.valueOf(before + 1));
                        synchronized (counts) {
                            counts[0]++;
                            counts[1] += System.nanoTime() > late ? 1 : 0;
                        }
                        lock.unlock();
                    } catch (Exception error) {
                        // The master is gone: what it had locked ends with its term.
                        System.err.println(error);
                    }
                    leave(lock);
                }
            });
            threads[at].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return counts[0] + " " + counts[1];
    }
}
