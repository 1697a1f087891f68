// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/wire"
)

// rig is a reconciler on a fake cluster and fake records, in a bubble of its own time.
type rig struct {
	*Reconciler
	*cluster
	*records
	t      *testing.T
	log    *bytes.Buffer
	memory *Memory // nil = there is none
}

// bubble runs f with a running reconciler.
func bubble(t *testing.T, f func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		stop := r.run()
		defer stop()
		f(r)
	})
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{cluster: newCluster(), records: newRecords(), t: t, log: &bytes.Buffer{}}
	r.anew()
	return r
}

// anew gives it a reconciler that remembers nothing but what is put down.
func (r *rig) anew() {
	r.Reconciler = New(Options{StatusTimeout: 2 * time.Second, DeviceInfoDir: r.t.TempDir(), Memory: r.memory}, r.records, r.cluster, slog.New(slog.NewTextHandler(r.log, nil)))
	r.cluster.notify = r.Pod
}

func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:usetesting // ended by stop, within the bubble
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	}
}

// pass lets so much time pass.
func (r *rig) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (r *rig) want(name string, writes int, want ...any) {
	r.t.Helper()
	synctest.Wait()
	if want == nil {
		want = []any{}
	}
	if d := cmp.Diff(want, parsed(r.t, r.annotation(name))); d != "" {
		r.t.Errorf("network-status of %s: %s", name, d)
	}
	if got := r.written(); got != writes {
		r.t.Errorf("%d writes, want %d", got, writes)
	}
}

var foreign = map[string]any{"name": "x/hot", "interface": "hot0", "n": 1.5}

const foreignText = `{"n": 1.5, "name":"x/hot", "interface":"hot0"}`

// TestOneWriteForAnAdd: the report, the record's end, the cache that is behind, our own
// write that comes back: one write.
func TestOneWriteForAnAdd(t *testing.T) {
	bubble(t, func(r *rig) {
		r.set("a", func(p *pod) { *p = pod{uid: "uid-a", annotation: "[" + foreignText + "]"} })
		s := sandbox("c1", "a", "uid-a", "10.0.0.2/24")
		r.put(s)
		r.lag(true)
		start := time.Now()
		if res := r.Report(r.t.Context(), reportOf(s)); !res.Done || res.Error != nil {
			t.Errorf("answer %+v", res)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("answered after %v, with the status written", took)
		}
		r.put(finished(s))
		r.pass(10 * time.Second) // all that time the cache shows the old value
		r.Changed("uid-a")
		r.want("a", 1, append(statusOf(s, "10.0.0.2"), foreign)...)
		if st := r.State("uid-a"); !st.Right || st.Fault != "" || st.Desired != r.annotation("a") {
			t.Errorf("state %+v", st)
		}
		r.lag(false)
		r.pass(time.Hour)
		r.want("a", 1, append(statusOf(s, "10.0.0.2"), foreign)...)
		if r.asked != 1 {
			t.Errorf("the client was asked %d times", r.asked)
		}
		if n, oldest := r.Lag(); n != 0 || oldest != 0 {
			t.Errorf("lag %d, %v", n, oldest)
		}
		if d := cmp.Diff(map[string]uint64{"written": 1}, r.Writes()); d != "" {
			t.Error(d)
		}
	})
}

// TestPlainPod: one that nobody reports gets its status when its record is finished.
func TestPlainPod(t *testing.T) {
	bubble(t, func(r *rig) {
		r.pod("a")
		s := sandbox("c1", "a", "uid-a", "10.0.0.2/24")
		r.put(s)
		r.pass(time.Minute)
		if r.written() != 0 {
			t.Error("written before the ADD was over")
		}
		r.put(finished(s))
		r.want("a", 1, statusOf(s, "10.0.0.2")...)
	})
}

