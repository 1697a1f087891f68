// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/host/kernel"
	. "github.com/weftnet/weft/test/conformance"
)

// kase is one case of spec/cni.md section 3, or a variant of one: what is over the rig's
// fixture, the calls of a runtime, and what has to come of each.
type kase struct {
	number  string
	variant string
	only    Mode // "" = both

	conf      string            // members over the fixture's configuration, as JSON
	nads      map[string]string // over the fixture's, "ns/name" to spec.config
	resources map[string]string // their resourceName annotations
	files     map[string]string // below $DIR
	objects   string            // further objects of the API server, as YAML
	networks  *string           // the annotation, nil = none
	def       *string           // the default-network annotation, nil = none
	notes     map[string]string // further annotations of the pod
	namespace string            // of the pod, "" = default
	name      string            // of the pod, "" = pod-a
	pod       string            // further members of the pod, as JSON
	noPod     bool
	routes    bool // $DIR/netns is a namespace with eth0 and net1 as section 3 has it

	steps []step
	// multus is what Multus does otherwise, "" = the same.
	multus string
}

// step is one call of the runtime and what has to come of it.
type step struct {
	do   string // what happened before the call, in words
	act  func(r *Rig)
	verb string
	env  []string

	code  int      // of the CNI error, 0 = success
	words []string // of the error's text
	calls []string // of delegates, "pa ADD eth0"
	// gets are parts of what delegates were given: "pb ADD net1 runtimeConfig" to JSON, "" = nothing.
	gets     map[string]string
	prints   string // result on stdout, as JSON, "" = not looked at
	status   string // network-status, as JSON (API server only), "" = not looked at
	warn     string // words of a warning on stderr
	event    string // the event that the pod's owner is told (API server only), by its reason
	defaults []string
	hurry    bool // how many requests there are depends on the time
	again    bool // something is asked for again, or written in vain
	requests *[]string
	also     func(t *testing.T, r *Rig, o Outcome)
}

// add is an ADD that makes these attachments.
func add(calls ...string) step { return step{verb: "ADD", calls: calls} }

// refused is an ADD that is refused before any plugin runs, with these words.
func refused(words ...string) step {
	return step{verb: "ADD", code: 7, words: words, calls: []string{}}
}

func (k kase) title() string { return strings.TrimSpace(k.number + " " + k.variant) }

// prepare makes the rig of a case.
func (k kase) prepare(t *testing.T, mode Mode) *Rig {
	t.Helper()
	r := New(t, mode)
	if k.routes {
		r.Netns = podNamespace(t)
	}
	if k.conf != "" {
		r.Set("{" + k.conf + "}")
	}
	for name, config := range k.nads {
		var notes map[string]string
		if resource, ok := k.resources[name]; ok {
			notes = map[string]string{ResourceAnnotation: resource}
		}
		r.NAD(name, config, notes)
	}
	for path, text := range k.files {
		r.Write(path, r.Expand(text))
	}
	if r.API != nil && k.objects != "" {
		r.API.Apply(k.objects)
	}
	if k.noPod {
		return r
	}
	more := map[string]any{}
	if k.pod != "" {
		if err := json.Unmarshal([]byte(k.pod), &more); err != nil {
			t.Fatal(err)
		}
	}
	notes := maps.Clone(k.notes)
	if notes == nil {
		notes = map[string]string{}
	}
	if k.networks != nil {
		notes[NetworksAnnotation] = *k.networks
	}
	if k.def != nil {
		notes[DefaultAnnotation] = *k.def
	}
	r.Pod(k.podNamespace(), k.podName(), "uid-1", notes, more)
	return r
}

func (k kase) podNamespace() string { return or(k.namespace, "default") }
func (k kase) podName() string      { return or(k.name, "pod-a") }

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// run runs the case in one mode, and gives its outcomes. An event that a busy machine had
// no time for is another try's.
func (k kase) run(t *testing.T, mode Mode) []string {
	t.Helper()
	for range 5 {
		if told := k.try(t, mode); told != nil {
			return told
		}
	}
	t.Fatal("no event was told")
	return nil
}

