import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.lock.LockResponse;
import io.etcd.jetcd.support.CloseableClient;
import io.etcd.jetcd.support.Observers;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Drives jetcd's lock, which is the server's Lock service: see ../README.md. */
public final class HoldJetcd {
    private static Client client;
    private static ByteSequence name;
    private static long lease;
    private static CloseableClient renewals;
    private static ByteSequence key;

    public static void main(String[] words) throws Exception {
        client = Client.builder().endpoints("http://127.0.0.1:" + words[0]).build();
        name = ByteSequence.from(words[1], StandardCharsets.UTF_8);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(answer(line.split(" ")));
        }
        System.exit(0);
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "release":
                client.getLockClient().unlock(key).get();
                end();
                return "sent";
            case "try":
                CompletableFuture<LockResponse> asked = ask(words[1]);
                try {
                    // The service only waits: a claim that is not served in time is taken back.
                    key = asked.get(2, TimeUnit.SECONDS).getKey();
                    return "held";
                } catch (TimeoutException late) {
                    asked.cancel(true);
                    end();
                    return "busy";
                }
            case "wait":
                key = ask(words[1]).get().getKey();
                return "held";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static CompletableFuture<LockResponse> ask(String ms) throws Exception {
        long seconds = (Long.parseLong(ms) + 999) / 1000;
        lease = client.getLeaseClient().grant(seconds).get().getID();
        renewals = client.getLeaseClient().keepAlive(
                lease, Observers.<LeaseKeepAliveResponse>observer(response -> { }));
        return client.getLockClient().lock(name, lease);
    }

    private static void end() throws Exception {
        renewals.close();
        client.getLeaseClient().revoke(lease).get();
    }
}