// TestWhoIsWrittenTo: which pods, and which of their sandboxes.
func TestWhoIsWrittenTo(t *testing.T) {
	bubble(t, func(r *rig) {
		// One that is not known yet is written when it comes.
		s := finished(sandbox("c1", "a", "uid-a", "10.0.0.2/24"))
		r.put(s)
		r.pass(10 * time.Minute)
		if n, _ := r.Lag(); n != 0 || r.asked != 0 {
			t.Errorf("a pod that is not known: %d wait, %d writes", n, r.asked)
		}
		r.pod("a")
		r.want("a", 1, statusOf(s, "10.0.0.2")...)

		// A later sandbox that is half done takes the status over when it is finished.
		r.pass(time.Second)
		later := sandbox("c2", "a", "uid-a", "10.0.0.3/24")
		r.put(later)
		r.set("a", func(p *pod) { p.annotation = "" })
		r.pass(10 * time.Minute)
		if r.annotation("a") != "" {
			t.Error("written with a later sandbox half done")
		}
		r.put(finished(later))
		r.want("a", 2, statusOf(later, "10.0.0.3")...)
		r.put(undone(later))
		r.set("a", func(p *pod) { p.annotation = "[]" })
		r.pass(10 * time.Minute)
		r.want("a", 2)
		// When it is gone, the earlier one is the newest.
		r.drop(later)
		r.want("a", 3, statusOf(s, "10.0.0.2")...)

		// Neither another pod of the name, nor one that has ended, nor for a dead record.
		r.set("b", func(p *pod) { p.uid = "another" })
		r.put(finished(sandbox("c3", "b", "uid-b", "10.0.0.4/24")))
		r.set("c", func(p *pod) { *p = pod{uid: "uid-c", terminal: true} })
		r.put(finished(sandbox("c4", "c", "uid-c", "10.0.0.5/24")))
		r.pod("d")
		dead := finished(sandbox("c5", "d", "uid-d", "10.0.0.6/24"))
		dead.Dead = true
		r.put(dead)
		r.pass(time.Hour)
		if r.written() != 3 {
			t.Errorf("wrote to %v", r.cluster.writes)
		}
		// A static pod has another UID in the API than in the records.
		static := finished(sandbox("c6", "e", "static-uid-e", "10.0.0.7/24"))
		r.put(static)
		r.pod("e")
		r.want("e", 4, statusOf(static, "10.0.0.7")...)
		// Nothing is kept of pods without records.
		for _, x := range r.Sandboxes() {
			r.drop(x)
		}
		r.pass(10 * time.Minute)
		if len(r.state) != 0 || len(r.queue.items) != 0 {
			t.Errorf("kept %v, %v", r.state, r.queue.items)
		}
	})
}

// TestOtherWriters: what they do to our entries is mended, what they do to theirs is theirs.
func TestOtherWriters(t *testing.T) {
	bubble(t, func(r *rig) {
		r.pod("a")
		s := finished(sandbox("c1", "a", "uid-a", "10.0.0.2/24"))
		// Another writer is quicker, once.
		r.before = func(name string) {
			r.switchTo(func() { r.before = nil })
			r.set(name, func(p *pod) { p.annotation = "[" + foreignText + "]" })
		}
		r.put(s)
		r.want("a", 1, append(statusOf(s, "10.0.0.2"), foreign)...)
		// Spacing, order of keys and their place in the list are left to others.
		other := `[` + foreignText + `, {"ips":["10.0.0.2"], "default":true, "interface":"eth0","name":"defnet"},{"interface":"eth1","ips":["10.0.0.2"],"name":"default/neta"}]`
		r.set("a", func(p *pod) { p.annotation = other })
		r.pass(time.Hour)
		if r.annotation("a") != other {
			t.Error("rewritten without need")
		}
		for i, damage := range []string{"", "[]", "null", "nonsense", "[" + foreignText + `,{"name":"defnet","interface":"eth0"}]`} {
			r.set("a", func(p *pod) { p.annotation = damage })
			want := statusOf(s, "10.0.0.2")
			if strings.Contains(damage, "hot") {
				want = append(want, foreign)
			}
			r.want("a", 2+i, want...)
		}
	})
}

// TestAnotherWriterThatNeverEnds: who takes our entries away each time has a few of them put
// back at once, then fewer and fewer; a new sandbox is written without a pause, and in the
// end the status is right.
func TestAnotherWriterThatNeverEnds(t *testing.T) {
	bubble(t, func(r *rig) {
		r.pod("a")
		s := finished(sandbox("c1", "a", "uid-a", "10.0.0.2/24"))
		r.put(s)
		for range 600 {
			r.set("a", func(p *pod) { p.annotation = "[" + foreignText + "]" })
			r.pass(100 * time.Millisecond)
		}
		if n := r.written(); n < freely || n > 16 {
			t.Errorf("%d writes in a minute", n)
		}
		if pending, _ := r.Lag(); pending != 1 || !strings.Contains(r.State("uid-a").Fault, "another writer") {
			t.Errorf("%d pending, %+v", pending, r.State("uid-a"))
		}
		before := r.written()
		next := finished(sandbox("c2", "a", "uid-a", "10.0.0.3/24"))
		next.Begun = s.Begun.Add(time.Second)
		r.put(next)
		r.pass(lastRest)
		r.pass(lastRest)
		r.want("a", before+1, append(statusOf(next, "10.0.0.3"), foreign)...)
	})
}