// try gives the outcomes of the steps, nil when an event was not told in time.
func (k kase) try(t *testing.T, mode Mode) []string {
	t.Helper()
	r := k.prepare(t, mode)
	var told []string
	for _, s := range k.steps {
		if s.act != nil {
			s.act(r)
		}
		env := append([]string{"CNI_ARGS=" + Args(k.podNamespace(), k.podName(), "uid-1")}, s.env...)
		o := r.Call(s.verb, env...)
		if s.event != "" && r.API != nil && o.Error.Code == s.code && !r.AwaitEvent(&o) {
			return nil
		}
		s.check(t, r, k, o)
		told = append(told, s.tell(t, r, k, o))
	}
	k.undo(t, r)
	return told
}

// undo ends every case with the DEL that a runtime owes: it undoes what is there in
// reverse, asks nobody, and leaves nothing.
func (k kase) undo(t *testing.T, r *Rig) {
	t.Helper()
	held := len(r.Left())
	o := r.Call("DEL", "CNI_ARGS="+Args(k.podNamespace(), k.podName(), "uid-1"))
	if o.Status != 0 {
		t.Errorf("DEL at the end: %s", o.Stdout)
	}
	if held > 0 && len(o.Calls) == 0 {
		t.Error("DEL at the end called nobody")
	}
	if len(o.Requests) > 0 {
		t.Errorf("DEL at the end asked the API server: %v", o.Requests)
	}
	if left := r.Left(); len(left) > 0 {
		t.Errorf("left after DEL: %v", left)
	}
}

func (s step) check(t *testing.T, r *Rig, k kase, o Outcome) {
	t.Helper()
	if o.Error.Code != s.code || o.Status != min(s.code, 1) {
		t.Fatalf("%s answers code %d, want %d\n%s\n%s", s.verb, o.Error.Code, s.code, o.Stdout, o.Stderr)
	}
	for _, w := range s.words {
		if text := o.Error.Msg + " " + o.Error.Details; !strings.Contains(text, w) {
			t.Errorf("%s answers %q, which lacks %q", s.verb, text, w)
		}
	}
	if s.calls != nil && !slices.Equal(o.Names(), s.calls) {
		t.Errorf("%s: delegates were called %q, want %q", s.verb, o.Names(), s.calls)
	}
	for what, want := range s.gets {
		if got := given(t, r, o, what); got != want {
			t.Errorf("%s: %s is %s, want %s", s.verb, what, got, want)
		}
	}
	if s.prints != "" {
		if diff := cmp.Diff(compact(s.prints), compact(o.Stdout)); diff != "" {
			t.Errorf("%s prints (-want +got):\n%s", s.verb, diff)
		}
	}
	if !strings.Contains(o.Stderr, s.warn) {
		t.Errorf("%s: stderr %q lacks %q", s.verb, o.Stderr, s.warn)
	}
	if s.defaults != nil {
		if diff := cmp.Diff(s.defaults, defaults(t, r)); diff != "" {
			t.Errorf("%s: default routes (-want +got):\n%s", s.verb, diff)
		}
	}
	if s.verb == "ADD" && s.code != 0 {
		if left := r.Left(); len(left) > 0 {
			t.Errorf("left after the failed ADD: %v", left)
		}
	}
	if r.API != nil {
		s.checkAPI(t, r, k, o)
	}
	if s.also != nil {
		s.also(t, r, o)
	}
}

// checkAPI checks what a case says of the API server, and what holds for all of them: an
// ADD reads nothing twice and writes the pod once, no other verb asks anything.
func (s step) checkAPI(t *testing.T, r *Rig, k kase, o Outcome) {
	t.Helper()
	if s.status != "" {
		if diff := cmp.Diff(compact(s.status), k.networkStatus(r)); diff != "" {
			t.Errorf("network-status (-want +got):\n%s", diff)
		}
	}
	if s.event != "" && (len(o.Events) != 1 || !strings.HasPrefix(o.Events[0], s.event+": ")) {
		t.Errorf("events %q, want one of %s", o.Events, s.event)
	}
	if s.event == "" && len(o.Events) > 0 {
		t.Errorf("unexpected events %q", o.Events)
	}
	if s.hurry {
		return
	}
	if s.requests != nil {
		if diff := cmp.Diff(*s.requests, o.Requests); diff != "" {
			t.Errorf("%s: requests (-want +got):\n%s", s.verb, diff)
		}
		return
	}
	if s.verb != "ADD" && s.verb != "STATUS" && len(o.Requests) > 0 {
		t.Errorf("%s asked the API server: %q", s.verb, o.Requests)
	}
	if s.again {
		return
	}
	if sorted := slices.Sorted(slices.Values(o.Requests)); len(slices.Compact(sorted)) != len(o.Requests) {
		t.Errorf("%s asked twice: %q", s.verb, o.Requests)
	}
	patched := slices.Contains(o.Requests, "patch pods/status "+k.podNamespace()+"/"+k.podName())
	if s.verb == "ADD" && !k.noPod && len(o.Calls) > 0 && patched != (s.code == 0) {
		t.Errorf("ADD with code %d asked %q", s.code, o.Requests)
	}
}

