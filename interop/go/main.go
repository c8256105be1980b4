// Drives redsync or bsm/redislock: see ../README.md. The client comes first.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"os"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// A lock of either client.
type driver interface {
	acquire(ttl time.Duration, wait bool) error
	release() error
}

func main() {
	client, port, key := os.Args[1], os.Args[2], os.Args[3]
	server := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	var lock driver
	switch client {
	case "redsync":
		lock = &byRedsync{locks: redsync.New(goredis.NewPool(server)), key: key}
	case "redislock":
		lock = &byRedislock{locks: redislock.New(server), key: key}
	default:
		log.Fatal(client)
	}

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, ttl, _ := strings.Cut(lines.Text(), " ")
		if command == "release" {
			fmt.Println(answer(lock.release(), "released", "not held"))
			continue
		}
		term, err := time.ParseDuration(ttl + "ms")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer(lock.acquire(term, command == "wait"), "held", "busy"))
	}
}

type byRedsync struct {
	locks *redsync.Redsync
	key   string
	mutex *redsync.Mutex
}

func (lock *byRedsync) acquire(ttl time.Duration, wait bool) error {
	lock.mutex = lock.locks.NewMutex(lock.key,
		redsync.WithExpiry(ttl),
		redsync.WithTries(math.MaxInt32),
		redsync.WithRetryDelay(10*time.Millisecond),
		// A twentieth of a short expiry, the default, is too little for a busy machine.
		redsync.WithTimeoutFactor(0.5))
	if wait {
		return lock.mutex.Lock()
	}
	return lock.mutex.TryLock()
}

func (lock *byRedsync) release() error {
	_, err := lock.mutex.Unlock()
	return err
}

type byRedislock struct {
	locks *redislock.Client
	key   string
	held  *redislock.Lock
}

func (lock *byRedislock) acquire(ttl time.Duration, wait bool) error {
	options := &redislock.Options{}
	ctx, cancel := context.WithTimeout(context.Background(), 24*time.Hour)
	defer cancel()
	if wait {
		// Without a deadline it gives up after the term.
		options.RetryStrategy = redislock.LinearBackoff(10 * time.Millisecond)
	}
	held, err := lock.locks.Obtain(ctx, lock.key, ttl, options)
	if err == nil {
		lock.held = held
	}
	return err
}

func (lock *byRedislock) release() error {
	return lock.held.Release(context.Background())
}

func answer(err error, yes, no string) string {
	var taken *redsync.ErrTaken
	switch {
	case err == nil:
		return yes
	case errors.As(err, &taken), errors.Is(err, redsync.ErrLockAlreadyExpired),
		errors.Is(err, redislock.ErrNotObtained), errors.Is(err, redislock.ErrLockNotHeld):
		return no
	}
	log.Fatal(err)
	return ""
}
