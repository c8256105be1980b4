import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryNTimes;

/** Drives Curator's locks: see ../README.md. */
public final class Hold {
    /** A lock of any kind. To wait for no time is to try. */
    interface Lock {
        boolean acquire(long time, TimeUnit unit) throws Exception;

        void release() throws Exception;
    }

    public static void main(String[] words) throws Exception {
        String address = "127.0.0.1:" + words[0];
        int session = Integer.parseInt(words[3]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(
                address, session, session, new RetryNTimes(3, 100));
        client.start();
        Lock lock = lock(client, words[1], words[2]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(answer(lock, line));
        }
        // Curator's threads would stay.
        client.close();
        System.exit(0);
    }

    static Lock lock(CuratorFramework client, String path, String kind) {
        if (kind.startsWith("permit-of-")) {
            int permits = Integer.parseInt(kind.substring("permit-of-".length()));
            return new Permit(new InterProcessSemaphoreV2(client, path, permits));
        }
        switch (kind) {
            case "exclusive":
                return new Mutex(new InterProcessMutex(client, path));
            case "read":
                return new Mutex(new InterProcessReadWriteLock(client, path).readLock());
            case "write":
                return new Mutex(new InterProcessReadWriteLock(client, path).writeLock());
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    private static String answer(Lock lock, String command) throws Exception {
        switch (command) {
            case "try":
                return lock.acquire(0, TimeUnit.SECONDS) ? "held" : "busy";
            case "wait":
                return lock.acquire(1, TimeUnit.HOURS) ? "held" : "busy";
            case "release":
                try {
                    lock.release();
                    return "released";
                } catch (IllegalMonitorStateException noHolder) {
                    return "not held";
                }
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private record Mutex(InterProcessMutex mutex) implements Lock {
        @Override
        public boolean acquire(long time, TimeUnit unit) throws Exception {
            return mutex.acquire(time, unit);
        }

        @Override
        public void release() throws Exception {
            mutex.release();
        }
    }

    private static final class Permit implements Lock {
        private final InterProcessSemaphoreV2 semaphore;
        private Lease lease;

        Permit(InterProcessSemaphoreV2 semaphore) {
            this.semaphore = semaphore;
        }

        @Override
        public boolean acquire(long time, TimeUnit unit) throws Exception {
            lease = semaphore.acquire(time, unit);
            return lease != null;
        }

        @Override
        public void release() {
            semaphore.returnLease(lease);
        }
    }
}
