// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What the issues "The main job on a real kernel", "Against an API server, and before
// anything runs" and "The agent" promise.
const (
	maxRatio       = 2.1
	maxAPIRatio    = 2.8
	maxAgentRatio  = 1.65
	maxPlainRatio  = 1.75
	maxAddRequests = 3
	maxDelRequests = 0
	maxAgentWrites = 1
	maxBurstBytes  = 10 << 20
	maxPluginBytes = 5 << 20
	maxPeakBytes   = 12 << 20
	maxPlan100     = time.Millisecond
	maxMerge       = 20 * time.Microsecond
	maxMergeAllocs = 100
	maxSteadyCore  = 1.0 // percent
	maxSteadyBytes = 20 << 10

	plan100Room, plan100Name = "internal/cni/plan", "Plan100"
	mergeRoom, mergeName     = "vmistatus", "Merge10NICs40Records"
	steadyRoom, steadyName   = "internal/vm/report", "Steady500"
)

// Figures of the benchmark steadyName, by their units.
const (
	steadyCore, steadyBytes, steadyWrites = "%core", "B/machine", "writes"
)

// report is everything that was measured.
type report struct {
	machine     machine
	binaries    []binary
	recordBytes int
	samples     []sample
	peaks       []peak
	memories    []agentMemory
	micro       []micro
}

// target is one promise and what was found.
type target struct {
	what, limit, found string
	reached            bool
}

// series is one duration of every sample.
func (r *report) series(of func(sample) time.Duration) []time.Duration {
	out := make([]time.Duration, 0, len(r.samples))
	for _, s := range r.samples {
		out = append(out, of(s))
	}
	slices.Sort(out)
	return out
}

// quantile is the nearest-rank quantile q (0 to 1) of sorted values.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// ratio is that of the medians, 0 when nothing was measured.
func (r *report) ratio(subject, floor func(sample) time.Duration) float64 {
	below := quantile(r.series(floor), 0.5)
	if below == 0 {
		return 0
	}
	return float64(quantile(r.series(subject), 0.5)) / float64(below)
}

// least are the ratios that there would be if weft-cni and weft-planner did nothing.
func (r *report) least() (agent, manifests, plain float64) {
	const starts = 4 // in sample.delegates
	more := func(s sample, n int) time.Duration { return s.delegates * time.Duration(n) / starts }
	agent = r.ratio(func(s sample) time.Duration { return s.floor() + more(s, 2) }, sample.floor)
	manifests = r.ratio(func(s sample) time.Duration { return s.floor() + more(s, 3) }, sample.floor)
	plainFloor := func(s sample) time.Duration { return s.plainFloor }
	return agent, manifests, r.ratio(func(s sample) time.Duration { return s.plainFloor + more(s, 2) }, plainFloor)
}

// most is the largest count of any sample, -1 when nothing was measured.
func (r *report) most(of func(sample) int) int {
	most := -1
	for _, s := range r.samples {
		most = max(most, of(s))
	}
	return most
}

// targets are the promises; one that was not measured is not reached.
func (r *report) targets() []target {
	ratio, apiRatio := r.ratio(sample.subject, sample.floor), r.ratio(sample.apiSubject, sample.apiFloor)
	agentRatio := r.ratio(sample.agent, sample.floor)
	plainRatio := r.ratio(sample.plain, func(s sample) time.Duration { return s.plainFloor })
	adds := r.most(func(s sample) int { return s.addRequests })
	dels := r.most(func(s sample) int { return s.delRequests })
	writes := r.most(func(s sample) int { return s.agentAddWrites })
	agentDels := r.most(func(s sample) int { return s.agentDelRequests })
	out := []target{
		{
			what:  "ADD + DEL of a default network and one more, against the floor, at the median",
			limit: fmt.Sprintf("≤ %.1f", maxRatio), found: fmt.Sprintf("%.2f", ratio), reached: ratio > 0 && ratio <= maxRatio,
		},
		{
			what:  "the same with an API server, against its floor, at the median",
			limit: fmt.Sprintf("≤ %.1f", maxAPIRatio), found: fmt.Sprintf("%.2f", apiRatio), reached: apiRatio > 0 && apiRatio <= maxAPIRatio,
		},
		{
			what:  "the same with weft-agent, against the floor, at the median",
			limit: fmt.Sprintf("≤ %.2f", maxAgentRatio), found: fmt.Sprintf("%.2f", agentRatio), reached: agentRatio > 0 && agentRatio <= maxAgentRatio,
		},
		{
			what:  "ADD + DEL of a pod with nothing extra, planned by weft-cni itself, against its floor, at the median",
			limit: fmt.Sprintf("≤ %.2f", maxPlainRatio), found: fmt.Sprintf("%.2f", plainRatio), reached: plainRatio > 0 && plainRatio <= maxPlainRatio,
		},
		// An ADD without a request did not ask the server, and proves nothing.
		requestsTarget("API requests of one ADD", adds, maxAddRequests, adds > 0),
		requestsTarget("API requests of one DEL", dels, maxDelRequests, dels >= 0),
		requestsTarget("pod writes of one ADD with weft-agent", writes, maxAgentWrites, writes > 0),
		requestsTarget("API requests of one DEL with weft-agent", agentDels, maxDelRequests, agentDels >= 0),
	}
	out = append(out, r.memoryTargets()...)
	for _, b := range r.binaries {
		if b.name == "weft-cni" {
			out = append(out, target{"weft-cni, stripped", "≤ " + mib(maxPluginBytes), mib(b.size), b.size <= maxPluginBytes})
		}
	}
	for _, p := range r.peaks {
		if p.verb == "ADD" {
			out = append(out, target{"weft-cni's own memory in that ADD (VmHWM)", "≤ " + mib(maxPeakBytes), mib(p.bytes), p.bytes <= maxPeakBytes})
		}
	}
	out = append(out, r.microTargets()...)
	return append(out, r.driverTargets()...)
}

