// Transactions, subscriptions, waits and locks of redis/go-redis.
package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const patience = 20 * time.Second

func binding(ctx context.Context) {
	r := redis.NewClient(options(0))
	transactions(ctx, r)
	subscriptions(ctx, r)
	waits(ctx, r)
	locks(ctx, r)
	fmt.Println("go-redis: all holds")
}

func transactions(ctx context.Context, r *redis.Client) {
	for n := int64(1); n <= 50; n++ {
		var count, length *redis.IntCmd
		_, err := r.TxPipelined(ctx, func(tx redis.Pipeliner) error {
			count = tx.Incr(ctx, "{tx}n")
			length = tx.RPush(ctx, "{tx}l", n)
			return nil
		})
		check("a transaction", err == nil && count.Val() == n && length.Val() == n)
	}
	results, err := r.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.Set(ctx, "{tx}t", "text", 0)
		tx.Incr(ctx, "{tx}t")
		tx.Set(ctx, "{tx}after", "1", 0)
		return nil
	})
	check("its error", err != nil && results[1].Err() != nil && results[2].Err() == nil)
	// One by one, on one connection.
	one := r.Conn()
	defer one.Close()
	say := func(words ...any) string {
		command := redis.NewCmd(ctx, words...)
		_ = one.Process(ctx, command)
		return fmt.Sprint(command.Val())
	}
	check("multi", say("MULTI") == "OK" && say("SET", "{tx}by hand", "1") == "QUEUED")
	check("not yet", errors.Is(r.Get(ctx, "{tx}by hand").Err(), redis.Nil))
	check("exec", say("EXEC") == "[OK]")
	check("again", say("MULTI") == "OK" && say("SET", "{tx}by hand", "2") == "QUEUED")
	check("discard", say("DISCARD") == "OK" && r.Get(ctx, "{tx}by hand").Val() == "1")
}

func subscriptions(ctx context.Context, r *redis.Client) {
	news := r.Subscribe(ctx, "news", "sport")
	next(ctx, news, "*redis.Subscription")
	next(ctx, news, "*redis.Subscription")
	patterns := r.PSubscribe(ctx, "n*")
	next(ctx, patterns, "*redis.Subscription")
	for n := 0; n < 200; n++ {
		check("publish", r.Publish(ctx, "news", n).Val() >= 1)
	}
	for n := 0; n < 200; n++ {
		message := next(ctx, news, "*redis.Message").(*redis.Message)
		check("a message in order", message.Channel == "news" && message.Payload == strconv.Itoa(n))
		message = next(ctx, patterns, "*redis.Message").(*redis.Message)
		check("by its pattern", message.Pattern == "n*" && message.Payload == strconv.Itoa(n))
	}
	check("ping", news.Ping(ctx, "hello") == nil)
	next(ctx, news, "*redis.Pong")
	check("unsubscribe", news.Unsubscribe(ctx, "news") == nil)
	next(ctx, news, "*redis.Subscription")
	r.Publish(ctx, "news", "not for it")
	r.Publish(ctx, "sport", "1:0")
	check("the other channel", next(ctx, news, "*redis.Message").(*redis.Message).Payload == "1:0")
	shard := r.SSubscribe(ctx, "shard")
	next(ctx, shard, "*redis.Subscription")
	r.SPublish(ctx, "shard", "one")
	check("a shard channel", next(ctx, shard, "*redis.Message").(*redis.Message).Payload == "one")
	check("all close", news.Close() == nil && patterns.Close() == nil && shard.Close() == nil)
}

// Returns what the subscriber hears next, which is of this kind.
func next(ctx context.Context, from *redis.PubSub, kind string) any {
	heard, err := from.ReceiveTimeout(ctx, patience)
	check(fmt.Sprint("heard is ", heard, err, ", and a ", kind), fmt.Sprintf("%T", heard) == kind)
	return heard
}

func waits(ctx context.Context, r *redis.Client) {
	var echo sync.WaitGroup
	echo.Add(1)
	go func() {
		defer echo.Done()
		for n := 0; n < 200; n++ {
			got := r.BLPop(ctx, patience, "{w}there", "{w}more").Val()
			check("it comes there", len(got) == 2)
			r.RPush(ctx, "{w}back", got[1])
		}
	}()
	for n := 0; n < 200; n++ {
		r.RPush(ctx, "{w}there", n)
		got := r.BLPop(ctx, patience, "{w}back").Val()
		check("and back", len(got) == 2 && got[1] == strconv.Itoa(n))
	}
	echo.Wait()
	// The other side of each may come before or after the wait begins.
	go r.RPush(ctx, "{w}from", "it")
	check("blmove", r.BLMove(ctx, "{w}from", "{w}to", "LEFT", "RIGHT", patience).Val() == "it")
	go r.ZAdd(ctx, "{w}z", redis.Z{Score: 1.5, Member: "m"})
	check("bzpopmin", r.BZPopMin(ctx, patience, "{w}z").Val().Score == 1.5)
	go r.XAdd(ctx, &redis.XAddArgs{Stream: "{w}x", ID: "1-1", Values: []string{"f", "v"}})
	read := r.XRead(ctx, &redis.XReadArgs{Streams: []string{"{w}x", "0"}, Block: patience}).Val()
	check("xread", len(read) == 1 && read[0].Messages[0].ID == "1-1")
	check("a group", r.XGroupCreate(ctx, "{w}x", "g", "$").Err() == nil)
	go r.XAdd(ctx, &redis.XAddArgs{Stream: "{w}x", ID: "2-1", Values: []string{"f", "w"}})
	read = r.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: "g", Consumer: "c", Streams: []string{"{w}x", ">"}, Block: patience,
	}).Val()
	check("xreadgroup", len(read) == 1 && read[0].Messages[0].ID == "2-1")
	check("in vain", errors.Is(r.Do(ctx, "BLPOP", "{w}none", "0.05").Err(), redis.Nil))
}

const unlock = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

// Several clients add to one number; without the lock some of the sums would be lost.
func locks(ctx context.Context, r *redis.Client) {
	script := redis.NewScript(unlock)
	var all sync.WaitGroup
	for at := 0; at < 3; at++ {
		all.Add(1)
		go func(at int) {
			defer all.Done()
			for n := 0; n < 10; n++ {
				token := fmt.Sprint(at, "-", n)
				for !r.SetNX(ctx, "{lock}held", token, patience).Val() {
				}
				sum, _ := r.Get(ctx, "{lock}sum").Int()
				r.Set(ctx, "{lock}sum", sum+1, 0)
				given := script.Run(ctx, r, []string{"{lock}held"}, token).Val()
				check("it is given back", given == int64(1))
			}
		}(at)
	}
	all.Wait()
	check("the sum", r.Get(ctx, "{lock}sum").Val() == "30")
	check("one takes it", r.SetNX(ctx, "{lock}held", "once", patience).Val())
	check("another does not", !r.SetNX(ctx, "{lock}held", "twice", patience).Val())
	check("nor gives it", script.Run(ctx, r, []string{"{lock}held"}, "another").Val() == int64(0))
}