// TestPutBackBehindTheCache: another writer who puts back what was there is not taken for
// a cache that is behind, for long.
func TestPutBackBehindTheCache(t *testing.T) {
	bubble(t, func(r *rig) {
		r.pod("a")
		s := finished(sandbox("c1", "a", "uid-a", "10.0.0.2/24"))
		r.lag(true)
		r.put(s)
		synctest.Wait()
		r.set("a", func(p *pod) { p.annotation = "" }) // so that the cache never sees ours
		r.lag(false)
		r.pass(behindFor + time.Second)
		r.want("a", 2, statusOf(s, "10.0.0.2")...)
	})
}

// TestAnnotateFails: a report waits no longer than it may, what is left is retried with
// growing pauses, and other pods do not wait for it.
func TestAnnotateFails(t *testing.T) {
	bubble(t, func(r *rig) {
		r.pod("a")
		r.pod("b")
		r.switchTo(func() {
			r.fault = func(name string) error {
				if name == "a" {
					return errAPI
				}
				return nil
			}
		})
		s := sandbox("c1", "a", "uid-a", "10.0.0.2/24")
		r.put(s)
		start := time.Now()
		if res := r.Report(r.t.Context(), reportOf(s)); !res.Done || time.Since(start) != 2*time.Second {
			t.Errorf("answer %+v after %v", res, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if res := r.Report(ctx, reportOf(s)); !res.Done || time.Since(start) != time.Second {
			t.Errorf("answer %+v after %v, within the caller's second", res, time.Since(start))
		}
		r.put(finished(s))
		b := sandbox("c2", "b", "uid-b", "10.0.0.3/24")
		r.put(b)
		start = time.Now()
		if res := r.Report(r.t.Context(), reportOf(b)); !res.Done || time.Since(start) != 0 {
			t.Errorf("the other pod waited %v", time.Since(start))
		}
		for range 100 { // events of the pod do not shorten its rest
			r.Changed("uid-a")
			r.pass(36 * time.Second)
		}
		if r.asked < 60 || r.asked > 160 {
			t.Errorf("tried %d times in an hour", r.asked)
		}
		if n, oldest := r.Lag(); n != 1 || oldest < time.Hour {
			t.Errorf("lag %d, %v", n, oldest)
		}
		if st := r.State("uid-a"); st.Right || st.Fault == "" || st.Desired == "" {
			t.Errorf("state %+v", st)
		}
		if n := strings.Count(r.log.String(), "network-status is not right"); n != 1 {
			t.Errorf("told %d times", n)
		}
		r.switchTo(func() { r.fault = nil })
		r.pass(time.Minute)
		r.want("a", 2, statusOf(s, "10.0.0.2")...)
	})
}

// tooMany is what a server says that wants to be left alone.
type tooMany struct{ after time.Duration }

func (e tooMany) Error() string             { return "too many requests" }
func (e tooMany) RetryAfter() time.Duration { return e.after }

func TestRetryAfterForbiddenAndGone(t *testing.T) {
	bubble(t, func(r *rig) {
		r.pod("a")
		s := finished(sandbox("c1", "a", "uid-a", "10.0.0.2/24"))
		r.switchTo(func() { r.fault = func(string) error { return fmt.Errorf("patch: %w", tooMany{20 * time.Second}) } })
		r.put(s)
		r.pass(19 * time.Second)
		if r.asked != 1 {
			t.Errorf("asked %d times within the pause that was asked for", r.asked)
		}
		r.log.Reset()
		// Forbidden: one line an hour, whichever pod it is about.
		r.switchTo(func() { r.fault = func(string) error { return fmt.Errorf("patch: %w", ErrForbidden) } })
		r.pod("b")
		r.put(finished(sandbox("c2", "b", "uid-b", "10.0.0.3/24")))
		r.pass(2*time.Hour + 30*time.Minute)
		if n := strings.Count(r.log.String(), "not permitted"); n < 2 || n > 3 {
			t.Errorf("told %d times in 2.5 hours", n)
		}
		if r.Writes()["forbidden"] < 100 {
			t.Errorf("writes %v", r.Writes())
		}
		// A pod that is gone, of which the cache does not know yet: not tried again.
		r.switchTo(func() { r.fault = nil })
		r.lag(true)
		r.remove("a")
		r.remove("b")
		r.pass(2 * time.Minute)
		asked := r.asked
		r.pass(2 * time.Minute)
		if n, _ := r.Lag(); n != 0 || r.asked != asked || r.Writes()["gone"] == 0 {
			t.Errorf("%d wait, %d more calls, writes %v", n, r.asked-asked, r.Writes())
		}
	})
}

// TestBurst: a hundred ADDs at once are written side by side, each once.
func TestBurst(t *testing.T) {
	bubble(t, func(r *rig) {
		const n = 100
		r.switchTo(func() { r.slow = 50 * time.Millisecond })
		answers := make(chan wire.Response, n)
		start := time.Now()
		for i := range n {
			name := fmt.Sprint("p", i)
			r.pod(name)
			s := sandbox("c"+name, name, "uid-"+name, "10.0.0.2/24")
			r.put(s)
			go func() {
				answers <- r.Report(r.t.Context(), reportOf(s))
				r.put(finished(s))
			}()
		}
		for range n {
			if res := <-answers; !res.Done {
				t.Errorf("answer %+v", res)
			}
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("took %v", took)
		}
		r.pass(time.Hour)
		if got := r.written(); got != n || r.most != workers || r.asked != n {
			t.Errorf("%d writes, %d at once, %d calls", got, r.most, r.asked)
		}
	})
}

// TestReportWithoutRecord: what nobody will repair is written now, or fails the ADD.
func TestReportWithoutRecord(t *testing.T) {
	for name, hide := range map[string]func(*rig, *observe.Sandbox){
		"no record":        func(*rig, *observe.Sandbox) {},
		"unreadable":       func(r *rig, s *observe.Sandbox) { r.put(s); r.blind = errAPI },
		"another pod's":    func(r *rig, s *observe.Sandbox) { x := *s; x.PodUID = "uid-x"; r.put(&x) },
		"one in the works": func(r *rig, s *observe.Sandbox) { r.put(undone(s)) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.pod("a")
				s := sandbox("c1", "a", "uid-a", "10.0.0.2/24")
				hide(r, s)
				r.switchTo(func() { r.fault = func(string) error { return errAPI } })
				if res := r.Report(r.t.Context(), reportOf(s)); res.Done || res.Error == nil || res.Error.Code != 11 {
					t.Errorf("answer %+v, %+v", res, res.Error)
				}
				r.switchTo(func() { r.fault = nil })
				if res := r.Report(r.t.Context(), reportOf(s)); !res.Done {
					t.Errorf("answer %+v", res.Error)
				}
				r.want("a", 1, statusOf(s, "10.0.0.2")...)
			})
		})
	}
}

