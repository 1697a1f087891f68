// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// world is what Make's callers know; zero fields are those of the fixture of spec/cni.md section 3.
type world struct {
	conf      string // members of the configuration beside cniVersion, name and type
	ns        string
	networks  string
	def       string
	notes     map[string]string // further annotations
	uid       string
	args      string
	nads      map[string]string // besides default/neta and other/netb
	resources map[string]string // resourceName annotations
	files     map[plan.Need]plan.File
	devices   map[string][]string
	reserved  []string
	noPod     bool

	rounds int // how often Make was asked
}

const delegatesPA = `"delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa"}]`

func (w *world) input(t testing.TB) plan.Input {
	t.Helper()
	members := w.conf
	if members == "" {
		members = delegatesPA
	}
	conf, _, err := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"m","type":"X",` + members + "}"))
	if err != nil {
		t.Fatalf("parse configuration: %v", err)
	}
	in := plan.Input{
		Conf:     conf,
		Sandbox:  plan.Sandbox{ContainerID: "cid1", IfName: "eth0", Netns: "/proc/1/ns/net", Args: w.args},
		NADs:     map[plan.NADRef]plan.NAD{},
		Files:    map[plan.Need]plan.File{},
		Reserved: w.reserved,
	}
	if w.args == "" {
		in.Sandbox.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-a;K8S_POD_INFRA_CONTAINER_ID=cid1;K8S_POD_UID=uid-1"
	}
	if w.noPod {
		return in
	}
	in.Pod = &plan.Pod{Namespace: "default", Name: "pod-a", UID: "uid-1", Annotations: map[string]string{}}
	if w.ns != "" {
		in.Pod.Namespace = w.ns
	}
	if w.uid != "" {
		in.Pod.UID = w.uid
	}
	maps.Copy(in.Pod.Annotations, w.notes)
	if w.networks != "" {
		in.Pod.Annotations[plan.NetworksAnnotation] = w.networks
	}
	if w.def != "" {
		in.Pod.Annotations[plan.DefaultNetworkAnnotation] = w.def
	}
	return in
}

func (w *world) lookUp(at plan.NADRef) plan.NAD {
	key := at.Namespace + "/" + at.Name
	config, ok := w.nads[key]
	if !ok {
		config, ok = map[string]string{
			"default/neta": `{"cniVersion":"1.0.0","type":"pb"}`,
			"other/netb":   `{"cniVersion":"1.0.0","type":"pc"}`,
		}[key]
	}
	return plan.NAD{Found: ok, Config: config, ResourceName: w.resources[key]}
}

// make plays the caller: it answers what Make needs until there is a plan or an error.
func (w *world) make(t testing.TB) (*plan.Plan, error) {
	t.Helper()
	in := w.input(t)
	for w.rounds = 1; w.rounds <= 5; w.rounds++ {
		out, err := plan.Make(in)
		if err != nil && out.Plan != nil {
			t.Error("an error and a plan at once")
		}
		if err != nil && len(out.NeedNADs)+len(out.NeedFiles) == 0 {
			if out.NeedDevices {
				t.Error("devices are asked for beside faults")
			}
			checkFaults(t, err)
			return nil, err
		}
		if out.Plan != nil {
			again, err := plan.Make(in)
			if err != nil || !reflect.DeepEqual(out, again) {
				t.Errorf("the same input gave another output: %v", err)
			}
			in.Explain = true
			explained, err := plan.Make(in)
			if err != nil || !reflect.DeepEqual(out.Plan, explained.Plan) || len(explained.Decisions) == 0 {
				t.Errorf("the explained plan is another: %v", err)
			}
			return out.Plan, nil
		}
		for _, at := range out.NeedNADs {
			if _, asked := in.NADs[at]; asked {
				t.Fatalf("NAD %v is asked for again", at)
			}
			in.NADs[at] = w.lookUp(at)
		}
		for _, need := range out.NeedFiles {
			if _, asked := in.Files[need]; asked {
				t.Fatalf("file %s is asked for again", need)
			}
			file := w.files[need]
			file.Need = need
			in.Files[need] = file
		}
		if out.NeedDevices {
			if in.Devices != nil {
				t.Fatal("devices are asked for again")
			}
			in.Devices = map[string][]string{}
			maps.Copy(in.Devices, w.devices)
		}
	}
	t.Fatal("Make never has enough")
	return nil, nil
}

// checkFaults holds every error to what all of them promise.
func checkFaults(t testing.TB, err error) {
	t.Helper()
	all := fault.All(err)
	if len(all) == 0 {
		t.Errorf("error without a fault: %v", err)
	}
	for _, f := range all {
		text := f.Error()
		if f.Code == 0 || f.Object == "" || f.Text == "" || strings.ContainsAny(text, "\n\r") || len(text) > fault.MaxText ||
			strings.Contains(strings.ToLower(text), "not found") {
			t.Errorf("malformed fault: code %d, object %q, %q", f.Code, f.Object, text)
		}
		if f.Code == fault.Internal {
			t.Errorf("a fault of Weft itself: %q", text)
		}
	}
}

// show gives "ifName network" of each attachment.
func show(p *plan.Plan) []string {
	var lines []string
	for _, a := range p.Attachments {
		lines = append(lines, a.IfName+" "+a.Network)
	}
	return lines
}

func mustPlan(t *testing.T, w world) *plan.Plan {
	t.Helper()
	p, err := w.make(t)
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	return p
}

// wantFault says that there is exactly one fault, of that code, and that its text holds all words.
func wantFault(t *testing.T, err error, code fault.Code, words ...string) {
	t.Helper()
	all := fault.All(err)
	if len(all) != 1 {
		t.Fatalf("want one fault with %q, got %d: %v", words, len(all), err)
	}
	if all[0].Code != code {
		t.Errorf("code %d, want %d", all[0].Code, code)
	}
	for _, word := range words {
		if !strings.Contains(all[0].Error(), word) {
			t.Errorf("%q is not in %q", word, all[0].Error())
		}
	}
}

// asJSON compares as JSON values.
func sameJSON(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	var g, w any
	if err := errors.Join(json.Unmarshal(got, &g), json.Unmarshal([]byte(want), &w)); err != nil {
		t.Fatalf("%s: %v in %s", what, err, got)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func texts(warnings []fault.Warning) string {
	var b strings.Builder
	for _, w := range warnings {
		b.WriteString(w.Object + ": " + w.Field + ": " + w.Text + "\n")
	}
	return b.String()
}
