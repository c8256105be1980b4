import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryNTimes;

/** Times Curator's mutex: see ../README.md. */
public final class Measure {
    public static void main(String[] words) throws Exception {
        Times.answer(client(words[0]), client(words[0]), words[1]);
    }

    private static Times.Client client(String port) {
        CuratorFramework client = CuratorFrameworkFactory.newClient(
                "127.0.0.1:" + port, 30_000, 30_000, new RetryNTimes(3, 100));
        client.start();
        return path -> {
            InterProcessMutex mutex = new InterProcessMutex(client, path);
            return new Times.Lock() {
                @Override
                public void acquire() throws Exception {
                    mutex.acquire();
                }

                @Override
                public void release() throws Exception {
                    mutex.release();
                }
            };
        };
    }
}
