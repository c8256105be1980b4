import org.redisson.Redisson;
import org.redisson.api.RLock;

/** Times Redisson's lock: see ../README.md. */
public final class MeasureRedisson {
    public static void main(String[] words) throws Exception {
        Times.answer(lock(words), lock(words));
    }

    private static Times.Lock lock(String[] words) {
        RLock lock = Redisson.create(HoldRedisson.config(words[0], 30_000)).getLock(words[1]);
        return new Times.Lock() {
            @Override
            public void acquire() {
                lock.lock();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }
}
