// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informed_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/informed"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/kube/informers"
	"github.com/weftnet/weft/internal/kube/kubetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ planner.Reporter  = (*informed.Source)(nil)
	_ planner.Refresher = (*informed.Source)(nil)
	_ planner.Sharing   = (*informed.Source)(nil)
)

const long = 30 * time.Second

// rig is a Source over a Cluster that runs against a server.
type rig struct {
	*informed.Source
	t       *testing.T
	s       *kubetest.Server
	cluster *informers.Cluster
	stop    func()
}

func start(t *testing.T, s *kubetest.Server) *rig {
	t.Helper()
	c, err := informers.New(informers.Config{NodeName: "n1", Kubeconfig: s.Kubeconfig(nil)}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	return &rig{informed.New(c, informed.Options{KubeletDir: t.TempDir()}), t, s, c, stop}
}

func (r *rig) ready() *rig {
	r.t.Helper()
	select {
	case <-r.cluster.Synced():
	case <-time.After(long):
		r.t.Fatal(r.cluster.Behind())
	}
	r.s.ResetRequests()
	return r
}

// blind ends the watches for good: the caches stay as they are.
func (r *rig) blind() {
	r.t.Helper()
	r.s.Inject(kubetest.Fault{Verb: "watch", Hang: true})
	r.s.EndWatches()
	for end := time.Now().Add(long); r.s.Watches("") > 0; {
		if time.Now().After(end) {
			r.t.Fatal("watches go on")
		}
	}
}

const conf = `{"cniVersion":"1.0.0","name":"m","type":"weft-cni","delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa"}]}`

func sandbox(pod, uid string) plan.Sandbox {
	return plan.Sandbox{
		ContainerID: "cid1", IfName: "eth0", Netns: "/run/netns/x",
		Args: "K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod + ";K8S_POD_UID=" + uid,
	}
}

// plan asks as weft-cni does.
func (r *rig) plan(pod, uid string) wire.Response {
	r.t.Helper()
	req := wire.PlanRequest{Conf: []byte(conf), Sandbox: sandbox(pod, uid)}
	return planner.Answer(r.t.Context(), req, func(*netconf.Conf) (planner.Source, error) { return r.Source, nil })
}

// planned wants a plan with those networks, and those reads.
func (r *rig) planned(pod, uid string, networks []string, reads ...string) {
	r.t.Helper()
	res := r.plan(pod, uid)
	if res.Plan == nil || !res.Report {
		r.t.Fatalf("answer %+v", res.Error)
	}
	var got []string
	for _, a := range res.Plan.Attachments[1:] {
		got = append(got, a.Network)
	}
	if !slices.Equal(got, networks) {
		r.t.Errorf("networks %q, want %q", got, networks)
	}
	r.reads(reads...)
}

// reads wants those requests since the last look, but for watches.
func (r *rig) reads(want ...string) {
	r.t.Helper()
	var got []string
	for _, q := range r.s.Requests() {
		if q.Verb == "get" {
			got = append(got, q.Resource+" "+q.Name)
		}
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("reads %q, want %q", got, want)
	}
	r.s.ResetRequests()
}

func (r *rig) refused(pod, uid string, code fault.Code, text string) {
	r.t.Helper()
	res := r.plan(pod, uid)
	if res.Error == nil || res.Error.Code != uint(code) || !strings.Contains(res.Error.Msg+res.Error.Details, text) {
		r.t.Errorf("answer %+v, want %d %q", res.Error, code, text)
	}
}

func pod(name, uid, networks string) string {
	return "kind: Pod\nmetadata: {name: " + name + ", uid: " + uid + ", annotations: {" + plan.NetworksAnnotation + ": '" + networks + "'}}\nspec: {nodeName: n1}\n"
}

func nad(name string) string {
	return "kind: NetworkAttachmentDefinition\nmetadata: {name: " + name + "}\nspec: {config: '{\"cniVersion\":\"1.0.0\",\"type\":\"pb\"}'}\n"
}

// TestAnnotationsAreKept: what planning reads is what the caches keep.
func TestAnnotationsAreKept(t *testing.T) {
	kept := informers.KeptAnnotations()
	for _, key := range []string{plan.NetworksAnnotation, plan.DefaultNetworkAnnotation, plan.StatusAnnotation} {
		if !slices.Contains(kept, key) {
			t.Errorf("%s is not kept", key)
		}
	}
}

func TestSteadyState(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(pod("web", "u1", "neta,netb") + "---\n" + nad("neta") + "---\n" + nad("netb"))
	r := start(t, s).ready()
	for range 3 {
		r.planned("web", "u1", []string{"default/neta", "default/netb"})
	}
	if n := s.Count("", ""); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// TestLargeNAD: one that is too large for the caches is read for each plan, once, however often
// the pod names it; what the API server says of it is told as of one that is not cached.
func TestLargeNAD(t *testing.T) {
	s := kubetest.New(t)
	large := strings.Replace(nad("big"), `"type":"pb"`, `"type":"pb","pad":"`+strings.Repeat("x", informers.MaxKept)+`"`, 1)
	s.Apply(pod("web", "u1", "neta,big,big") + "---\n" + nad("neta") + "---\n" + large)
	r := start(t, s).ready()
	big := plan.NADRef{Namespace: "default", Name: "big"}
	if size := r.Size(big); size < informers.MaxKept || r.Size(plan.NADRef{Namespace: "default", Name: "none"}) != 0 {
		t.Errorf("size %d", size)
	}
	for range 2 {
		r.planned("web", "u1", []string{"default/neta", "default/big", "default/big"}, "network-attachment-definitions big")
	}
	if n, err := r.NAD(t.Context(), big); err != nil || !n.Found || len(n.Config) < informers.MaxKept {
		t.Errorf("%v, %v, %d bytes", n.Found, err, len(n.Config))
	}
	s.Inject(kubetest.Fault{Verb: "get", Status: 503})
	r.refused("web", "u1", 11, "NetworkAttachmentDefinition default/big: get NetworkAttachmentDefinition default/big at ")
	s.Heal()
	r.blind()
	s.Delete("network-attachment-definitions", "default", "big")
	r.refused("web", "u1", 7, "does not exist")
}

// TestBehind: what the caches do not have yet is read, once each; what they have of
// another UID as well.
func TestBehind(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(pod("old", "u1", "neta") + "---\n" + nad("neta"))
	r := start(t, s).ready()
	r.blind()
	s.Apply(pod("web", "u2", "neta,netb") + "---\n" + nad("netb") + "---\n" + pod("old", "u3", ""))
	s.ResetRequests()
	r.planned("web", "u2", []string{"default/neta", "default/netb"}, "pods web", "network-attachment-definitions netb")
	r.planned("old", "u3", nil, "pods old")
	r.refused("old", "u4", 11, `metadata.uid: is "u3", the sandbox belongs to "u4"`)
	r.reads("pods old")
	r.refused("none", "u5", 11, "pod default/none: get pod default/none at ")
	r.reads("pods none")
	s.Apply(pod("none", "u5", "later"))
	r.refused("none", "u5", 7, "does not exist")
	r.reads("pods none", "network-attachment-definitions later")
	s.Apply(nad("later")) // nothing remembers that it was not there
	r.planned("none", "u5", []string{"default/later"}, "pods none", "network-attachment-definitions later")
}

// misses tells of the first look for a pod that is not there.
type misses struct {
	*informers.Cluster
	once   sync.Once
	missed chan struct{}
}

func (m *misses) Pod(namespace, name string) (*informers.Pod, bool) {
	p, ok := m.Cluster.Pod(namespace, name)
	if !ok {
		m.once.Do(func() { close(m.missed) })
	}
	return p, ok
}

// TestLate: a pod that the watch brings a moment after the runtime asks for it is not read.
func TestLate(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(nad("neta"))
	r := start(t, s).ready()
	m := &misses{Cluster: r.cluster, missed: make(chan struct{})}
	r.Source = informed.New(m, informed.Options{KubeletDir: t.TempDir(), Late: long})
	applied := make(chan struct{})
	go func() {
		defer close(applied)
		<-m.missed
		s.Apply(pod("web", "u1", "neta"))
	}()
	r.planned("web", "u1", []string{"default/neta"})
	<-applied
}

// TestApplyReadsThePod: what is changed of a running pod is changed to what the API server says,
// whatever the cache has.
func TestApplyReadsThePod(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(pod("web", "u1", "neta") + "---\n" + nad("neta") + "---\n" + nad("netb"))
	r := start(t, s).ready()
	r.blind()
	s.Apply(pod("web", "u1", "neta,netb"))
	s.ResetRequests()
	req := wire.Request{Version: wire.Version, Verb: wire.VerbApply, Apply: &wire.PlanRequest{
		Conf: []byte(conf), Sandbox: sandbox("web", "u1"),
	}}
	ask := func() wire.Response {
		return planner.Handle(t.Context(), req, func(*netconf.Conf) (planner.Source, error) { return r.Source, nil }, nil)
	}
	if res := ask(); res.Plan == nil || len(res.Plan.Attachments) != 3 {
		t.Errorf("answer %+v", res)
	}
	r.reads("pods web")
	s.Inject(kubetest.Fault{Verb: "get", Status: 503})
	if res := ask(); res.Error == nil || res.Error.Code != 11 {
		t.Errorf("answer %+v", res)
	}
	s.Heal()
	r.reads("pods web")
	r.planned("web", "u1", []string{"default/neta", "default/netb"}) // what was read is kept
}

func TestMirrorPod(t *testing.T) {
	s := kubetest.New(t)
	s.Apply("kind: Pod\nmetadata: {name: etcd, uid: m1, annotations: {kubernetes.io/config.source: file, kubernetes.io/config.hash: u1, " +
		plan.NetworksAnnotation + ": neta}}\nspec: {nodeName: n1}\n---\n" + nad("neta"))
	r := start(t, s).ready()
	r.planned("etcd", "u1", []string{"default/neta"})
	r.refused("etcd", "u2", 11, "the sandbox belongs to")
	r.reads("pods etcd")
}

func TestNotSynced(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(pod("web", "u1", ""))
	s.Withhold("network-attachment-definitions", true)
	r := start(t, s)
	for end := time.Now().Add(long); r.cluster.Behind() == nil || !strings.Contains(r.cluster.Behind().Error(), "installed?"); {
		if time.Now().After(end) {
			t.Fatal(r.cluster.Behind())
		}
		<-s.Arrived()
	}
	s.ResetRequests()
	r.refused("web", "u1", 11, "pod default/web: the agent has not yet seen all pods of this node and all NetworkAttachmentDefinitions: the API server does not serve k8s.cni.cncf.io/v1")
	r.reads()
	if _, err := r.NAD(t.Context(), plan.NADRef{Namespace: "default", Name: "neta"}); code(err) != fault.TryLater {
		t.Errorf("error %v", err)
	}
	s.Withhold("network-attachment-definitions", false)
	r.ready().planned("web", "u1", nil)
}

func code(err error) fault.Code {
	if all := fault.All(err); len(all) == 1 {
		return all[0].Code
	}
	return 0
}

// TestFaults of the API server, where it is asked.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault kubetest.Fault
		want  fault.Code
		text  string
	}{
		"forbidden":        {kubetest.Fault{Status: 403}, 7, "answer 403 Forbidden"},
		"away":             {kubetest.Fault{Status: 503}, 11, "answer 503 Service Unavailable"},
		"busy":             {kubetest.Fault{Status: 429}, 11, "answer 429 Too Many Requests"},
		"unauthorized":     {kubetest.Fault{Status: 401}, 11, "answer 401 Unauthorized"},
		"no definition":    {kubetest.Fault{Status: 404, Plain: true}, 7, "answer 404 Not-Found"},
		"nonsense":         {kubetest.Fault{Body: "<html>"}, 11, "get NetworkAttachmentDefinition default/neta at "},
		"connection drops": {kubetest.Fault{Drop: true}, 11, "EOF"},
		"another object":   {kubetest.Fault{Body: "{}"}, 11, "answer is not of the Kubernetes API"},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Apply(pod("web", "u1", "neta"))
			r := start(t, s).ready()
			c.fault.Verb, c.fault.Resource = "get", "network-attachment-definitions"
			s.Inject(c.fault)
			r.refused("web", "u1", c.want, "NetworkAttachmentDefinition default/neta: ")
			r.refused("web", "u1", c.want, c.text)
		})
	}
	none := kubetest.New(t)
	r := start(t, none).ready()
	none.Inject(kubetest.Fault{Verb: "get", Body: `{"kind":"Pod","apiVersion":"v1","metadata":{}}`})
	r.refused("web", "u1", 11, "pod default/web: get pod default/web at ")
	s := kubetest.New(t)
	s.Apply(pod("web", "u1", "broken") + "---\nkind: NetworkAttachmentDefinition\nmetadata: {name: broken}\nspec: {config: {a: b}}\n")
	start(t, s).ready().refused("web", "u1", 7, "NetworkAttachmentDefinition default/broken: spec.config: is no text")
}

