// through_gomemcache PORT: checks every command of bradfitz/gomemcache; exit 0 if all answers are right.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/bradfitz/gomemcache/memcache"
)

func check(what string, holds bool) {
	if !holds {
		fmt.Println(what, "does not hold")
		os.Exit(1)
	}
}

func main() {
	c := memcache.New("127.0.0.1:" + os.Args[1])
	check("ping", c.Ping() == nil)
	check("set", c.Set(&memcache.Item{Key: "a", Value: []byte("one"), Flags: 4294967295}) == nil)
	item, err := c.Get("a")
	check("get", err == nil && string(item.Value) == "one" && item.Flags == 4294967295)
	_, err = c.Get("none")
	check("a miss", errors.Is(err, memcache.ErrCacheMiss))
	check("add over", errors.Is(c.Add(&memcache.Item{Key: "a"}), memcache.ErrNotStored))
	check("replace", c.Replace(&memcache.Item{Key: "a", Value: []byte("two")}) == nil)
	check("replace nothing", errors.Is(c.Replace(&memcache.Item{Key: "none"}), memcache.ErrNotStored))
	check("append", c.Append(&memcache.Item{Key: "a", Value: []byte("3")}) == nil)
	check("prepend", c.Prepend(&memcache.Item{Key: "a", Value: []byte("1")}) == nil)
	item, err = c.Get("a")
	check("appended", err == nil && string(item.Value) == "1two3")

	item.Value = []byte("swapped")
	check("cas", c.CompareAndSwap(item) == nil)
	check("cas again", errors.Is(c.CompareAndSwap(item), memcache.ErrCASConflict))

	check("a number", c.Set(&memcache.Item{Key: "n", Value: []byte("10")}) == nil)
	number, err := c.Increment("n", 7)
	check("increment", err == nil && number == 17)
	number, err = c.Decrement("n", 20)
	check("decrement", err == nil && number == 0)
	_, err = c.Increment("none", 1)
	check("increment nothing", errors.Is(err, memcache.ErrCacheMiss))

	var keys []string
	for i := 0; i < 300; i++ {
		key := "many" + strconv.Itoa(i)
		keys = append(keys, key)
		if i%3 > 0 {
			check("set many", c.Set(&memcache.Item{Key: key, Value: []byte(key), Flags: uint32(i)}) == nil)
		}
	}
	many, err := c.GetMulti(keys)
	check("get multi", err == nil && len(many) == 200)
	for key, item := range many {
		check("one of many", string(item.Value) == key && key == "many"+strconv.Itoa(int(item.Flags)))
	}

	check("touch", c.Touch("a", 100) == nil)
	check("touch nothing", errors.Is(c.Touch("none", 100), memcache.ErrCacheMiss))
	item, err = c.GetAndTouch("a", 100)
	check("get and touch", err == nil && string(item.Value) == "swapped")
	check("delete", c.Delete("a") == nil)
	check("delete nothing", errors.Is(c.Delete("a"), memcache.ErrCacheMiss))

	for _, size := range []int{0, 1, 8192, 100000, 1000000} {
		value := bytes.Repeat([]byte{'x', '\r', '\n', 0, 255}, size/5)
		check("set large", c.Set(&memcache.Item{Key: "large", Value: value}) == nil)
		item, err = c.Get("large")
		check("get large", err == nil && bytes.Equal(item.Value, value))
	}
	fmt.Println("gomemcache: all words hold")
}
