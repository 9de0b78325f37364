package redistest

// This file chooses ports. A server keeps its port while it is down, so another one must not take
// the port meanwhile, not even one of another test binary. Each process therefore has a block of
// ports of its own, and goes through it in turn. The first port of a block is not given to a
// server: the process listens on it, which keeps others away.

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken below those that the system gives to outgoing connections (from 32768 on Linux),
// so that none of the many connections of a test uses the port of a server that is about to
// restart. A cluster node's bus port is in the same range.
const (
	lowestPort  = 11000
	highestPort = 21999
	blockSize   = 250 // ports; a test binary starts up to two hundred servers in a minute
)

// A portBlock is the part of the ports that belongs to this process.
type portBlock struct {
	mu sync.Mutex
	// on the first port; nil until the first use, or if all blocks belong to other processes
	guard net.Listener
	first int
	used  int // ports given since the first use
}

var ownPorts portBlock

// freePort returns a port on which nothing listens. It does not reserve the port against processes
// that do not choose theirs here, so the caller must be ready to try another one.
func freePort(cluster bool) int {
	for {
		port := ownPorts.next()
		if free(port) && (!cluster || free(port+clusterOffset)) {
			return port
		}
	}
}

func (b *portBlock) next() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.guard == nil && !b.take() {
		return lowestPort + rand.IntN(highestPort-lowestPort+1)
	}
	b.used++
	return b.first + 1 + b.used%(blockSize-1)
}

// take looks for a block that belongs to no process.
func (b *portBlock) take() bool {
	for _, block := range rand.Perm((highestPort - lowestPort + 1) / blockSize) {
		first := lowestPort + block*blockSize
		if listener, err := listen(first); err == nil {
			b.guard, b.first = listener, first
			return true
		}
	}
	return false
}

func free(port int) bool {
	listener, err := listen(port)
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}
