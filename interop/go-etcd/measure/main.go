// Times the lock of etcd's own Go client: see ../../README.md.
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

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

var key = os.Args[2]

// A hold that is waited for longer is late.
const late = 10 * time.Millisecond

func main() {
	client := connect()
	holder, waiter := session(client), session(connect())
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
			times = crowd(client, workers, choice, time.Duration(work)*time.Microsecond, time.Duration(ms)*time.Millisecond)
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

func connect() *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:" + os.Args[1]}})
	check(err)
	return client
}

// A session has one hold of a name at most, so each worker needs its own.
func session(client *clientv3.Client) *concurrency.Session {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	check(err)
	return session
}

func lock(session *concurrency.Session, name string) *concurrency.Mutex {
	mutex := concurrency.NewMutex(session, name)
	check(mutex.Lock(context.Background()))
	return mutex
}

func unlock(mutex *concurrency.Mutex) {
	check(mutex.Unlock(context.Background()))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func free(session *concurrency.Session, rounds int) (times []time.Duration) {
	for range rounds {
		start := time.Now()
		unlock(lock(session, key))
		times = append(times, time.Since(start))
	}
	return
}

// From each release to the moment in which a waiter on another connection holds.
func handoff(holder, waiter *concurrency.Session, rounds int, wait time.Duration) (times []time.Duration) {
	for range rounds {
		held := lock(holder, key)
		granted := make(chan time.Time)
		go func() {
			wanted := lock(waiter, key)
			now := time.Now()
			unlock(wanted)
			granted <- now
		}()
		time.Sleep(wait)
		start := time.Now()
		unlock(held)
		times = append(times, (<-granted).Sub(start))
	}
	return
}

func crowd(client *clientv3.Client, workers int, choice func(*rand.Rand) int, work, limit time.Duration) []time.Duration {
	var all sync.WaitGroup
	var mutex sync.Mutex
	var waits []time.Duration
	var sessions []*concurrency.Session
	for range workers {
		sessions = append(sessions, session(client))
	}
	start := time.Now()
	for worker := range workers {
		all.Go(func() {
			random := rand.New(rand.NewSource(int64(worker)))
			var own []time.Duration
			for time.Since(start) < limit {
				name := fmt.Sprintf("%s-%d", key, choice(random))
				began := time.Now()
				held := lock(sessions[worker], name)
				own = append(own, time.Since(began))
				if work > 0 {
					time.Sleep(work)
				}
				unlock(held)
			}
			mutex.Lock()
			waits = append(waits, own...)
			mutex.Unlock()
		})
	}
	all.Wait()
	elapsed, count := time.Since(start), len(waits)
	for _, session := range sessions {
		check(session.Close())
	}
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