// microTargets are those of the packages' own benchmarks.
func (r *report) microTargets() []target {
	plan := target{"planning 100 networks", "≤ 1 ms", "not measured", false}
	merge := target{"merging the status of a machine with 10 NICs and 40 guest records", "< 20 µs, < 100 allocations", "not measured", false}
	const steady = "500 virtual machines on a node, of which nothing changes: "
	core := target{steady + "weft-agent's share of a core", fmt.Sprintf("< %.0f %%", maxSteadyCore), "not measured", false}
	kept := target{steady + "its memory for each", fmt.Sprintf("< %d KiB", maxSteadyBytes>>10), "not measured", false}
	writes := target{steady + "API writes", "0", "not measured", false}
	for _, m := range r.micro {
		took := time.Duration(m.nanos)
		switch {
		case m.room == plan100Room && m.name == plan100Name:
			plan.found, plan.reached = millis(took), took <= maxPlan100
		case m.room == mergeRoom && m.name == mergeName:
			merge.found = fmt.Sprintf("%.1f µs, %d allocations", m.nanos/1e3, m.allocs)
			merge.reached = took < maxMerge && m.allocs < maxMergeAllocs
		case m.room == steadyRoom && m.name == steadyName:
			core.measured(m.own, steadyCore, "%.2f %%", 1, maxSteadyCore)
			kept.measured(m.own, steadyBytes, "%.1f KiB", 1<<10, maxSteadyBytes)
			writes.measured(m.own, steadyWrites, "%.0f", 1, 1)
		}
	}
	return []target{plan, merge, core, kept, writes}
}

// measured takes a figure, if it is there: it has to be below the limit.
func (t *target) measured(own map[string]float64, name, format string, unit, limit float64) {
	if v, ok := own[name]; ok {
		t.found, t.reached = fmt.Sprintf(format, v/unit), v < limit
	}
}

// memoryTargets are those of the agent.
func (r *report) memoryTargets() (out []target) {
	for _, load := range loads() {
		kept := target{
			what:  fmt.Sprintf("weft-agent's memory with %d pods and %d networks (RssAnon)", load.pods, load.networks),
			limit: "< " + mib(load.limit), found: "not measured",
		}
		burst := target{what: fmt.Sprintf("the same, more of it during %d ADDs", burstSize), limit: "< " + mib(maxBurstBytes), found: "not measured"}
		for _, m := range r.memories {
			if m.pods == load.pods && m.networks == load.networks {
				kept.found, kept.reached = mib(m.settled), m.settled < load.limit
				burst.found, burst.reached = mib(m.burst), m.burst < maxBurstBytes
			}
		}
		out = append(out, kept, burst)
	}
	return out
}

func requestsTarget(what string, found, limit int, measured bool) target {
	t := target{what: what + ", the most of any sample", limit: fmt.Sprintf("≤ %d", limit), found: "not measured"}
	if limit == 0 {
		t.limit = "0"
	}
	if measured {
		t.found, t.reached = strconv.Itoa(found), found <= limit
	}
	return t
}

