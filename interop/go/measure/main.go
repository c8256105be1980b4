// Times redsync, or bsm/redislock if the third word says so: see ../../README.md.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"math"
	"math/rand"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var key = os.Args[2]

// A hold that is waited for longer is late.
const late = 10 * time.Millisecond

// A client: takes a lock, and returns what releases it.
type client interface {
	lock(name string) (release func())
}

type redsyncClient struct{ locks *redsync.Redsync }

// The delay between two tries is redsync's own, 50 to 250 ms; only the number of tries is not limited.
func (client redsyncClient) lock(name string) func() {
	mutex := client.locks.NewMutex(name, redsync.WithExpiry(30*time.Second), redsync.WithTries(math.MaxInt32))
	check(mutex.Lock())
	return func() {
		_, err := mutex.Unlock()
		check(err)
	}
}

type redislockClient struct{ locks *redislock.Client }

// The client has no delay of its own: this one is that of its documentation.
func (client redislockClient) lock(name string) func() {
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	// Without a deadline of the context, the wait would be as long as the term of the lock.
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	held, err := client.locks.Obtain(ctx, name, 30*time.Second, options)
	check(err)
	return func() { check(held.Release(context.Background())) }
}

func main() {
	holder, waiter := connect(), connect()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var times []time.Duration
		var rounds, wait, workers, names, readers, work, ms int
		var skew float64
		order, rest, _ := strings.Cut(lines.Text(), " ")
		switch order {
		case "free":
			scan(rest, &rounds)
			times = free(holder, rounds)
		case "handoff":
			scan(rest, &rounds, &wait)
			times = handoff(holder, waiter, rounds, time.Duration(wait)*time.Millisecond)
		case "crowd":
			scan(rest, &workers, &names, &skew, &readers, &work, &ms)
			choice := zipf(names, skew)
			times = crowd(holder, workers, choice, time.Duration(work)*time.Microsecond, time.Duration(ms)*time.Millisecond)
		}
		for _, one := range times {
			fmt.Print(one.Nanoseconds(), " ")
		}
		fmt.Println()
	}
}

func scan(text string, words ...any) {
	if _, err := fmt.Sscan(text, words...); err != nil {
		log.Fatal(text, err)
	}
}

func connect() client {
	server := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	if len(os.Args) > 3 && os.Args[3] == "redislock" {
		return redislockClient{redislock.New(server)}
	}
	return redsyncClient{redsync.New(goredis.NewPool(server))}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func free(locks client, rounds int) (times []time.Duration) {
	for range rounds {
		start := time.Now()
		locks.lock(key)()
		times = append(times, time.Since(start))
	}
	return
}

// From each release to the moment in which a waiter on another connection holds.
func handoff(holder, waiter client, rounds int, wait time.Duration) (times []time.Duration) {
	for range rounds {
		release := holder.lock(key)
		granted := make(chan time.Time)
		go func() {
			release := waiter.lock(key)
			now := time.Now()
			release()
			granted <- now
		}()
		time.Sleep(wait)
		start := time.Now()
		release()
		times = append(times, (<-granted).Sub(start))
	}
	return
}

func crowd(locks client, workers int, choice func(*rand.Rand) int, work, limit time.Duration) []time.Duration {
	var all sync.WaitGroup
	var mutex sync.Mutex
	var waits []time.Duration
	start := time.Now()
	for worker := range workers {
		all.Go(func() {
			random := rand.New(rand.NewSource(int64(worker)))
			var own []time.Duration
			for time.Since(start) < limit {
				name := fmt.Sprintf("%s-%d", key, choice(random))
				began := time.Now()
				release := locks.lock(name)
				own = append(own, time.Since(began))
				if work > 0 {
					time.Sleep(work)
				}
				release()
			}
			mutex.Lock()
			waits = append(waits, own...)
			mutex.Unlock()
		})
	}
	all.Wait()
	elapsed, count := time.Since(start), len(waits)
	slices.Sort(waits)
	prompt, _ := slices.BinarySearch(waits, late+1)
	var sum time.Duration
	for _, wait := range waits {
		sum += wait
	}
	return []time.Duration{
		elapsed / time.Duration(count), sum / time.Duration(count),
		waits[count*95/100], waits[count*99/100], waits[count-1],
		elapsed / time.Duration(max(1, prompt)),
	}
}

// Chooses the nth of the names with a probability that falls with the power of n.
func zipf(names int, skew float64) func(*rand.Rand) int {
	sums, sum := make([]float64, names), 0.0
	for rank := range names {
		sum += math.Pow(float64(rank+1), -skew)
		sums[rank] = sum
	}
	return func(random *rand.Rand) int { return sort.SearchFloat64s(sums, random.Float64()*sum) }
}
