package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const rampShare = 0.1 // of a round, before it is counted

// What was acknowledged between a round's ramp and its end, and the waits of those calls.
type round struct {
	countFrom, end time.Time
	failed         chan error

	mutex  sync.Mutex
	micros []int32
}

func newRound(seconds float64) *round {
	now := time.Now()
	after := func(share float64) time.Time { return now.Add(time.Duration(seconds * share * float64(time.Second))) }
	return &round{
		countFrom: after(rampShare), end: after(1 + rampShare),
		failed: make(chan error, 1), micros: make([]int32, 0, 1<<22),
	}
}

func (r *round) goesOn() bool {
	return time.Now().Before(r.end)
}

func (r *round) count(began time.Time) {
	now := time.Now()
	if now.Before(r.countFrom) || !now.Before(r.end) {
		return
	}
	r.mutex.Lock()
	r.micros = append(r.micros, int32(now.Sub(began).Microseconds()))
	r.mutex.Unlock()
}

// The first failure is what take() returns.
func (r *round) fail(err error) {
	select {
	case r.failed <- err:
	default:
	}
}

func (r *round) result() (string, error) {
	n := len(r.micros)
	if n == 0 {
		return "", errors.New("nothing was acknowledged in this round")
	}
	slices.Sort(r.micros)
	at := func(share float64) float64 { return float64(r.micros[min(n-1, int(float64(n)*share))]) / 1000 }
	return fmt.Sprintf(
		`{"entries_per_s": %.1f, "p50_ms": %.3f, "p99_ms": %.3f, "p999_ms": %.3f, "calls": %d}`,
		float64(n)/r.end.Sub(r.countFrom).Seconds(), at(0.5), at(0.99), at(0.999), n), nil
}
