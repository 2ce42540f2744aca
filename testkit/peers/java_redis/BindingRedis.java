// BindingRedis CLIENT PORT RESP: transactions, subscriptions, waits and locks of jedis or lettuce.

import io.lettuce.core.ClientOptions;
import io.lettuce.core.Consumer;
import io.lettuce.core.LMoveArgs;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SetArgs;
import io.lettuce.core.XGroupCreateArgs;
import io.lettuce.core.XReadArgs;
import io.lettuce.core.XReadArgs.StreamOffset;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.args.ListDirection;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.params.XReadGroupParams;
import redis.clients.jedis.params.XReadParams;

public class BindingRedis {
    static final String UNLOCK =
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    static final ExecutorService THREADS = Executors.newCachedThreadPool();
    static int port;
    static boolean resp3;

    static void check(String what, boolean holds) {
        if (!holds) {
            new Exception(what + " does not hold").printStackTrace();
            System.exit(1);
        }
    }

    public static void main(String[] arguments) throws Exception {
        port = Integer.parseInt(arguments[1]);
        resp3 = arguments[2].equals("3");
        if (arguments[0].equals("jedis")) jedis();
        else lettuce();
        System.out.println(arguments[0] + ": all holds");
        System.exit(0);
    }

    /** What a subscriber has heard, in its order. */
    static class Heard {
        final BlockingQueue<String> all = new LinkedBlockingQueue<>();

        void expect(String... words) throws Exception {
            for (String word : words) {
                String next = all.poll(20, TimeUnit.SECONDS);
                check("heard is " + next + ", not " + word, word.equals(next));
            }
        }
    }

    static Jedis connect() {
        var config = DefaultJedisClientConfig.builder().socketTimeoutMillis(20_000);
        config.protocol(resp3 ? RedisProtocol.RESP3 : RedisProtocol.RESP2);
        return new Jedis(new HostAndPort("127.0.0.1", port), config.build());
    }

