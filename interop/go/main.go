// Drives redsync: see ../README.md.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"log"
	"math"
	"os"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	port, key := os.Args[1], os.Args[2]
	server := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	locks := redsync.New(goredis.NewPool(server))
	var mutex *redsync.Mutex

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, ttl, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case "release":
			_, err := mutex.Unlock()
			fmt.Println(answer(err, "released", "not held"))
		case "try":
			mutex = newMutex(locks, key, ttl)
			fmt.Println(answer(mutex.TryLock(), "held", "busy"))
		case "wait":
			mutex = newMutex(locks, key, ttl)
			fmt.Println(answer(mutex.Lock(), "held", "busy"))
		}
	}
}

func newMutex(locks *redsync.Redsync, key, ttl string) *redsync.Mutex {
	expiry, err := time.ParseDuration(ttl + "ms")
	if err != nil {
		log.Fatal(err)
	}
	return locks.NewMutex(key,
		redsync.WithExpiry(expiry),
		redsync.WithTries(math.MaxInt32),
		redsync.WithRetryDelay(10*time.Millisecond),
		// A twentieth of a short expiry, the default, is too little for a busy machine.
		redsync.WithTimeoutFactor(0.5))
}

func answer(err error, yes, no string) string {
	var taken *redsync.ErrTaken
	switch {
	case err == nil:
		return yes
	case errors.As(err, &taken), errors.Is(err, redsync.ErrLockAlreadyExpired):
		return no
	}
	log.Fatal(err)
	return ""
}
