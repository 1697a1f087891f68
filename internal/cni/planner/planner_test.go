// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/wire"
)

// source is a Source of plain values; what it lacks in pods it does not know.
type source struct {
	pods     map[string]*plan.Pod
	nads     map[plan.NADRef]plan.NAD
	nadErr   error
	devices  map[string][]string
	warnings []fault.Warning
}

func (s source) Pod(_ context.Context, namespace, name string) (*plan.Pod, error) {
	if p, ok := s.pods[namespace+"/"+name]; ok {
		return new(*p), nil
	}
	return nil, fault.New(fault.TryLater, "pod "+namespace+"/"+name, "", "is not known yet")
}

func (s source) NAD(_ context.Context, ref plan.NADRef) (plan.NAD, error) {
	return s.nads[ref], s.nadErr
}

func (s source) Devices(context.Context, *plan.Pod) (map[string][]string, error) {
	return s.devices, nil
}

func (s source) Warnings() []fault.Warning { return s.warnings }

const testConf = `{"cniVersion":"1.0.0","name":"m","type":"weft-cni","delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa"}]}`

func request(args string) wire.PlanRequest {
	return wire.PlanRequest{
		Conf:    []byte(testConf),
		Sandbox: plan.Sandbox{ContainerID: "cid1", IfName: "eth0", Netns: "/run/netns/x", Args: args},
	}
}

func networks(uid, value string) map[string]*plan.Pod {
	return map[string]*plan.Pod{"default/web": {
		Namespace: "default", Name: "web", UID: uid, Annotations: map[string]string{plan.NetworksAnnotation: value},
	}}
}

const webArgs = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID=u1"

func TestAnswer(t *testing.T) {
	neta := map[plan.NADRef]plan.NAD{{Namespace: "default", Name: "neta"}: {
		Found: true, Config: `{"cniVersion":"1.0.0","type":"pb"}`, ResourceName: "ex.com/vf",
	}}
	broken := []fault.Warning{{Object: "file f.yaml:3", Field: "metadata.name", Text: "is missing; the object is skipped"}}
	later := fault.New(fault.TryLater, "API server", "", "gives no answer")
	for name, c := range map[string]struct {
		src  source
		req  wire.PlanRequest
		want []string // IfName=Network=DeviceID of each attachment
		uid  string
		err  *wire.Error
	}{
		"no pod of Kubernetes": {req: request("FOO=bar"), want: []string{"eth0=defnet="}},
		"a NAD and a device": {
			src: source{pods: networks("u1", "neta"), nads: neta, devices: map[string][]string{"ex.com/vf": {"0000:03:02.0"}}, warnings: broken},
			req: request(webArgs), uid: "u1", want: []string{"eth0=defnet=", "net1=default/neta=0000:03:02.0"},
		},
		"a pod that has no UID yet": {
			src: source{pods: networks("", "")}, req: request(webArgs), uid: "u1", want: []string{"eth0=defnet="},
		},
		"no device": {
			src: source{pods: networks("u1", "neta"), nads: neta, devices: map[string][]string{}, warnings: broken}, req: request(webArgs),
			err: &wire.Error{Code: 7, Msg: "MSG"},
		},
		"a NAD that is not there": {
			src: source{pods: networks("u1", "netz"), warnings: broken}, req: request(webArgs),
			err: &wire.Error{Code: 7, Msg: "MSG", Details: "file f.yaml:3: metadata.name: is missing; the object is skipped"},
		},
		"a pod that is not known": {
			src: source{warnings: broken}, req: request(webArgs),
			err: &wire.Error{Code: 11, Msg: "pod default/web: is not known yet", Details: "file f.yaml:3: metadata.name: is missing; the object is skipped"},
		},
		"another pod of the name": {
			src: source{pods: networks("u2", "")}, req: request(webArgs), err: &wire.Error{Code: 11, Msg: "MSG"},
		},
		"a source that is away": {
			src: source{pods: networks("u1", "neta"), nadErr: later}, req: request(webArgs),
			err: &wire.Error{Code: 11, Msg: "API server: gives no answer"},
		},
		"half of a name": {
			req: request("K8S_POD_NAME=web"),
			err: &wire.Error{Code: 4, Msg: "CNI_ARGS: K8S_POD_NAMESPACE: is missing beside K8S_POD_NAME"},
		},
		"the other half": {
			req: request("K8S_POD_NAMESPACE=default"),
			err: &wire.Error{Code: 4, Msg: "CNI_ARGS: K8S_POD_NAME: is missing beside K8S_POD_NAMESPACE"},
		},
		"a conf that is none": {req: wire.PlanRequest{Conf: []byte("{")}, err: &wire.Error{Code: 7, Msg: "MSG"}},
	} {
		t.Run(name, func(t *testing.T) {
			res := Answer(t.Context(), c.req, func(*netconf.Conf) (Source, error) { return c.src, nil })
			if c.err != nil {
				if res.Error == nil {
					t.Fatalf("answer %+v, want an error", res)
				}
				if c.err.Msg == "MSG" && res.Error.Msg != "" { // netconf and plan word it, and test it
					c.err.Msg = res.Error.Msg
				}
				if d := cmp.Diff(wire.Response{Error: c.err}, res); d != "" {
					t.Error(d)
				}
				return
			}
			if res.Plan == nil {
				t.Fatalf("answer %+v, want a plan", res.Error)
			}
			var got []string
			for _, a := range res.Plan.Attachments {
				got = append(got, a.IfName+"="+a.Network+"="+a.DeviceID)
			}
			if d := cmp.Diff(c.want, got); d != "" || res.Plan.PodUID != c.uid {
				t.Errorf("UID %q, attachments %s", res.Plan.PodUID, d)
			}
			if d := cmp.Diff(c.src.warnings, res.Plan.Warnings); d != "" {
				t.Error(d)
			}
		})
	}
}