func (r *report) reached() bool {
	return !slices.ContainsFunc(r.targets(), func(t target) bool { return !t.reached })
}

// markdown is docs/performance.md.
func (r *report) markdown() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Performance\n")
	line("Written by `make bench` (`test/bench`); the raw samples are in [performance/samples.csv](performance/samples.csv).\n")
	line("| promise | limit | measured | |\n|---|---|---|---|")
	for _, t := range r.targets() {
		mark := "reached"
		if !t.reached {
			mark = "**missed**"
		}
		line("| %s | %s | %s | %s |", t.what, t.limit, t.found, mark)
	}
	line("\n## What is compared\n")
	line("*Subject*: `weft-cni` ADD, then DEL, of a pod with its default network and one NetworkAttachmentDefinition, planned by `weft-planner`")
	line("from a directory of manifests. Seven processes: two `weft-cni`, one `weft-planner`, four delegate runs. *Floor*: the same four")
	line("delegate runs and nothing around them, plus one durable record (a file of %d bytes, the size of the real one, written, synced,", r.recordBytes)
	line("renamed, its folder synced). The delegate is a compiled program that does nothing (`test/bench/noop`), so a real plugin's own time,")
	line("which is the same on both sides, would bring the ratio nearer to 1. All programs are copied to where they are run from, as an")
	line("installer does it.\n")
	line("*Subject with an API server*: the same pod, planned by `weft-planner-kube` with a `kubeconfig`. The server is that of the tests")
	line("(`internal/kube/kubetest`), run by the measuring program on loopback: TLS with a CA of its own, a bearer token. *Its floor*: the floor")
	line("above, plus the three exchanges that no planner can do without (GET pod, GET NAD, PATCH pods/status with the bytes that the subject")
	line("sends), by a raw client that decodes nothing, on one fresh connection with a full handshake.\n")
	line("*Subject with weft-agent*: the same pod on a node of its own: a running `weft-agent`, an API server as above, a primary conf, and")
	line("the conf that the agent published. *Its floor* is the first one; writing the status is the subject's own matter. The pod is one")
	line("that the agent knows and that has no status yet. Writes are counted until ADD answers, a DEL's requests until the agent saw it.\n")
	line("*Plain subject*: a pod with nothing extra, whose annotations the runtime hands over, planned by `weft-cni` itself: four processes.")
	line("*Its floor*: the two delegate runs, plus one durable record of the same size as above.\n")
	line("All seven are measured alternately in one run of the program, in the reverse order in every other sample. A ratio is that of the medians.\n")
	r.timesTable(line)
	agent, manifests, plain := r.least()
	line("\nSo many processes that do nothing, with the record, are already %.2f of the floor for the subject with weft-agent (six processes),", agent)
	line("%.2f for the first subject (seven) and %.2f of the plain floor for the plain subject (four). What a ratio has above that is Weft's own.", manifests, plain)
	line("\n## Size and memory\n\n| program | size, stripped |\n|---|---|")
	for _, p := range r.binaries {
		line("| %s | %s |", p.name, mib(p.size))
	}
	line("\nMemory is VmHWM of the `weft-cni` process itself, read from `/proc` while the kernel holds it just before its exit")
	line("(PTRACE_O_TRACEEXIT); the largest of %d runs. Planner and delegates are not in it.\n", peakRuns)
	line("| verb | VmHWM |\n|---|---|")
	for _, p := range r.peaks {
		line("| %s | %s |", p.verb, mib(p.bytes))
	}
	line("\nThe agent's memory is RssAnon of a fresh agent once it no longer falls for %s; then %d pods are added by `weft-cni`, %d calls at", settleTime, burstSize, burstWidth)
	line("a time, and the most above it is read every millisecond. Pods have about 6 KiB, networks about 350 bytes.\n")
	line("| pods | networks | RssAnon | more during the ADDs |\n|---|---|---|---|")
	for _, m := range r.memories {
		line("| %d | %d | %s | %s |", m.pods, m.networks, mib(m.settled), mib(m.burst))
	}
	r.microTable(line)
	m := r.machine
	line("\n## Machine\n\n%d cores (%s), Linux %s, state directory on %s with fsync on, Go %s. Load average before the run: %s", m.cores, m.cpu, m.kernel, m.fileSystem, m.golang, m.load)
	line("(beyond a fraction of the cores, other work took part in every figure above).")
	return b.String()
}