func TestReportOfAFailure(t *testing.T) {
	bubble(t, func(r *rig) {
		s := sandbox("c1", "a", "uid-a", "10.0.0.2/24")
		req := reportOf(s)
		req.Error = &wire.Error{Code: 7, Msg: "a\nb", Details: "c"}
		if res := r.Report(r.t.Context(), req); !res.Done {
			t.Errorf("answer %+v", res)
		}
		if d := cmp.Diff([]planner.Event{{Reason: planner.ReasonFailed, Message: "a b; c"}}, r.told); d != "" {
			t.Error(d)
		}
		req.PodName = ""
		if res := r.Report(r.t.Context(), req); res.Done || res.Error.Code != 100 {
			t.Errorf("of no pod: %+v", res)
		}
		broken := reportOf(s)
		broken.Attachments[0].Result = []byte(`{"cniVersion":"9.9"}`)
		if res := r.Report(r.t.Context(), broken); res.Done || res.Error == nil {
			t.Errorf("of a result of another world: %+v", res)
		}
	})
}

// TestARecordThatGoes: a report whose sandbox is removed meanwhile does not wait.
func TestARecordThatGoes(t *testing.T) {
	bubble(t, func(r *rig) {
		s := sandbox("c1", "a", "uid-a", "10.0.0.2/24") // its pod is not known
		r.put(s)
		go func() {
			<-time.After(500 * time.Millisecond)
			r.drop(s)
		}()
		start := time.Now()
		if res := r.Report(r.t.Context(), reportOf(s)); !res.Done || time.Since(start) != 500*time.Millisecond {
			t.Errorf("answer %+v after %v", res, time.Since(start))
		}
	})
}