    static void jedis() throws Exception {
        Jedis r = connect();
        Jedis other = connect();
        for (long n = 1; n <= 50; n++) {
            Transaction transaction = r.multi();
            transaction.incr("{tx}n");
            transaction.rpush("{tx}l", "x");
            check("a transaction", transaction.exec().equals(List.of(n, n)));
        }
        Transaction transaction = r.multi();
        transaction.set("{tx}t", "text");
        transaction.incr("{tx}t");
        transaction.set("{tx}after", "1");
        List<Object> results = transaction.exec();
        check("its error", results.get(1) instanceof JedisDataException && results.get(2).equals("OK"));
        transaction = r.multi();
        transaction.set("{tx}none", "1");
        check("discard", transaction.discard().equals("OK") && r.get("{tx}none") == null);

        Heard heard = new Heard();
        JedisPubSub listener = new JedisPubSub() {
            public void onMessage(String channel, String text) { heard.all.add(channel + " " + text); }
            public void onPMessage(String pattern, String channel, String text) { heard.all.add(pattern + " " + text); }
            public void onSubscribe(String channel, int count) { heard.all.add("+" + channel + count); }
            public void onUnsubscribe(String channel, int count) { heard.all.add("-" + channel + count); }
            public void onPSubscribe(String pattern, int count) { heard.all.add("+" + pattern + count); }
            public void onPUnsubscribe(String pattern, int count) { heard.all.add("-" + pattern + count); }
        };
        Jedis subscriber = connect();
        Future<?> end = THREADS.submit(() -> subscriber.subscribe(listener, "news", "sport"));
        heard.expect("+news1", "+sport2");
        for (int n = 0; n < 200; n++) check("publish", r.publish("news", "" + n) == 1);
        for (int n = 0; n < 200; n++) heard.expect("news " + n);
        listener.psubscribe("s*");
        heard.expect("+s*3");
        listener.unsubscribe("news", "sport");
        heard.expect("-news2", "-sport1");
        r.publish("news", "not for it");
        r.publish("sport", "1:0");
        heard.expect("s* 1:0");
        listener.punsubscribe();
        heard.expect("-s*0");
        end.get(20, TimeUnit.SECONDS);
        check("an ordinary client again", subscriber.set("{sub}k", "v").equals("OK"));

        Future<?> echo = THREADS.submit(() -> {
            for (int n = 0; n < 200; n++) other.rpush("{w}back", other.blpop(15, "{w}there", "{w}more").get(1));
        });
        for (int n = 0; n < 200; n++) {
            r.rpush("{w}there", "" + n);
            check("there and back", r.blpop(15, "{w}back").equals(List.of("{w}back", "" + n)));
        }
        echo.get(20, TimeUnit.SECONDS);
        Future<?> moved = THREADS.submit(() -> other.rpush("{w}from", "it"));
        check("blmove", r.blmove("{w}from", "{w}to", ListDirection.LEFT, ListDirection.RIGHT, 15).equals("it"));
        moved.get();
        Future<?> added = THREADS.submit(() -> other.zadd("{w}z", 1.5, "m"));
        check("bzpopmin", r.bzpopmin(15, "{w}z").getValue().getScore() == 1.5);
        added.get();
        StreamEntryID id = new StreamEntryID("1-1");
        Future<?> entry = THREADS.submit(() -> other.xadd("{w}x", id, Map.of("f", "v")));
        var read = r.xread(XReadParams.xReadParams().block(15_000), Map.of("{w}x", new StreamEntryID("0-0")));
        check("xread", read.get(0).getValue().get(0).getID().equals(id));
        entry.get();
        r.xgroupCreate("{w}x", "g", new StreamEntryID("0-0"), false);
        var group = r.xreadGroup("g", "c", XReadGroupParams.xReadGroupParams().block(15_000),
            Map.of("{w}x", StreamEntryID.UNRECEIVED_ENTRY));
        check("xreadgroup", group.get(0).getValue().get(0).getID().equals(id));
        check("in vain", r.blpop(0.05, "{w}none") == null);

        locks(() -> {
            Jedis one = connect();
            return new Locker() {
                boolean take(String token) {
                    return "OK".equals(one.set("{lock}held", token, SetParams.setParams().nx().px(20_000)));
                }
                long give(String token) {
                    return (Long) one.eval(UNLOCK, List.of("{lock}held"), List.of(token));
                }
                String sum() { return one.get("{lock}sum"); }
                void sum(String value) { one.set("{lock}sum", value); }
            };
        });
    }

