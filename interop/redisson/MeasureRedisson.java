import java.util.function.Function;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** Times Redisson's locks, of the kind that the third word names: see ../README.md. */
public final class MeasureRedisson {
    public static void main(String[] words) throws Exception {
        String kind = words.length > 2 ? words[2] : "lock";
        Times.answer(client(words[0], kind), client(words[0], kind), words[1]);
    }

    private static Times.Client client(String port, String kind) {
        RedissonClient client = Redisson.create(HoldRedisson.config(port, 30_000));
        Function<String, RLock> locks = switch (kind) {
            case "lock" -> client::getLock;
            case "fair" -> client::getFairLock;
            case "fenced" -> client::getFencedLock;
            default -> throw new IllegalArgumentException(kind);
        };
        return name -> {
            RLock lock = locks.apply(name);
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
        };
    }
}