func TestReport(t *testing.T) {
	s := kubetest.New(t)
	s.Apply(pod("web", "u1", ""))
	r := start(t, s).ready()
	web := planner.PodRef{Namespace: "default", Name: "web", UID: "u1"}
	set := func(string) string { return "[]" }
	if err := r.Annotate(t.Context(), web, plan.StatusAnnotation, set); err != nil || s.Annotation("default", "web", plan.StatusAnnotation) != "[]" {
		t.Errorf("%v, %q", err, s.Annotation("default", "web", plan.StatusAnnotation))
	}
	web.UID = "u2"
	if err := r.Annotate(t.Context(), web, plan.StatusAnnotation, set); code(err) != fault.TryLater || !strings.Contains(err.Error(), "another pod has that name") {
		t.Errorf("another UID: %v", err)
	}
	web.Name = "none"
	if err := r.Annotate(t.Context(), web, plan.StatusAnnotation, set); code(err) != fault.TryLater {
		t.Errorf("no pod: %v", err)
	}
	s.Inject(kubetest.Fault{Verb: "patch", Status: 403})
	if err := r.Annotate(t.Context(), planner.PodRef{Namespace: "default", Name: "web", UID: "u1"}, plan.StatusAnnotation, func(string) string { return "[1]" }); code(err) != fault.Config ||
		!strings.Contains(err.Error(), "the permission patch on pods/status is missing") {
		t.Errorf("forbidden: %v", err)
	}
	r.Tell(planner.PodRef{Namespace: "default", Name: "web", UID: "u1"}, planner.Event{Reason: "R", Message: "m"})
	r.stop()
	want := []kubetest.Event{{Type: "Warning", Reason: "R", Message: "m", Pod: "web", UID: "u1", Component: "weft"}}
	if d := cmp.Diff(want, s.Events("default")); d != "" {
		t.Error(d)
	}
}
