// A load on NATS JetStream: one line of standard input a command, one line of JSON its answer.
//
//	open STREAMS SUBJECTS             makes the streams for `append`, with as many subjects each, instead of earlier ones
//	append SIZE OUTSTANDING SECONDS   one round, to the subjects in turn
//	close                             deletes the streams
//
// The publisher publishes whenever one of OUTSTANDING messages is free, and an acknowledgement frees its message. A
// command that fails answers with {"error": ...}, and the process ends. It ends with its standard input, too.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	replicas   = 3
	maxBytes   = 2 << 30 // of a stream: what is older goes, so that the disk doesn't fill
	stall      = 60 * time.Second
	retryWait  = 100 * time.Millisecond
	answerWait = 5 * time.Second // of a server that may have no leader to ask
)

type bench struct {
	servers  map[string]string // address by name
	conn     *nats.Conn
	streams  []string
	subjects []string
	made     int
}

func main() {
	lines := make(chan string, 16)
	go listen(lines)
	b := &bench{servers: map[string]string{}}
	for _, argument := range os.Args[1:] {
		name, address, _ := strings.Cut(argument, "=")
		b.servers[name] = address
	}
	answer(b.connect(""), `{"ready": true}`)
	for line := range lines {
		result, err := b.command(strings.Fields(line))
		answer(err, result)
	}
}

// Standard input ends when the harness does, however that ends: so does this process then, in a round or not.
func listen(lines chan<- string) {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		lines <- in.Text()
	}
	os.Exit(0)
}

func answer(err error, result string) {
	if err != nil {
		message, _ := json.Marshal(err.Error())
		fmt.Printf("{\"error\": %s}\n", message)
		os.Exit(1)
	}
	fmt.Println(result)
}

func (b *bench) command(words []string) (string, error) {
	if len(words) == 0 {
		return "", errors.New("no command")
	}
	numbers := make([]float64, len(words)-1)
	for i, word := range words[1:] {
		number, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return "", err
		}
		numbers[i] = number
	}
	switch {
	case words[0] == "open" && len(numbers) == 2:
		return b.open(int(numbers[0]), int(numbers[1]))
	case words[0] == "append" && len(numbers) == 3:
		return b.append(int(numbers[0]), int(numbers[1]), numbers[2])
	case words[0] == "close":
		return `{"streams": 0}`, b.close()
	}
	return "", fmt.Errorf("no such command: %s", strings.Join(words, " "))
}

// A connection to the server of that name, or to any of them.
func (b *bench) connect(name string) error {
	if b.conn != nil {
		b.conn.Close()
	}
	addresses := []string{b.servers[name]}
	if name == "" {
		addresses = addresses[:0]
		for _, address := range b.servers {
			addresses = append(addresses, address)
		}
	}
	conn, err := nats.Connect(strings.Join(addresses, ","), nats.IgnoreDiscoveredServers())
	b.conn = conn
	return err
}

func (b *bench) open(streams, subjects int) (string, error) {
	if err := b.close(); err != nil {
		return "", err
	}
	js, err := jetstream.New(b.conn)
	if err != nil {
		return "", err
	}
	leader := ""
	for range streams {
		name := fmt.Sprintf("bench-%d", b.made)
		b.made++
		if leader, err = b.create(js, name); err != nil {
			return "", err
		}
		b.streams = append(b.streams, name)
		for i := range subjects {
			b.subjects = append(b.subjects, fmt.Sprintf("%s.%d", name, i))
		}
	}
	if streams == 1 { // what it publishes needn't go through another server
		err = b.connect(leader)
	}
	return fmt.Sprintf(`{"streams": %d, "subjects": %d}`, streams, len(b.subjects)), err
}

// Makes a stream and returns the name of its leader's server; waits for servers that don't know each other yet.
func (b *bench) create(js jetstream.JetStream, name string) (string, error) {
	config := jetstream.StreamConfig{
		Name: name, Subjects: []string{name + ".*"}, Storage: jetstream.FileStorage, Replicas: replicas,
		MaxBytes: maxBytes, Discard: jetstream.DiscardOld,
	}
	for deadline := time.Now().Add(stall); ; time.Sleep(retryWait) {
		ctx, cancel := context.WithTimeout(context.Background(), answerWait)
		stream, err := js.CreateStream(ctx, config)
		cancel()
		if err == nil {
			return stream.CachedInfo().Cluster.Leader, nil
		}
		if time.Now().After(deadline) {
			return "", err
		}
	}
}

func (b *bench) close() error {
	js, err := jetstream.New(b.conn)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stall)
	defer cancel()
	for _, name := range b.streams {
		if err := js.DeleteStream(ctx, name); err != nil {
			return err
		}
	}
	b.streams, b.subjects = nil, nil
	return nil
}

type slot struct {
	message nats.Msg
	began   time.Time
}

func (b *bench) append(size, outstanding int, seconds float64) (string, error) {
	slots := make([]slot, outstanding)
	owner := make(map[*nats.Msg]*slot, outstanding)
	free := make(chan *slot, outstanding)
	for i := range slots {
		slots[i].message.Data = make([]byte, size)
		owner[&slots[i].message] = &slots[i]
		free <- &slots[i]
	}
	r := newRound(seconds)
	js, err := jetstream.New(b.conn,
		jetstream.WithPublishAsyncMaxPending(outstanding),
		jetstream.WithPublishAsyncAckHandler(func(_ jetstream.JetStream, m *nats.Msg, _ *jetstream.PubAck) {
			s := owner[m]
			r.count(s.began)
			free <- s
		}),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) { r.fail(err) }))
	if err != nil {
		return "", err
	}
	for i := 0; r.goesOn(); i = (i + 1) % len(b.subjects) {
		s, err := take(free, r)
		if err != nil {
			return "", err
		}
		s.message.Subject = b.subjects[i]
		s.began = time.Now()
		if _, err := js.PublishMsgAsync(&s.message); err != nil {
			return "", err
		}
	}
	for range outstanding { // all are acknowledged before the round's figures are read
		if _, err := take(free, r); err != nil {
			return "", err
		}
	}
	return r.result()
}

// A free message; the round's failure if one comes instead.
func take(free <-chan *slot, r *round) (*slot, error) {
	select {
	case s := <-free:
		return s, nil
	default:
	}
	timeout := time.NewTimer(stall)
	defer timeout.Stop()
	select {
	case s := <-free:
		return s, nil
	case err := <-r.failed:
		return nil, err
	case <-timeout.C:
		return nil, fmt.Errorf("nothing was answered for %s", stall)
	}
}
