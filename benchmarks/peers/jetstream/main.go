// NATS JetStream under the load of benchmarks/service.py, as far as subjects can say its filters.
//
//	cd benchmarks/peers/jetstream && go run . [-streams 5000] [-rate 2000] [-seconds 30] [-sync=false] [-copies]
//
// Three processes: a server (JetStream in files), readers with a connection each, and a publisher. An event of
// numbers one and other is published as e.<one>.<other>, in an open loop. Reader n wants "one = n OR other = n":
// e.n.* and e.*.n. Filters of one consumer must not overlap, so those are two durable consumers a reader. With
// -copies it is published once for each number instead, as e.<one> and as e.<other>: one consumer a reader. With
// -sync (the default) the server syncs each write before it answers, as fieldfare does. It prints one JSON
// object, whose p50_ms and p99_ms are from when an event was due to its arrival; no event of the first ten
// seconds counts. Where the server takes no more, the publisher waits, up to a minute, and publishes late.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	warm         = 10 * time.Second
	arrivalWait  = 20 * time.Second
	openedAtOnce = 64
	answerWait   = time.Minute
)

var (
	role    = flag.String("role", "", "for the program's own use")
	url     = flag.String("url", "", "for the program's own use")
	streams = flag.Int("streams", 5000, "readers")
	rate    = flag.Int("rate", 2000, "events a second")
	seconds = flag.Int("seconds", 40, "of load")
	synced  = flag.Bool("sync", true, "each write is on disk before it is answered")
	copies  = flag.Bool("copies", false, "an event is published once for each of its numbers")
)

type event struct {
	One    int    `json:"one"`
	Other  int    `json:"other"`
	Number int    `json:"number"`
	DueNs  int64  `json:"due_ns"`
	Pad    string `json:"pad"`
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// serve runs the server until its input ends, and prints where it listens.
func serve() {
	folder := must(os.MkdirTemp("", "jetstream-"))
	defer os.RemoveAll(folder)
	options := &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: folder,
		SyncAlways: *synced, NoSigs: true, NoLog: true, JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 1 << 30,
		// A thousand for a stream, if nothing is said.
		JetStreamLimits: server.JSLimitOpts{DefaultMaxConsumers: -1},
	}
	running := must(server.NewServer(options))
	running.Start()
	if !running.ReadyForConnections(20 * time.Second) {
		log.Fatal("the server does not answer")
	}
	fmt.Println(running.ClientURL())
	io.Copy(io.Discard, os.Stdin)
	running.Shutdown()
}

// filters are those of a reader's consumers.
func filters(reader int) []string {
	if *copies {
		return []string{fmt.Sprintf("e.%d", reader)}
	}
	return []string{fmt.Sprintf("e.%d.*", reader), fmt.Sprintf("e.*.%d", reader)}
}

// subjects are those that an event is published as.
func subjects(one, other int) []string {
	if *copies {
		return []string{fmt.Sprintf("e.%d", one), fmt.Sprintf("e.%d", other)}
	}
	return []string{fmt.Sprintf("e.%d.%d", one, other)}
}

// read opens all readers, says so, and when its input ends prints what came.
func read() {
	var lock sync.Mutex
	latencies, came := []float64{}, map[int]int{}
	wrong, counted := 0, int(warm.Seconds())**rate
	hear := func(reader int) jetstream.MessageHandler {
		return func(message jetstream.Msg) {
			now := time.Now().UnixNano()
			var got event
			if json.Unmarshal(message.Data(), &got) != nil || (got.One != reader && got.Other != reader) {
				log.Fatalf("reader %d got %s", reader, message.Data())
			}
			message.Ack()
			lock.Lock()
			defer lock.Unlock()
			came[got.Number]++
			if got.Number >= counted {
				latencies = append(latencies, float64(now-got.DueNs)/1e6)
			}
		}
	}
	var opening sync.WaitGroup
	slots := make(chan bool, openedAtOnce)
	for reader := range *streams {
		opening.Add(1)
		slots <- true
		go func() {
			defer func() { <-slots; opening.Done() }()
			stream := must(jetstream.New(must(nats.Connect(*url, nats.Timeout(time.Minute)))))
			for at, filter := range filters(reader) {
				context, done := context.WithTimeout(context.Background(), 2*time.Minute)
				consumer := must(stream.CreateConsumer(context, "E", jetstream.ConsumerConfig{
					Durable: fmt.Sprintf("r%d-%d", reader, at), FilterSubject: filter,
					AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverNewPolicy,
				}))
				done()
				must(consumer.Consume(hear(reader)))
			}
		}()
	}
	opening.Wait()
	fmt.Println("open")
	io.Copy(io.Discard, os.Stdin)
	lock.Lock()
	for number := range *rate * *seconds {
		if came[number] != 2 {
			wrong++
		}
	}
	slices.Sort(latencies)
	at := func(share float64) float64 {
		if len(latencies) == 0 {
			return -1
		}
		return latencies[int(share*float64(len(latencies)-1))]
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"p50_ms": at(0.5), "p99_ms": at(0.99), "events": *rate * *seconds, "streams": *streams,
		"equal": wrong == 0, "not_twice": wrong, "synced": *synced, "copies": *copies,
	})
}

// step is by how much the stream of the next event is another: in the end each has had as many.
func step() int {
	divisor := func(a, b int) int {
		for b != 0 {
			a, b = b, a%b
		}
		return a
	}
	found := int(float64(*streams)*0.618) + 1
	for divisor(found, *streams) != 1 {
		found++
	}
	return found
}

func publish() {
	stream := must(jetstream.New(must(nats.Connect(*url)), jetstream.WithPublishAsyncMaxPending(4096)))
	begin, pad, step := time.Now(), strings.Repeat("x", 120), step()
	for number := range *rate * *seconds {
		due := begin.Add(time.Duration(number) * time.Second / time.Duration(*rate))
		if wait := time.Until(due); wait > 0 {
			time.Sleep(max(wait, 2*time.Millisecond))
		}
		one := number * step % *streams
		other := (one + *streams/2) % *streams
		body := must(json.Marshal(event{one, other, number, due.UnixNano(), pad}))
		for _, subject := range subjects(one, other) {
			must(stream.PublishAsync(subject, body, jetstream.WithStallWait(answerWait)))
		}
	}
	<-stream.PublishAsyncComplete()
}

// started is another process of this program, its input, and its first line.
func started(role, url string) (*exec.Cmd, io.WriteCloser, io.Reader, string) {
	self := must(os.Executable())
	child := exec.Command(self, append([]string{"-role", role, "-url", url}, os.Args[1:]...)...)
	child.Stderr = os.Stderr
	input, output := must(child.StdinPipe()), must(child.StdoutPipe())
	if err := child.Start(); err != nil {
		log.Fatal(err)
	}
	var line string
	must(fmt.Fscanln(output, &line))
	return child, input, output, line
}

func main() {
	flag.Parse()
	switch *role {
	case "server":
		serve()
		return
	case "readers":
		read()
		return
	}
	running, end, _, address := started("server", "")
	*url = address
	stream := must(jetstream.New(must(nats.Connect(address))))
	must(stream.CreateStream(context.Background(), jetstream.StreamConfig{
		Name: "E", Subjects: []string{"e.>"}, Storage: jetstream.FileStorage,
	}))
	readers, enough, found, _ := started("readers", address)
	publish()
	time.Sleep(arrivalWait)
	enough.Close()
	io.Copy(os.Stdout, found)
	readers.Wait()
	end.Close()
	running.Wait()
}
