// ThroughSpymemcached.java PORT [USER PASSWORD]: spymemcached's binary protocol, with SASL PLAIN where
// there is a user; checks every command; exit 0 if all answers are right.
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.auth.AuthDescriptor;
import net.spy.memcached.auth.PlainCallbackHandler;

public class ThroughSpymemcached {
    static void check(String what, boolean holds) {
        if (!holds) {
            System.out.println(what + " does not hold");
            System.exit(1);
        }
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SunLogger");
        java.util.logging.Logger.getLogger("net.spy.memcached").setLevel(java.util.logging.Level.WARNING);
        ConnectionFactoryBuilder builder = new ConnectionFactoryBuilder()
            .setProtocol(ConnectionFactoryBuilder.Protocol.BINARY)
            .setOpTimeout(10_000);
        if (args.length > 1) {
            builder.setAuthDescriptor(new AuthDescriptor(
                new String[] {"PLAIN"}, new PlainCallbackHandler(args[1], args[2])));
        }
        MemcachedClient c = new MemcachedClient(
            builder.build(), List.of(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0]))));
        try {
            words(c);
        } finally {
            c.shutdown();
        }
        System.out.println("spymemcached: all words hold");
        System.exit(0);
    }

    static void words(MemcachedClient c) throws Exception {
        check("set", c.set("a", 0, "one").get());
        check("get", "one".equals(c.get("a")));
        check("a miss", c.get("none") == null);
        check("add over", !c.add("a", 0, "two").get());
        check("add", c.add("b", 0, "two").get());
        check("replace", c.replace("b", 0, "three").get());
        check("replace nothing", !c.replace("none", 0, "x").get());
        check("append", c.append("b", "4").get());
        check("prepend", c.prepend("b", "2").get());
        check("appended", "2three4".equals(c.get("b")));

        CASValue<Object> held = c.gets("a");
        check("gets", "one".equals(held.getValue()) && held.getCas() > 0);
        check("cas", c.cas("a", held.getCas(), "uno") == CASResponse.OK);
        check("cas again", c.cas("a", held.getCas(), "dos") == CASResponse.EXISTS);
        check("cas of nothing", c.cas("none", held.getCas(), "x") == CASResponse.NOT_FOUND);

        // Counters are text, and a get returns them as text.
        check("a number", c.set("n", 0, "10").get());
        check("incr", c.incr("n", 5) == 15);
        check("decr", c.decr("n", 20) == 0);
        check("incr nothing", c.incr("none", 1) == -1);
        check("incr with a default", c.incr("fresh", 1, 40) == 40 && c.incr("fresh", 2, 40) == 42);
        check("decr with a default", c.decr("fresh2", 1, 7, 100) == 7 && c.decr("fresh2", 3, 7, 100) == 4);

        // Flags carry the types.
        Map<String, Object> types = new HashMap<>();
        types.put("t-int", 42);
        types.put("t-long", 1L << 40);
        types.put("t-bytes", new byte[] {0, 1, 2, 13, 10, -1});
        types.put("t-double", 2.5);
        types.put("t-list", new ArrayList<>(Arrays.asList("x", 1)));
        for (Map.Entry<String, Object> type : types.entrySet()) {
            check("set " + type.getKey(), c.set(type.getKey(), 0, type.getValue()).get());
            Object back = c.get(type.getKey());
            boolean same = back instanceof byte[]
                ? Arrays.equals((byte[]) back, (byte[]) type.getValue()) : type.getValue().equals(back);
            check("get " + type.getKey(), same);
        }

        List<String> keys = new ArrayList<>();
        Map<String, Object> expected = new HashMap<>();
        for (int i = 0; i < 300; i++) {
            String key = "many" + i;
            keys.add(key);
            if (i % 3 > 0) {
                expected.put(key, "v" + i);
                check("set many", c.set(key, 0, "v" + i).get());
            }
        }
        check("get of many with misses", c.getBulk(keys).equals(expected));
        check("get of many misses", c.getBulk("no1", "no2", "no3").isEmpty());

        check("touch", c.touch("a", 100).get());
        check("touch nothing", !c.touch("none", 100).get());
        check("get and touch", "uno".equals(c.getAndTouch("a", 100).getValue()));
        check("get nothing and touch", c.getAndTouch("none", 100) == null);
        check("delete", c.delete("a").get());
        check("delete nothing", !c.delete("a").get());
        check("gone", c.get("a") == null);

        // Random bytes, because the client would compress others.
        Random random = new Random(1);
        for (int size : new int[] {0, 1, 8_192, 100_000, 1_000_000}) {
            byte[] value = new byte[size];
            random.nextBytes(value);
            check("set of " + size, c.set("large", 0, value).get());
            check("get of " + size, Arrays.equals((byte[]) c.get("large"), value));
        }

        List<java.util.concurrent.Future<Object>> gets = new ArrayList<>();
        for (int i = 0; i < 1_000; i++) {
            c.set("p" + i % 50, 0, i);
            gets.add(c.asyncGet("p" + i % 50));
        }
        for (int i = 0; i < 1_000; i++) {
            check("what was set just before", Integer.valueOf(i).equals(gets.get(i).get()));
        }
    }
}
