// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures weft-cni against the least that the same work can cost, and
// writes docs/performance.md with the raw samples beside it.
//
// Subject: ADD, then DEL, of a pod with its default network and one more
// (a NetworkAttachmentDefinition), planned by weft-planner from a directory of
// manifests; every call is a process started as a container runtime starts it.
// Floor: the same delegate runs, called directly one after the other (2 ADD, 2 DEL),
// and what one durable record costs (a file of the record's size written, synced,
// renamed, its folder synced).
//
// Subject with an API server: the same pod, planned by weft-planner-kube with a
// kubeconfig for a server that this process runs on loopback (TLS with a CA of its own,
// bearer token). Its floor: the floor above, and the three exchanges that no planner
// can do without (GET pod, GET NAD, PATCH pods/status), by a raw client on a fresh
// connection. The requests of each call are counted.
//
// Subject with weft-agent: the same pod, on a node whose conf the agent published. Its floor
// is the first one: a pod's status has to be written, but by nobody that the runtime waits for.
// The requests are counted, and the agent's memory is read with two populations.
//
// Subject of a plain pod: one with nothing extra, whose annotations the runtime hands over,
// planned by weft-cni itself. Its floor: two delegate runs and the record.
//
// All seven are measured alternately in one run, so that the machine's noise hits all;
// a ratio is that of the medians.
//
// It owns the figures in docs/performance.md. It is no test: what it measures depends
// on the machine, so nothing but a person runs it ("make bench").
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
)

// options are the command line.
type options struct {
	runs   int    // measured runs of each floor and subject
	warmup int    // runs before them that are thrown away
	state  string // folder on the disk to measure; one of the bench's own is made in it
	docs   string // folder of performance.md; "" writes nothing
	micro  bool   // run the packages' benchmarks as well
	check  bool   // a missed target is an error
}

var errMissed = errors.New("a target was missed")

func main() {
	var o options
	flag.IntVar(&o.runs, "runs", 300, "measured `runs` of each floor and subject")
	flag.IntVar(&o.warmup, "warmup", 20, "`runs` before them that are thrown away")
	flag.StringVar(&o.state, "state", ".cache", "`folder` for the state directory, on a real disk")
	flag.StringVar(&o.docs, "docs", "docs", "`folder` that performance.md is written to; empty: only print")
	flag.BoolVar(&o.micro, "micro", true, "run the packages' benchmarks as well")
	flag.BoolVar(&o.check, "check", true, "exit 1 when a target is missed")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	if o.runs < 1 || o.warmup < 0 {
		return errors.New("-runs must be positive and -warmup not negative")
	}
	if err := os.MkdirAll(o.state, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.state, "bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	r, err := measure(ctx, o, dir, out)
	if err != nil {
		return err
	}
	text := r.markdown()
	fmt.Fprintln(out, text)
	if o.docs != "" {
		if err := r.write(o.docs, text); err != nil {
			return err
		}
	}
	if o.check && !r.reached() {
		return errMissed
	}
	return nil
}

// measure does everything that is measured, in dir.
func measure(ctx context.Context, o options, dir string, out io.Writer) (*report, error) {
	r := &report{}
	var err error
	if r.machine, err = inspect(dir); err != nil {
		return nil, err
	}
	fmt.Fprintln(out, "building")
	built, err := build(ctx, filepath.Join(dir, "bin"))
	if err != nil {
		return nil, err
	}
	r.binaries = built.sizes
	if o.micro {
		fmt.Fprintln(out, "running the packages' benchmarks")
		if r.micro, err = microBenchmarks(ctx); err != nil {
			return nil, err
		}
	}
	b, err := newBench(ctx, dir, built)
	if err != nil {
		return nil, err
	}
	defer b.close()
	if r.recordBytes, err = b.learn(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "measuring %d runs\n", o.runs)
	for i := -o.warmup; i < o.runs; i++ {
		s, err := b.sample(ctx, i)
		if err != nil {
			return nil, err
		}
		if i >= 0 {
			r.samples = append(r.samples, s)
		}
	}
	if r.peaks, err = b.peaks(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintln(out, "measuring the agent's memory")
	r.memories, err = b.memories(ctx, dir)
	return r, err
}
