// Sends numbered events with fluent-logger-golang in one of its modes, then ends; exit code 1 when one was refused.
//
//	goclient HOST:PORT MODE TAG COUNT
//
// MODE is seconds | nanoseconds | json (a JSON array instead of msgpack), each with or without "-ack".
// Event i carries {"seq": i} and the time 1700000000+i seconds, plus 1000003*i nanoseconds where the mode keeps them.
package main

import (
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fluent/fluent-logger-golang/fluent"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: goclient HOST:PORT MODE TAG COUNT")
	}
	host, portText, err := net.SplitHostPort(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		log.Fatal(err)
	}
	mode, tag := os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	logger, err := fluent.New(fluent.Config{
		FluentHost:         host,
		FluentPort:         port,
		SubSecondPrecision: strings.HasPrefix(mode, "nanoseconds"),
		RequestAck:         strings.HasSuffix(mode, "-ack"),
		MarshalAsJSON:      strings.HasPrefix(mode, "json"),
		ReadTimeout:        30 * time.Second, // an ack that never comes fails the test instead of hanging it
		WriteTimeout:       30 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	for i := 0; i < count; i++ {
		at := time.Unix(1700000000+int64(i), 1000003*int64(i))
		if err := logger.PostWithTime(tag, at, map[string]any{"seq": i}); err != nil {
			log.Fatalf("event %d: %v", i, err)
		}
	}
	if err := logger.Close(); err != nil {
		log.Fatal(err)
	}
}
