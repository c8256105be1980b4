import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryNTimes;

/** Times Curator's mutex: see ../README.md. */
public final class Measure {
    public static void main(String[] words) throws Exception {
        Times.answer(mutex(words), mutex(words));
    }

    private static Times.Lock mutex(String[] words) {
        CuratorFramework client = CuratorFrameworkFactory.newClient(
                "127.0.0.1:" + words[0], 30_000, 30_000, new RetryNTimes(3, 100));
        client.start();
        InterProcessMutex mutex = new InterProcessMutex(client, words[1]);
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
    }
}
