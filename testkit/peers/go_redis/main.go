// through_go_redis PORT RESP [USER PASSWORD]: checks every answer to redis/go-redis; exit 0 if all are right.
// through_go_redis binding PORT RESP: see binding.go.
// through_go_redis deep PORT: see deep.go.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/redis/go-redis/v9"
)

func check(what string, holds bool) {
	if !holds {
		fmt.Println(what, "does not hold")
		os.Exit(1)
	}
}

func options(db int) *redis.Options {
	resp, _ := strconv.Atoi(os.Args[2])
	o := &redis.Options{Addr: "127.0.0.1:" + os.Args[1], Protocol: resp, DB: db, ClientName: "shopper", PoolSize: 4}
	if len(os.Args) > 4 {
		o.Username, o.Password = os.Args[3], os.Args[4]
	}
	return o
}

func main() {
	ctx := context.Background()
	if os.Args[1] == "binding" {
		os.Args = os.Args[1:]
		binding(ctx)
		return
	}
	if os.Args[1] == "deep" {
		os.Args = os.Args[1:]
		deep(ctx)
		return
	}
	r := redis.NewClient(options(0))
	check("ping", r.Ping(ctx).Val() == "PONG")
	check("the name", r.ClientGetName(ctx).Val() == "shopper")
	check("set", r.Set(ctx, "a", "one", 0).Err() == nil)
	check("get", r.Get(ctx, "a").Val() == "one")
	check("a miss", errors.Is(r.Get(ctx, "none").Err(), redis.Nil))
	check("incr", r.IncrBy(ctx, "n", 7).Val() == 7)
	check("a hash", r.HSet(ctx, "h", "f1", "1", "f2", "2").Val() == 2)
	check("its fields", len(r.HGetAll(ctx, "h").Val()) == 2 && r.HGetAll(ctx, "h").Val()["f2"] == "2")
	check("a sorted set", r.ZAdd(ctx, "z", redis.Z{Score: 1, Member: "a"}, redis.Z{Score: 2.5, Member: "b"}).Val() == 2)
	scores := r.ZRangeWithScores(ctx, "z", 0, -1).Val()
	check("its scores", len(scores) == 2 && scores[1].Score == 2.5)
	check("a stream", r.XAdd(ctx, &redis.XAddArgs{Stream: "x", ID: "1-1", Values: []string{"f", "v"}}).Val() == "1-1")

	var pairs, keys []string
	for i := 0; i < 300; i++ {
		key := "many" + strconv.Itoa(i)
		keys = append(keys, key)
		pairs = append(pairs, key, key)
	}
	check("mset", r.MSet(ctx, pairs).Val() == "OK")
	many := r.MGet(ctx, append(keys, "none")...).Val()
	check("mget", len(many) == 301 && many[17] == "many17" && many[300] == nil)
	check("del", r.Del(ctx, keys...).Val() == 300)
	check("a transaction that watches", r.Watch(ctx, func(tx *redis.Tx) error {
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return pipe.Set(ctx, "a", "1", 0).Err() })
		return err
	}, "a") == nil)
	check("it was executed", r.Del(ctx, "a").Val() == 1)

	pipe := r.Pipeline()
	for _, key := range keys {
		pipe.Set(ctx, key, key, 0)
		pipe.Get(ctx, key)
	}
	answers, err := pipe.Exec(ctx)
	check("a pipeline", err == nil && len(answers) == 600)
	for i, key := range keys {
		check("one of a pipeline", answers[2*i+1].(*redis.StringCmd).Val() == key)
	}

	var count *redis.IntCmd
	_, err = r.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.Set(ctx, "{tx}a", "1", 0)
		count = tx.Incr(ctx, "{tx}a")
		return nil
	})
	check("a transaction", err == nil && count.Val() == 2)
	_, err = r.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		for _, key := range keys {
			tx.Set(ctx, key, "apart", 0)
		}
		return nil
	})
	check("keys apart", err != nil && r.Get(ctx, keys[0]).Val() != "apart")

	script := redis.NewScript("return redis.call('INCRBY', KEYS[1], ARGV[1])")
	for i := 0; i < 8; i++ {
		check("a script", script.Run(ctx, r, []string{"count" + strconv.Itoa(i)}, 5).Val() == int64(5))
	}
	check("flush", r.ScriptFlush(ctx).Err() == nil)
	for i := 0; i < 8; i++ {
		check("the script again", script.Run(ctx, r, []string{"count" + strconv.Itoa(i)}, 5).Val() == int64(10))
	}

	found := map[string]bool{}
	iter := r.Scan(ctx, 0, "many*", 40).Iterator()
	for iter.Next(ctx) {
		check("scan tells once", !found[iter.Val()])
		found[iter.Val()] = true
	}
	check("scan", iter.Err() == nil && len(found) == 300)

	for _, size := range []int{0, 1, 4096, 100000, 5000000} {
		value := bytes.Repeat([]byte{'x', '\r', '\n', 0, 255}, size/5)
		check("set large", r.Set(ctx, "large", value, 0).Err() == nil)
		got, err := r.Get(ctx, "large").Bytes()
		check("get large", err == nil && bytes.Equal(got, value))
	}
	other := redis.NewClient(options(3))
	check("another database", errors.Is(other.Get(ctx, "a").Err(), redis.Nil))
	fmt.Println("go-redis: all words hold")
}
