package main

import (
	"context"
	"os"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// deep writes 200,000 commands in one pipeline and checks each answer.
func deep(ctx context.Context) {
	r := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	const count = 100_000
	pipe := r.Pipeline()
	for i := 0; i < count; i++ {
		key := strconv.Itoa(i)
		pipe.Set(ctx, key, key, 0)
		pipe.Get(ctx, key)
	}
	answers, err := pipe.Exec(ctx)
	check("a deep pipeline", err == nil && len(answers) == 2*count)
	for i := 0; i < count; i++ {
		check("one of them", answers[2*i+1].(*redis.StringCmd).Val() == strconv.Itoa(i))
	}
}
