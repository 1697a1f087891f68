// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// microRuns is how often each of the packages' benchmarks is run: one short run says more
// about what else the machine was doing.
const microRuns = 5

// micro is one of the packages' own benchmarks: a run, or the medians of several.
type micro struct {
	room   string // package path within the module
	name   string
	nanos  float64
	bytes  int64
	allocs int64
	// own are its own figures, by their units.
	own map[string]float64
}

// microBenchmarks runs every benchmark below internal/ and vmistatus/.
func microBenchmarks(ctx context.Context) ([]micro, error) {
	var rooms []string
	for _, root := range []string{"internal", "vmistatus"} {
		found, err := roomsWithBenchmarks(root)
		if err != nil {
			return nil, err
		}
		rooms = append(rooms, found...)
	}
	args := []string{"test", "-mod=readonly", "-run", "^$", "-bench", ".", "-benchmem", "-benchtime", "100ms", "-count", strconv.Itoa(microRuns)}
	cmd := exec.CommandContext(ctx, "go", append(args, rooms...)...)
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run the packages' benchmarks: %w\n%s%s", err, out.Bytes(), errs.Bytes())
	}
	return medians(parseMicro(out.String())), nil
}

// roomsWithBenchmarks are the directories below root that have any, as arguments of
// go test: linking the test binary of every package would take longer than measuring.
func roomsWithBenchmarks(root string) ([]string, error) {
	var rooms []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		room := "./" + filepath.Dir(path)
		if bytes.Contains(b, []byte("\nfunc Benchmark")) && !slices.Contains(rooms, room) {
			rooms = append(rooms, room)
		}
		return err
	})
	return rooms, err
}

// medians makes one of the runs of each benchmark, figure by figure.
func medians(runs []micro) (all []micro) {
	type benchmark struct{ room, name string }
	of := map[benchmark][]micro{}
	var order []benchmark
	for _, m := range runs {
		b := benchmark{m.room, m.name}
		if of[b] == nil {
			order = append(order, b)
		}
		of[b] = append(of[b], m)
	}
	for _, b := range order {
		m := micro{
			room: b.room, name: b.name,
			nanos:  middle(of[b], func(m micro) float64 { return m.nanos }),
			bytes:  middle(of[b], func(m micro) int64 { return m.bytes }),
			allocs: middle(of[b], func(m micro) int64 { return m.allocs }),
			own:    map[string]float64{},
		}
		for unit := range of[b][0].own {
			m.own[unit] = middle(of[b], func(m micro) float64 { return m.own[unit] })
		}
		all = append(all, m)
	}
	return all
}

// middle is the median of one figure; of an even number the greater of two.
func middle[T cmp.Ordered](runs []micro, figure func(micro) T) T {
	values := make([]T, len(runs))
	for i, m := range runs {
		values[i] = figure(m)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// parseMicro reads what go test -bench -benchmem prints.
func parseMicro(out string) []micro {
	var all []micro
	room := ""
	for line := range strings.Lines(out) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "pkg: github.com/weftnet/weft/"); ok {
			room = p
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		m := micro{room: room, name: benchmarkName(fields[0]), own: map[string]float64{}}
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				continue
			}
			switch fields[i+1] {
			case "ns/op":
				m.nanos = value
			case "B/op":
				m.bytes = int64(value)
			case "allocs/op":
				m.allocs = int64(value)
			default:
				m.own[fields[i+1]] = value
			}
		}
		if m.nanos > 0 {
			all = append(all, m)
		}
	}
	return all
}

// benchmarkName drops the number of processors that go test appends.
func benchmarkName(s string) string {
	s = strings.TrimPrefix(s, "Benchmark")
	if i := strings.LastIndexByte(s, '-'); i > 0 {
		if _, err := strconv.Atoi(s[i+1:]); err == nil {
			return s[:i]
		}
	}
	return s
}
