// Drives the lock of etcd's own Go client: see ../README.md.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func main() {
	port, key := os.Args[1], os.Args[2]
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:" + port}})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	var mutex *concurrency.Mutex

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, ttl, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case "release":
			fmt.Println(answer(mutex.Unlock(ctx), "released", "not held"))
		case "try":
			mutex = newMutex(client, key, ttl)
			fmt.Println(answer(mutex.TryLock(ctx), "held", "busy"))
		case "wait":
			mutex = newMutex(client, key, ttl)
			fmt.Println(answer(mutex.Lock(ctx), "held", "busy"))
		}
	}
}

func newMutex(client *clientv3.Client, key, ttl string) *concurrency.Mutex {
	ms, err := strconv.Atoi(ttl)
	if err != nil {
		log.Fatal(err)
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL((ms+999)/1000))
	if err != nil {
		log.Fatal(err)
	}
	return concurrency.NewMutex(session, key)
}

func answer(err error, yes, no string) string {
	switch {
	case err == nil:
		return yes
	case errors.Is(err, concurrency.ErrLocked), errors.Is(err, concurrency.ErrLockReleased):
		return no
	}
	log.Fatal(err)
	return ""
}
