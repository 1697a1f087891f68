// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"

	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/internal/vm/libvirttest"
	"github.com/weftnet/weft/internal/vm/source"
	"github.com/weftnet/weft/vmistatus"
	"github.com/weftnet/weft/vmistatus/podcache"
)

// libvirtsVariable has a process serve libvirts instead of running tests: a directory and a number.
const libvirtsVariable = "WEFT_TEST_LIBVIRTS"

func TestMain(m *testing.M) {
	if text := os.Getenv(libvirtsVariable); text != "" {
		if err := serveLibvirts(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func machineName(i int) string { return fmt.Sprint("vm", i) }

// serveLibvirts serves the machines of a node, each on a socket, until nobody reads what it says.
func serveLibvirts(text string) error {
	dir, number, _ := strings.Cut(text, " ")
	n, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	for i := range n {
		name := "ns_" + machineName(i)
		f := libvirttest.New(name)
		// A launcher's XML is of this size.
		f.XML = strings.Replace(f.XML, "<devices>", "<metadata>"+strings.Repeat("<kubevirt/>", 800)+"</metadata><devices>", 1)
		l, err := net.Listen("unix", filepath.Join(dir, machineName(i)))
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go f.Serve(c)
			}
		}()
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// rig is a node with machines: an API server that has their objects, and their libvirts, in a
// process of their own.
type rig struct {
	api    *kubetest.Server
	dir    string
	n      int
	noPods atomic.Bool // are known
}

func newRig(tb testing.TB, n int) *rig {
	tb.Helper()
	dir, err := os.MkdirTemp("", "weft") //nolint:usetesting // a socket's path is short
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", libvirtsVariable, dir, n))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			tb.Error(err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		tb.Fatalf("libvirts say %q, %v", line, err)
	}
	r := &rig{api: kubetest.New(tb), dir: dir, n: n}
	for i := range n {
		r.machine(i, "masquerade", "")
	}
	return r
}

// machine makes a machine, or makes it anew, with one interface of a binding; interfaces is what its
// status has of them, "" for nothing.
func (g *rig) machine(i int, binding, interfaces string) {
	if interfaces != "" {
		interfaces = ", interfaces: " + interfaces
	}
	g.api.Apply(fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {namespace: ns, name: %[1]s, uid: uid-%[1]s, labels: {kubevirt.io/nodeName: here}}
spec:
  domain: {devices: {interfaces: [{name: default, %[2]s: {}}]}}
  networks: [{name: default, pod: {}}]
status: {phase: Running, activePods: {%[1]s: here}%[3]s}
`, machineName(i), binding, interfaces))
}

// start runs a reporter until stop is called.
func (g *rig) start(tb testing.TB, publish bool, changes ...func(*Reporter)) (r *Reporter, stop func()) {
	tb.Helper()
	r, err := New(Config{
		Node: "here", Conn: &rest.Config{Host: g.api.URL(), QPS: -1}, Publish: publish, Cache: podcache.New(tb.TempDir()),
		Pods: func(uid string) (Pod, bool) {
			return Pod{Namespace: "ns", Name: "virt-launcher-" + uid, UID: uid}, !g.noPods.Load()
		},
		Times: source.Times{Limit: 5 * time.Minute, Agent: 5 * time.Minute}, // the machine may be busy
		Log:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		tb.Fatal(err)
	}
	r.dial = func(pod string) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", filepath.Join(g.dir, pod))
		}
	}
	for _, change := range changes {
		change(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx) // it ends with ctx, and with nothing else
	}()
	return r, func() {
		cancel()
		<-done
	}
}

// until polls.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	const within = 3 * time.Minute
	ctx, cancel := context.WithTimeout(tb.Context(), within)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			tb.Fatalf("%s: not within %s", what, within)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// readSince waits until all machines' agents answered after a time, and nothing is left to do.
func (g *rig) readSince(tb testing.TB, r *Reporter, at time.Time) {
	tb.Helper()
	until(tb, "all machines are read", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := 0
		for _, w := range r.machines {
			if w.snapshot.GuestAt.After(at) {
				n++
			}
		}
		return n == g.n && r.queue.Len() == 0
	})
}

// settled says that a reporter has all statuses as they should be.
func (g *rig) settled(tb testing.TB, r *Reporter) {
	tb.Helper()
	until(tb, "all statuses are right", func() bool {
		for i := range g.n {
			if vmi := r.get("ns/" + machineName(i)); vmi == nil || len(vmi.Status.Interfaces) != 1 {
				return false
			}
		}
		differ, all := r.Differing()
		return differ == 0 && all == g.n
	})
}

func (g *rig) pokeAll(r *Reporter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.machines {
		w.watcher.Poke()
	}
}

// heap is the memory that is held, with what stacks take: each collection halves those that are too large.
func heap() int64 {
	for range 6 {
		runtime.GC()
	}
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc + s.StackInuse)
}

// A node of 500 machines: nothing is written once all is written, neither after another look at
// every machine nor by an agent that starts anew. (What memory a machine takes, BenchmarkSteady500 says.)
func TestManyMachines(t *testing.T) {
	const n = 500
	g := newRig(t, n)
	r, stop := g.start(t, true)
	defer func() { stop() }()
	g.readSince(t, r, time.Time{})
	g.settled(t, r)
	stop()

	g.api.ResetRequests()
	r, stop = g.start(t, true)
	g.readSince(t, r, time.Time{})
	g.settled(t, r)
	for range 2 {
		now := time.Now()
		g.pokeAll(r)
		g.readSince(t, r, now)
	}
	for _, q := range g.api.Requests() {
		if q.Verb != "list" && q.Verb != "watch" {
			t.Errorf("%s %s %s/%s: %s", q.Verb, q.Resource, q.Namespace, q.Name, q.Body)
		}
	}
}

// Case 49 of section 6: one machine's libvirt takes connections and never answers. The others are looked at
// and written as ever, and that one keeps what its status has.
func TestStuckMachine(t *testing.T) {
	g := newRig(t, 3)
	var asked atomic.Int32
	g.machine(1, "masquerade", `[{name: default, ipAddress: 10.7.7.7, ipAddresses: [10.7.7.7]}]`)
	r, stop := g.start(t, true, func(r *Reporter) {
		usual := r.dial
		r.dial = func(pod string) func(context.Context) (net.Conn, error) {
			if pod != machineName(1) {
				return usual(pod)
			}
			return func(context.Context) (net.Conn, error) {
				asked.Add(1)
				here, there := net.Pipe()
				t.Cleanup(func() { there.Close() })
				return here, nil
			}
		}
	})
	written := func(i int) string {
		vmi := r.get("ns/" + machineName(i))
		if vmi == nil || len(vmi.Status.Interfaces) != 1 {
			return ""
		}
		return vmi.Status.Interfaces[0].IP
	}
	until(t, "the others are written", func() bool {
		return asked.Load() > 0 && written(0) == "10.0.0.5" && written(2) == "10.0.0.5"
	})
	now := time.Now()
	g.pokeAll(r)
	until(t, "the others are read again", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.machines["ns/"+machineName(0)].snapshot.GuestAt.After(now) && r.machines["ns/"+machineName(2)].snapshot.GuestAt.After(now)
	})
	if got := written(1); got != "10.7.7.7" {
		t.Errorf("the stuck machine has %q, want what its status had", got)
	}
	if all := r.VMIs(); len(all) != 3 || all[1].Fault != "libvirt was not asked yet" {
		t.Errorf("%+v", all)
	}
	stop() // nor does it keep the agent from ending
}

// The same where libvirt answers and only the guest's agent hangs: what libvirt says is written, and what
// the status has of the guest stays for the time of grace.
func TestStuckAgent(t *testing.T) {
	g := newRig(t, 2)
	g.machine(1, "bridge", `[{name: default, mac: "02:00:00:00:00:01", ipAddress: 10.7.7.7, ipAddresses: [10.7.7.7],
  interfaceName: ens3, infoSource: "domain, guest-agent", queueCount: 1, linkState: up}]`)
	f := libvirttest.New("ns_" + machineName(1))
	f.Mute, f.XML = true, strings.Replace(f.XML, "<alias", "<link state='down'/><alias", 1)
	defer f.Drop()
	r, stop := g.start(t, true, func(r *Reporter) {
		usual := r.dial
		r.dial = func(pod string) func(context.Context) (net.Conn, error) {
			if pod != machineName(1) {
				return usual(pod)
			}
			return func(context.Context) (net.Conn, error) { return f.Dial(), nil }
		}
	})
	defer stop()
	until(t, "the change of the domain is written", func() bool {
		vmi, other := r.get("ns/"+machineName(1)), r.get("ns/"+machineName(0))
		return vmi != nil && other != nil && len(other.Status.Interfaces) == 1 && vmi.Status.Interfaces[0].LinkState == "down"
	})
	want := []vmistatus.Interface{{
		Name: "default", MAC: "02:00:00:00:00:01", IP: "10.7.7.7", IPs: []string{"10.7.7.7"}, InterfaceName: "ens3",
		InfoSource: "domain, guest-agent", QueueCount: 1, LinkState: "down",
	}}
	if d := cmp.Diff(want, r.get("ns/"+machineName(1)).Status.Interfaces); d != "" {
		t.Error("status (-want +got):\n", d)
	}
	if all := r.VMIs(); len(all) != 2 || all[1].Fault != "" || all[1].State != "running" {
		t.Errorf("%+v", all)
	}
}

// A machine whose pod is not known yet is looked at as soon as it is, and nothing is remembered of one
// that has gone.
func TestPodComesLater(t *testing.T) {
	g := newRig(t, 1)
	g.noPods.Store(true)
	r, stop := g.start(t, true)
	defer stop()
	expected := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.byPod)
	}
	until(t, "the pod is expected", func() bool { return expected() == 1 })
	if all := r.VMIs(); len(all) != 1 || !strings.Contains(all[0].Fault, "no pod of the machine") {
		t.Errorf("%+v", all)
	}
	g.noPods.Store(false)
	r.PodChanged(machineName(0))
	g.settled(t, r)
	g.noPods.Store(true)
	r.PodChanged(machineName(0))
	until(t, "it is let go", func() bool {
		_, all := r.Differing()
		return all == 0 && expected() == 1
	})
	g.api.Delete("virtualmachineinstances", "ns", machineName(0))
	until(t, "it is forgotten", func() bool { return len(r.VMIs()) == 0 && expected() == 0 })
}

// When the definition of machines goes, nothing of them is kept; when it comes back, they are followed again.
func TestDefinitionGoes(t *testing.T) {
	g := newRig(t, 1)
	r, stop := g.start(t, true)
	defer stop()
	g.settled(t, r)
	g.api.Inject(kubetest.Fault{Verb: "list", Resource: "virtualmachineinstances", Status: http.StatusNotFound})
	g.api.Inject(kubetest.Fault{Verb: "watch", Resource: "virtualmachineinstances", Status: http.StatusNotFound})
	g.api.Compact()
	until(t, "nothing is watched", func() bool {
		_, all := r.Differing()
		return all == 0 && len(r.VMIs()) == 0
	})
	g.api.Heal()
	g.settled(t, r)
}

// A change that comes too soon after others is written at its turn, though nothing happens any more.
func TestPutOffChange(t *testing.T) {
	const turn = 500 * time.Millisecond
	g := newRig(t, 1)
	r, stop := g.start(t, true)
	defer stop()
	g.readSince(t, r, time.Time{})
	g.settled(t, r)
	now := time.Now()
	r.mu.Lock()
	spent := source.Pace{Every: turn, Burst: 1}
	spent.Done(now)
	w := r.machines["ns/"+machineName(0)]
	w.writes.pace, w.writes.reserve = spent, spent
	read := w.snapshot.At
	r.mu.Unlock()
	g.machine(0, "masquerade", `[{name: default, ipAddress: 10.7.7.7, ipAddresses: [10.7.7.7]}]`)
	until(t, "the status is written again", func() bool {
		vmi := r.get("ns/" + machineName(0))
		r.mu.Lock()
		defer r.mu.Unlock()
		return w.writes.at.After(now) && vmi.Status.Interfaces[0].IP == "10.0.0.5"
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.writes.at.Before(now.Add(turn)) || !w.snapshot.At.Equal(read) {
		t.Errorf("it was written after %s, what is known is %s newer; want its turn, and no other look", w.writes.at.Sub(now), w.snapshot.At.Sub(read))
	}
}

// The patch changes the object that was looked at, if its value is still the one that was looked at.
func TestPatch(t *testing.T) {
	g := newRig(t, 1)
	other := []vmistatus.Interface{{Name: "default", IP: "10.9.9.9", IPs: []string{"10.9.9.9"}}}
	// Between the look and the patch another writer writes.
	g.api.Inject(kubetest.Fault{Verb: "patch", Times: 1, Before: func() {
		o := g.api.Object("virtualmachineinstances", "ns", machineName(0))
		o["status"].(map[string]any)["interfaces"] = other
		text, err := json.Marshal(o)
		if err != nil {
			t.Error(err)
		}
		g.api.Apply(string(text))
	}})
	r, stop := g.start(t, true)
	defer stop()
	g.settled(t, r)
	var vmi v1.VirtualMachineInstance
	text, err := json.Marshal(g.api.Object("virtualmachineinstances", "ns", machineName(0)))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &vmi); err != nil {
		t.Fatal(err)
	}
	want := []vmistatus.Interface{{
		Name: "default", IP: "10.0.0.5", IPs: []string{"10.0.0.5"}, MAC: "02:00:00:00:00:01", InterfaceName: "eth0",
		InfoSource: "domain, guest-agent", QueueCount: 1, LinkState: "up",
	}}
	if d := cmp.Diff(want, vmi.Status.Interfaces); d != "" {
		t.Error("status (-want +got):\n", d)
	}
	var olds []any
	for _, q := range g.api.Requests() {
		if q.Verb != "patch" || q.Subresource != "" {
			continue
		}
		var ops []op
		if err := json.Unmarshal([]byte(q.Body), &ops); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(op{"test", "/metadata/uid", "uid-" + machineName(0)}, ops[0]); d != "" {
			t.Error("the object is not tested (-want +got):\n", d)
		}
		olds = append(olds, ops[1].Value)
	}
	// Who has not seen its own write yet may send it again, which the old value refuses.
	olds = slices.CompactFunc(olds, func(a, b any) bool { return cmp.Equal(a, b) })
	old := []any{nil, []any{map[string]any{"name": "default", "ipAddress": "10.9.9.9", "ipAddresses": []any{"10.9.9.9"}}}}
	if d := cmp.Diff(old, olds); d != "" {
		t.Error("values that were tested (-want +got):\n", d)
	}
}

// A list is replaced whatever it looks like: with fields of a newer KubeVirt, which stay, empty, or with
// values that a writer of Go's would leave out.
func TestPatchOfAnyList(t *testing.T) {
	for name, c := range map[string]struct{ before, newer string }{
		"a newer field": {`[{name: default, ipAddress: 10.9.9.9, ipAddresses: [10.9.9.9], newerField: x}]`, "x"},
		"empty":         {`[]`, ""},
		"a zero":        {`[{name: default, ipAddress: 10.9.9.9, ipAddresses: [10.9.9.9], queueCount: 0}]`, ""},
		"null":          {`null`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, 1)
			g.machine(0, "masquerade", c.before)
			r, stop := g.start(t, true)
			defer stop()
			until(t, "the guest's address is written", func() bool {
				vmi := r.get("ns/" + machineName(0))
				return vmi != nil && len(vmi.Status.Interfaces) == 1 && vmi.Status.Interfaces[0].IP == "10.0.0.5"
			})
			status, _ := g.api.Object("virtualmachineinstances", "ns", machineName(0))["status"].(map[string]any)
			list, _ := status["interfaces"].([]any)
			entry, _ := list[0].(map[string]any)
			if newer, _ := entry["newerField"].(string); newer != c.newer {
				t.Errorf("%v: the newer field is %q, want %q", entry, newer, c.newer)
			}
		})
	}
}

// Where only is observed, nothing is written, and what differs is counted.
func TestObserve(t *testing.T) {
	g := newRig(t, 3)
	r, stop := g.start(t, false)
	defer stop()
	g.readSince(t, r, time.Time{})
	until(t, "all differ", func() bool {
		differ, all := r.Differing()
		return differ == 3 && all == 3
	})
	if n := g.api.Count("patch", ""); n != 0 {
		t.Errorf("%d patches", n)
	}
	for _, m := range r.VMIs() {
		if len(m.Interfaces) != 1 || m.Interfaces[0].InterfaceName != "eth0" || len(m.Differs) == 0 || m.Fault != "" {
			t.Errorf("%+v", m)
		}
	}
	if _, err := r.Record(t.Context(), "ns", "vm1"); err != nil {
		t.Error(err)
	}
	if _, err := r.Record(t.Context(), "ns", "none"); err == nil {
		t.Error("a machine that there is not is recorded")
	}
}

// BenchmarkSteady500: a look at every machine of a node of 500. What of a core that takes is told for
// the usual pause between two looks, and what memory a machine takes to an agent that writes nothing.
func BenchmarkSteady500(b *testing.B) {
	const n = 500
	g := newRig(b, n)
	r, stop := g.start(b, true)
	g.readSince(b, r, time.Time{})
	g.settled(b, r)
	stop()
	g.api.ResetRequests()
	before := heap()
	r, stop = g.start(b, true)
	defer func() { stop() }()
	g.readSince(b, r, time.Time{})
	g.settled(b, r)
	kept := (heap() - before) / n
	used := cpu(b)
	looks := 0
	for b.Loop() {
		now := time.Now()
		g.pokeAll(r)
		g.readSince(b, r, now)
		looks++
	}
	each := (cpu(b) - used) / time.Duration(looks)
	const slow = 2 * time.Minute
	b.ReportMetric(float64(each.Microseconds())/n, "cpu-us/machine")
	b.ReportMetric(100*each.Seconds()/slow.Seconds(), "%core")
	b.ReportMetric(float64(kept), "B/machine")
	b.ReportMetric(float64(g.api.Count("patch", "")), "writes")
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