    static void lettuce() throws Exception {
        RedisClient client = RedisClient.create(RedisURI.builder().withHost("127.0.0.1").withPort(port).build());
        ProtocolVersion version = resp3 ? ProtocolVersion.RESP3 : ProtocolVersion.RESP2;
        client.setOptions(ClientOptions.builder().protocolVersion(version).build());
        StatefulRedisConnection<String, String> connection = client.connect();
        var r = connection.sync();
        var other = client.connect().sync();
        for (long n = 1; n <= 50; n++) {
            r.multi();
            r.incr("{tx}n");
            r.rpush("{tx}l", "x");
            var results = r.exec();
            check("a transaction", results.get(0).equals(n) && results.get(1).equals(n));
        }
        r.multi();
        r.set("{tx}none", "1");
        check("discard", r.discard().equals("OK") && r.get("{tx}none") == null);

        Heard heard = new Heard();
        var subscriber = client.connectPubSub();
        subscriber.addListener(new RedisPubSubAdapter<String, String>() {
            public void message(String channel, String text) { heard.all.add(channel + " " + text); }
            public void message(String pattern, String channel, String text) { heard.all.add(pattern + " " + text); }
            public void unsubscribed(String channel, long count) { heard.all.add("-" + channel + count); }
        });
        var sub = subscriber.sync();
        sub.subscribe("news", "sport");
        for (int n = 0; n < 200; n++) check("publish", r.publish("news", "" + n) == 1);
        for (int n = 0; n < 200; n++) heard.expect("news " + n);
        sub.psubscribe("s*");
        sub.unsubscribe("news", "sport");
        heard.expect("-news2", "-sport1");
        r.publish("news", "not for it");
        r.publish("sport", "1:0");
        heard.expect("s* 1:0");
        sub.punsubscribe("s*");
        // Redis allows a subscriber in RESP2 only these; RESP3 allows everything at any time.
        if (resp3) check("in between", sub.set("{sub}k", "v").equals("OK"));

        Future<?> echo = THREADS.submit(() -> {
            for (int n = 0; n < 200; n++) other.rpush("{w}back", other.blpop(15, "{w}there", "{w}more").getValue());
        });
        for (int n = 0; n < 200; n++) {
            r.rpush("{w}there", "" + n);
            check("there and back", r.blpop(15, "{w}back").getValue().equals("" + n));
        }
        echo.get(20, TimeUnit.SECONDS);
        Future<?> moved = THREADS.submit(() -> other.rpush("{w}from", "it"));
        check("blmove", r.blmove("{w}from", "{w}to", LMoveArgs.Builder.leftRight(), 15).equals("it"));
        moved.get();
        Future<?> added = THREADS.submit(() -> other.zadd("{w}z", 1.5, "m"));
        check("bzpopmin", r.bzpopmin(15, "{w}z").getValue().getScore() == 1.5);
        added.get();
        Future<?> entry = THREADS.submit(() -> other.xadd("{w}x", Map.of("f", "v")));
        var read = r.xread(XReadArgs.Builder.block(15_000), StreamOffset.from("{w}x", "0"));
        check("xread", read.get(0).getBody().equals(Map.of("f", "v")));
        entry.get();
        r.xgroupCreate(StreamOffset.from("{w}x", "0"), "g");
        var group = r.xreadgroup(Consumer.from("g", "c"), XReadArgs.Builder.block(15_000),
            StreamOffset.lastConsumed("{w}x"));
        check("xreadgroup", group.get(0).getBody().equals(Map.of("f", "v")));
        check("in vain", r.blpop(0.05, "{w}none") == null);

        locks(() -> {
            var one = client.connect().sync();
            return new Locker() {
                boolean take(String token) {
                    return "OK".equals(one.set("{lock}held", token, SetArgs.Builder.nx().px(20_000)));
                }
                long give(String token) {
                    return one.<Long>eval(UNLOCK, ScriptOutputType.INTEGER, new String[] {"{lock}held"}, token);
                }
                String sum() { return one.get("{lock}sum"); }
                void sum(String value) { one.set("{lock}sum", value); }
            };
        });
    }

    abstract static class Locker {
        abstract boolean take(String token);
        abstract long give(String token);
        abstract String sum();
        abstract void sum(String value);
    }

    /** Several clients add to one number; without the lock some of the sums would be lost. */
    static void locks(Callable<Locker> connect) throws Exception {
        List<Future<?>> all = new ArrayList<>();
        for (int at = 0; at < 3; at++) {
            Locker one = connect.call();
            String name = at + "-";
            all.add(THREADS.submit(() -> {
                for (int n = 0; n < 10; n++) {
                    while (!one.take(name + n)) Thread.onSpinWait();
                    String sum = one.sum();
                    one.sum("" + (sum == null ? 1 : Integer.parseInt(sum) + 1));
                    check("it is given back", one.give(name + n) == 1);
                }
            }));
        }
        for (Future<?> one : all) one.get(60, TimeUnit.SECONDS);
        Locker one = connect.call();
        check("the sum", one.sum().equals("30"));
        check("one takes it", one.take("once") && !one.take("twice"));
        check("another does not give it", one.give("another") == 0);
    }
}
