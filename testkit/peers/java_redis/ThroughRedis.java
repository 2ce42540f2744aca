// ThroughRedis CLIENT PORT RESP [USER PASSWORD]: checks every answer to jedis or lettuce.

import io.lettuce.core.KeyValue;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.protocol.ProtocolVersion;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.resps.ScanResult;

public class ThroughRedis {
    static final String SCRIPT = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
    static final List<String> MANY = new ArrayList<>();
    static String large = "x\r\n".repeat(500_000);

    static void check(String what, boolean holds) {
        if (!holds) {
            System.out.println(what + " does not hold");
            System.exit(1);
        }
    }

    public static void main(String[] arguments) throws Exception {
        for (int n = 0; n < 300; n++) MANY.add("many" + n);
        int port = Integer.parseInt(arguments[1]);
        boolean resp3 = arguments[2].equals("3");
        String[] login = arguments.length > 4 ? new String[] {arguments[3], arguments[4]} : null;
        if (arguments[0].equals("jedis")) jedis(port, resp3, login);
        else lettuce(port, resp3, login);
        System.out.println(arguments[0] + ": all words hold");
        System.exit(0);
    }

    static void jedis(int port, boolean resp3, String[] login) {
        DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder().clientName("shopper");
        config.protocol(resp3 ? RedisProtocol.RESP3 : RedisProtocol.RESP2);
        if (login != null) config.user(login[0]).password(login[1]);
        try (Jedis r = new Jedis(new HostAndPort("127.0.0.1", port), config.build())) {
            check("ping", r.ping().equals("PONG"));
            check("the name", r.clientGetname().equals("shopper"));
            check("set", r.set("a", "one").equals("OK"));
            check("get", r.get("a").equals("one"));
            check("a miss", r.get("none") == null);
            check("incr", r.incrBy("n", 7) == 7);
            check("a hash", r.hset("h", Map.of("f1", "1", "f2", "2")) == 2);
            check("its fields", r.hgetAll("h").equals(Map.of("f1", "1", "f2", "2")));
            check("a sorted set", r.zadd("z", Map.of("a", 1.0, "b", 2.5)) == 2);
            check("its scores", r.zrangeWithScores("z", 0, -1).get(1).getScore() == 2.5);
            List<String> pairs = new ArrayList<>();
            for (String key : MANY) { pairs.add(key); pairs.add(key); }
            check("mset", r.mset(pairs.toArray(new String[0])).equals("OK"));
            check("mget", r.mget(MANY.toArray(new String[0])).equals(MANY));
            check("del", r.del(MANY.toArray(new String[0])) == 300);
            check("watch", r.watch("a").equals("OK"));
            check("unwatch", r.unwatch().equals("OK"));
            Pipeline pipe = r.pipelined();
            List<Response<String>> answers = new ArrayList<>();
            for (String key : MANY) { pipe.set(key, key); answers.add(pipe.get(key)); }
            pipe.sync();
            for (int n = 0; n < 300; n++) check("a pipeline", answers.get(n).get().equals(MANY.get(n)));
            Transaction transaction = r.multi();
            transaction.set("{tx}a", "1");
            transaction.incr("{tx}a");
            check("a transaction", transaction.exec().equals(List.of("OK", 2L)));
            Transaction apart = r.multi();
            for (String key : MANY) apart.set(key, "x");
            String why = "nothing";
            try { apart.exec(); } catch (JedisDataException told) { why = told.getMessage(); }
            check("why not: " + why, why.contains("EXECABORT") && why.contains("The first: CROSSSLOT"));
            String sha = r.scriptLoad(SCRIPT);
            for (int n = 0; n < 8; n++) {
                check("a script", r.evalsha(sha, List.of("count" + n), List.of("5")).equals(5L));
            }
            Set<String> found = new HashSet<>();
            String cursor = ScanParams.SCAN_POINTER_START;
            do {
                ScanResult<String> page = r.scan(cursor, new ScanParams().match("many*").count(40));
                for (String key : page.getResult()) check("scan tells once", found.add(key));
                cursor = page.getCursor();
            } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
            check("scan", found.size() == 300);
            check("set large", r.set("large", large).equals("OK"));
            check("get large", r.get("large").equals(large));
            check("select", r.select(3).equals("OK"));
            check("another database", r.get("a") == null);
        }
    }

    static void lettuce(int port, boolean resp3, String[] login) throws Exception {
        RedisURI.Builder uri = RedisURI.builder().withHost("127.0.0.1").withPort(port).withClientName("shopper");
        if (login != null) uri.withAuthentication(login[0], login[1].toCharArray());
        RedisClient client = RedisClient.create(uri.build());
        ProtocolVersion version = resp3 ? ProtocolVersion.RESP3 : ProtocolVersion.RESP2;
        client.setOptions(ClientOptions.builder().protocolVersion(version).build());
        var connection = client.connect();
        var r = connection.sync();
        check("ping", r.ping().equals("PONG"));
        check("the name", r.clientGetname().equals("shopper"));
        check("set", r.set("a", "one").equals("OK"));
        check("get", r.get("a").equals("one"));
        check("a miss", r.get("none") == null);
        check("a hash", r.hset("h", Map.of("f1", "1", "f2", "2")) == 2);
        check("its fields", r.hgetall("h").equals(Map.of("f1", "1", "f2", "2")));
        Map<String, String> pairs = new HashMap<>();
        for (String key : MANY) pairs.put(key, key);
        check("mset", r.mset(pairs).equals("OK"));
        List<KeyValue<String, String>> values = r.mget(MANY.toArray(new String[0]));
        for (int n = 0; n < 300; n++) check("mget", values.get(n).getValue().equals(MANY.get(n)));
        check("del", r.del(MANY.toArray(new String[0])) == 300);
        check("watch", r.watch("a").equals("OK"));
        check("unwatch", r.unwatch().equals("OK"));
        List<RedisFuture<String>> answers = new ArrayList<>();
        for (String key : MANY) { connection.async().set(key, key); answers.add(connection.async().get(key)); }
        for (int n = 0; n < 300; n++) check("a pipeline", answers.get(n).get().equals(MANY.get(n)));
        r.multi();
        r.set("{tx}a", "1");
        r.incr("{tx}a");
        TransactionResult transaction = r.exec();
        check("a transaction", transaction.get(0).equals("OK") && transaction.get(1).equals(2L));
        String sha = r.scriptLoad(SCRIPT);
        for (int n = 0; n < 8; n++) {
            Long count = r.evalsha(sha, ScriptOutputType.INTEGER, new String[] {"count" + n}, "5");
            check("a script", count == 5L);
        }
        Set<String> found = new HashSet<>();
        ScanIterator<String> scan = ScanIterator.scan(r, ScanArgs.Builder.matches("many*").limit(40));
        while (scan.hasNext()) check("scan tells once", found.add(scan.next()));
        check("scan", found.size() == 300);
        check("set large", r.set("large", large).equals("OK"));
        check("get large", r.get("large").equals(large));
        check("select", r.select(3).equals("OK"));
        check("another database", r.get("a") == null);
    }
}