func (r *report) timesTable(line func(string, ...any)) {
	line("| %d runs | p10 | p50 | p90 | p99 |\n|---|---|---|---|---|", len(r.samples))
	for _, row := range []struct {
		name string
		of   func(sample) time.Duration
	}{
		{"floor: four delegate runs", func(s sample) time.Duration { return s.delegates }},
		{"floor: one durable record", func(s sample) time.Duration { return s.record }},
		{"**floor**", sample.floor},
		{"subject: ADD", func(s sample) time.Duration { return s.add }},
		{"subject: DEL", func(s sample) time.Duration { return s.del }},
		{"**subject**", sample.subject},
		{"subject minus floor of the same sample", func(s sample) time.Duration { return s.subject() - s.floor() }},
		{"API floor: three exchanges", func(s sample) time.Duration { return s.exchanges }},
		{"**API floor** (floor and exchanges)", sample.apiFloor},
		{"API subject: ADD", func(s sample) time.Duration { return s.apiAdd }},
		{"API subject: DEL", func(s sample) time.Duration { return s.apiDel }},
		{"**API subject**", sample.apiSubject},
		{"agent subject: ADD", func(s sample) time.Duration { return s.agentAdd }},
		{"agent subject: DEL", func(s sample) time.Duration { return s.agentDel }},
		{"**agent subject**", sample.agent},
		{"agent subject minus floor of the same sample", func(s sample) time.Duration { return s.agent() - s.floor() }},
		{"plain floor: two delegate runs and the record", func(s sample) time.Duration { return s.plainFloor }},
		{"plain subject: ADD", func(s sample) time.Duration { return s.plainAdd }},
		{"plain subject: DEL", func(s sample) time.Duration { return s.plainDel }},
		{"**plain subject**", sample.plain},
		{"API subject minus API floor of the same sample", func(s sample) time.Duration { return s.apiSubject() - s.apiFloor() }},
	} {
		v := r.series(row.of)
		line("| %s | %s | %s | %s | %s |", row.name,
			millis(quantile(v, 0.1)), millis(quantile(v, 0.5)), millis(quantile(v, 0.9)), millis(quantile(v, 0.99)))
	}
}

func (r *report) microTable(line func(string, ...any)) {
	if len(r.micro) == 0 {
		return
	}
	line("\n## The packages' own benchmarks\n\nEach figure is the median of %d runs.\n\n| package | benchmark | time | memory | allocations |\n|---|---|---|---|---|", microRuns)
	for _, m := range r.micro {
		line("| %s | %s | %.1f µs | %d B | %d |", m.room, m.name, m.nanos/1e3, m.bytes, m.allocs)
	}
	line("\n%s is one look at every machine of a node: each has a libvirt of its own, in another process, whose time is not counted. The", steadyName)
	line("share of a core is that of a look every two minutes, as without any other setting; it and the memory have the tests' API server in them.")
}

// write puts the page and the samples into docs.
func (r *report) write(docs, text string) error {
	if err := os.MkdirAll(filepath.Join(docs, "performance"), 0o755); err != nil {
		return err
	}
	raw, err := r.csv()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(docs, "performance", "samples.csv"), raw, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(docs, "performance.md"), []byte(text), 0o644)
}

// csv is one line a sample, times in microseconds.
func (r *report) csv() ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	rows := [][]string{{
		"run", "first", "floor_delegates_us", "floor_record_us", "weft_add_us", "weft_del_us",
		"floor_exchanges_us", "weft_api_add_us", "weft_api_del_us", "weft_agent_add_us", "weft_agent_del_us",
		"plain_floor_us", "plain_add_us", "plain_del_us", "api_add_requests", "api_del_requests",
		"agent_add_writes", "agent_add_requests", "agent_del_requests",
	}}
	for i, s := range r.samples {
		first := "subject"
		if s.floorFirst {
			first = "floor"
		}
		row := []string{strconv.Itoa(i + 1), first}
		for _, d := range []time.Duration{s.delegates, s.record, s.add, s.del, s.exchanges, s.apiAdd, s.apiDel, s.agentAdd, s.agentDel, s.plainFloor, s.plainAdd, s.plainDel} {
			row = append(row, strconv.FormatInt(d.Microseconds(), 10))
		}
		for _, n := range []int{s.addRequests, s.delRequests, s.agentAddWrites, s.agentAddRequests, s.agentDelRequests} {
			row = append(row, strconv.Itoa(n))
		}
		rows = append(rows, row)
	}
	if err := w.WriteAll(rows); err != nil {
		return nil, fmt.Errorf("write samples: %w", err)
	}
	return b.Bytes(), nil
}

func mib(n int64) string { return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20)) }

func millis(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