// networkStatus is the annotation as compact JSON, "" when there is none.
func (k kase) networkStatus(r *Rig) string {
	return compact(r.Plain(r.API.Annotation(k.podNamespace(), k.podName(), StatusAnnotation)))
}

// given is a part of what a delegate was given: "pb ADD net1 key" is a member of its
// configuration, CNI_ARGS and the like its environment.
func given(t *testing.T, r *Rig, o Outcome, what string) string {
	t.Helper()
	at := strings.LastIndexByte(what, ' ')
	i := slices.IndexFunc(o.Calls, func(c Call) bool { return c.String() == what[:at] })
	if i < 0 {
		t.Fatalf("no call %s among %q", what[:at], o.Names())
	}
	c := o.Calls[i]
	switch key := what[at+1:]; key {
	case "CNI_ARGS":
		return c.Args
	case "CNI_NETNS":
		return r.Plain(c.Netns)
	default:
		var conf map[string]json.RawMessage
		if err := json.Unmarshal([]byte(c.Stdin), &conf); err != nil {
			t.Fatal(err)
		}
		return r.Plain(compact(string(conf[key])))
	}
}

// compact is JSON without blanks; what is no JSON stays as it is.
func compact(text string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(text)) != nil {
		return strings.TrimSpace(text)
	}
	return b.String()
}

// defaults are the default routes of the rig's namespace.
func defaults(t *testing.T, r *Rig) []string {
	t.Helper()
	n, err := kernel.OpenNetns(r.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	all := []string{}
	for _, family := range []kernel.Family{kernel.IPv4, kernel.IPv6} {
		routes, err := n.DefaultRoutes(family)
		if err != nil {
			t.Fatal(err)
		}
		for _, route := range routes {
			all = append(all, route.String())
		}
	}
	return all
}

// tell is the outcome of a step in full, for the page.
func (s step) tell(t *testing.T, r *Rig, k kase, o Outcome) string {
	t.Helper()
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if s.code != 0 {
		line("code %d: `%s`", o.Error.Code, o.Error.Msg)
		if o.Error.Details != "" {
			line("details: `%s`", o.Error.Details)
		}
	} else {
		line("success")
	}
	if names := o.Names(); len(names) > 0 {
		line("calls: `%s`", strings.Join(names, "`, `"))
	} else {
		line("no plugin is called")
	}
	for _, what := range slices.Sorted(maps.Keys(s.gets)) {
		line("%s: `%s`", what, or(given(t, r, o, what), "none"))
	}
	if s.code == 0 && s.verb == "ADD" {
		line("prints `%s`", compact(o.Stdout))
	}
	for _, w := range warnings(o) {
		line("warning: `%s`", w)
	}
	for _, d := range s.defaults {
		line("route: `%s`", d)
	}
	if r.API == nil {
		return b.String()
	}
	if s.code == 0 && s.verb == "ADD" && !k.noPod {
		line("network-status: `%s`", k.networkStatus(r))
	}
	for _, e := range o.Events {
		line("event: `%s`", e)
	}
	line("API: %s", requests(s, o))
	return b.String()
}

func requests(s step, o Outcome) string {
	switch {
	case len(o.Requests) == 0:
		return "no request"
	case s.hurry:
		return "as many requests as there is time for"
	}
	sorted := slices.Clone(o.Requests)
	slices.SortStableFunc(sorted, func(a, b string) int { return order(a) - order(b) })
	return "`" + strings.Join(sorted, "`, `") + "`"
}

// order puts events last: nobody waits for them, so they come when they like.
func order(request string) int {
	if strings.HasPrefix(request, "create events") {
		return 1
	}
	return 0
}

// warnings are those of stderr, without time and sandbox.
func warnings(o Outcome) []string {
	var all []string
	for line := range strings.Lines(o.Stderr) {
		if _, text, ok := strings.Cut(line, " warning: "); ok {
			all = append(all, strings.TrimSpace(text))
		}
	}
	slices.Sort(all)
	return all
}