// What explain tells first is what the ADD is answered, whatever else is wrong; and a source
// that is away hides nothing that is known without it.
func TestExplainTellsFirstWhatAnswerDoes(t *testing.T) {
	const pod = "pod default/web: annotation k8s.v1.cni.cncf.io/networks"
	nads := map[plan.NADRef]plan.NAD{
		{Namespace: "default", Name: "a"}:   {Found: true, Config: `{"cniVersion":"1.0.0","type":"pb"}`},
		{Namespace: "default", Name: "bad"}: {Found: true, Config: `{`},
		{Namespace: "default", Name: "vf"}:  {Found: true, Config: `{"cniVersion":"1.0.0","type":"pb"}`, ResourceName: "ex.com/vf"},
	}
	for asked, first := range map[string]string{
		"a@x0,a@x0,nope": pod + `[2]: names`,
		"nope,a@x0,a@x0": pod + `[0]: names`,
		"a@x0,a@x0,bad":  "NetworkAttachmentDefinition default/bad: spec.config",
		"a@x0,a@x0,vf":   pod + `[1]: the interface name "x0"`,
		`[{"name":"a","mac":"x"},{"name":"nope"}]`: pod + "[0].mac",
	} {
		src := source{pods: networks("u1", asked), nads: nads, devices: map[string][]string{}}
		res := Answer(t.Context(), request(webArgs), func(*netconf.Conf) (Source, error) { return src, nil })
		in := plan.Input{Sandbox: request(webArgs).Sandbox, Pod: src.pods["default/web"], LookUp: true}
		var err error
		if in.Conf, _, err = netconf.Parse([]byte(testConf)); err != nil {
			t.Fatal(err)
		}
		_, err = Explain(t.Context(), in, src, func(n plan.Need) plan.File { return plan.File{Need: n} })
		faults := fault.All(err)
		if res.Error == nil || len(faults) == 0 {
			t.Fatalf("%s: answer %+v, explained %v", asked, res, err)
		}
		if !strings.HasPrefix(res.Error.Msg, first) || res.Error.Code != 7 || faults[0].Error() != res.Error.Msg {
			t.Errorf("%s: answered %d %s\nexplained %s\nwant %s", asked, res.Error.Code, res.Error.Msg, faults[0], first)
		}
		if strings.Contains(asked, "nope") && !strings.Contains(res.Error.Msg+res.Error.Details, "nope") {
			t.Errorf("%s: the answer says nothing of nope: %+v", asked, res.Error)
		}
		src.nadErr = fault.New(fault.TryLater, "API server", "", "gives no answer")
		res = Answer(t.Context(), request(webArgs), func(*netconf.Conf) (Source, error) { return src, nil })
		if known := strings.Contains(asked, "x0") || strings.Contains(asked, "mac"); known && res.Error.Code != 7 {
			t.Errorf("%s, source away: %+v", asked, res.Error)
		}
	}
}

func TestAnswerAsksForFiles(t *testing.T) {
	src := source{pods: networks("u1", "neta"), nads: map[plan.NADRef]plan.NAD{{Namespace: "default", Name: "neta"}: {Found: true}}}
	open := func(*netconf.Conf) (Source, error) { return src, nil }
	req := request(webArgs)
	res := Answer(t.Context(), req, open)
	if d := cmp.Diff(wire.Response{Need: []plan.Need{"confDir/neta"}}, res); d != "" {
		t.Fatal(d)
	}
	req.Files = []plan.File{{Need: "confDir/neta", Found: true, Path: "/c/1.conf", Data: []byte(`{"cniVersion":"0.4.0","name":"neta","type":"pz"}`)}}
	res = Answer(t.Context(), req, open)
	if res.Plan == nil || len(res.Plan.Attachments) != 2 || res.Plan.Attachments[1].Conf.Plugins[0].Type != "pz" {
		t.Errorf("answer %+v, %+v", res.Plan, res.Error)
	}
}

func TestAnswerWithoutSource(t *testing.T) {
	res := Answer(t.Context(), request(webArgs), func(*netconf.Conf) (Source, error) {
		return nil, fault.New(fault.Config, "configuration m", "manifests", "is missing")
	})
	if d := cmp.Diff(wire.Response{Error: &wire.Error{Code: 7, Msg: "configuration m: manifests: is missing"}}, res); d != "" {
		t.Error(d)
	}
}
