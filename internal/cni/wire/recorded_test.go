// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// The frames in testdata/wire/v1 are one conversation with the first weft-planner
// (need, need2, plan) and one refusal (error). They are never made again: hands and
// planners of that age are out there, and what they send must stay readable.

func recorded(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "wire", "v1", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	recordedConf = `{"cniVersion":"1.1.0","name":"weft","type":"weft-cni","manifests":"/etc/weft/manifests",` +
		`"clusterNetwork":"/etc/cni/net.d/10-main.conflist","auxiliaryCNIChainName":"extras",` +
		`"capabilities":{"portMappings":true},"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}}`
	recordedUID  = "5f0c7f0e-1c1e-4d0e-9f0a-6a1f1f5d2b11"
	recordedArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=0c6f53c1;K8S_POD_UID=" + recordedUID
)

func recordedRequest() PlanRequest {
	return PlanRequest{
		Conf: []byte(recordedConf),
		Sandbox: plan.Sandbox{
			ContainerID: "0c6f53c1", IfName: "eth0", Netns: "/var/run/netns/cni-1", Path: "/opt/cni/bin",
			Args: "K8S_POD_INFRA_CONTAINER_ID=0c6f53c1;K8S_POD_UID=" + recordedUID + ";IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web",
		},
		Annotations: map[string]string{plan.NetworksAnnotation: "<given by the runtime>"},
	}
}

func recordedFiles() []plan.File {
	return []plan.File{
		{
			Need: "path//etc/cni/net.d/10-main.conflist", Found: true, Path: "/etc/cni/net.d/10-main.conflist",
			Data:    []byte(`{"cniVersion":"1.0.0","name":"main","plugins":[{"type":"ptp","capabilities":{"portMappings":true}}]}`),
			Chained: [][]byte{[]byte(`{"type":"tuning"}`)},
		},
		{
			Need: "confDir/filed", Found: true, Path: "/etc/cni/multus/net.d/10-filed.conf",
			Data:     []byte(`{"cniVersion":"0.3.1","name":"filed","type":"macvlan"}`),
			Warnings: []fault.Warning{{Object: "file /etc/cni/multus/net.d/01-old.conf", Text: "is not JSON; it is skipped"}},
		},
		{Need: "chain/extras", Found: true, Path: "/etc/cni/net.d/extras", Chained: [][]byte{[]byte(`{"type":"sbr"}`)}},
	}
}

func recordedPlan() *plan.Plan {
	plugin := func(conf, typ string, capabilities ...string) netconf.Plugin {
		p := netconf.Plugin{Type: typ, Conf: []byte(conf)}
		for _, c := range capabilities {
			if p.Capabilities == nil {
				p.Capabilities = map[string]bool{}
			}
			p.Capabilities[c] = true
		}
		return p
	}
	return &plan.Plan{
		PodNamespace: "shop", PodName: "web", PodUID: recordedUID,
		Attachments: []plan.Attachment{
			{
				Network: "main", IfName: "eth0", Default: true, Args: recordedArgs,
				Conf: netconf.Network{Name: "main", CNIVersion: "1.0.0", Plugins: []netconf.Plugin{
					plugin(`{"type":"ptp","capabilities":{"portMappings":true}}`, "ptp", "portMappings"),
					plugin(`{"type":"tuning"}`, "tuning"),
				}},
				RuntimeConfig: map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]`)},
			},
			{
				Network: "default/neta", IfName: "data0", Args: recordedArgs + ";MAC=02:00:00:00:00:09;IP=10.2.0.9/24",
				Conf: netconf.Network{Name: "neta", CNIVersion: "1.0.0", Plugins: []netconf.Plugin{
					plugin(`{"cniVersion":"1.0.0","type":"bridge","capabilities":{"mac": true, "ips": true},"vlan":7,"big":9007199254740993,"args":{"cni":{"a":9007199254740993}}}`,
						"bridge", "mac", "ips"),
				}},
				RuntimeConfig: map[string]json.RawMessage{"ips": json.RawMessage(`["10.2.0.9/24"]`), "mac": json.RawMessage(`"02:00:00:00:00:09"`)},
				Gateways:      []netip.Addr{netip.MustParseAddr("10.2.0.1")},
			},
			{
				Network: "shop/filed", IfName: "net2", Args: recordedArgs,
				Conf: netconf.Network{Name: "filed", CNIVersion: "0.3.1", Plugins: []netconf.Plugin{
					plugin(`{"cniVersion":"0.3.1","name":"filed","type":"macvlan"}`, "macvlan"),
				}},
			},
			{
				Network: "extras", IfName: "net3", Args: recordedArgs, Auxiliary: true,
				Conf: netconf.Network{Name: "extras", CNIVersion: "1.1.0", Plugins: []netconf.Plugin{plugin(`{"type":"sbr"}`, "sbr")}},
			},
		},
		Warnings: []fault.Warning{
			{Object: "pod shop/web", Field: "annotation k8s.v1.cni.cncf.io/networks[1].colour", Text: "is a key that Weft does not know; it has no effect"},
			{Object: "file /etc/cni/multus/net.d/01-old.conf", Text: "is not JSON; it is skipped"},
			{Object: "file /etc/weft/manifests/web.yaml:24", Text: "document is no YAML and is skipped: did not find expected node content"},
		},
	}
}

// TestRecordedRequests: this planner reads the hands of version 1.
func TestRecordedRequests(t *testing.T) {
	files := recordedFiles()
	gone := recordedRequest()
	gone.Sandbox.Args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=gone"
	for name, want := range map[string]struct {
		id    string
		req   PlanRequest
		files []plan.File
	}{
		"need":  {"0c6f53c1-eth0/0", recordedRequest(), nil},
		"need2": {"0c6f53c1-eth0/1", recordedRequest(), files[:2]},
		"plan":  {"0c6f53c1-eth0/2", recordedRequest(), files},
		"error": {"0c6f53c1-eth0/0", gone, nil},
	} {
		var seen []Request
		var out bytes.Buffer
		err := Serve(bytes.NewReader(recorded(t, name+".request")), &out, func(r Request) Response {
			seen = append(seen, r)
			return Response{Plan: &plan.Plan{}}
		})
		if err != nil || len(seen) != 1 {
			t.Fatalf("%s: %d requests, %v", name, len(seen), err)
		}
		want.req.Files = want.files
		if d := cmp.Diff(Request{Version: 1, RequestID: want.id, Verb: "plan", Plan: &want.req}, seen[0]); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if all := responses(t, &out); len(all) != 1 || all[0].Version != 1 || all[0].RequestID != want.id {
			t.Errorf("%s: answered with %+v", name, all)
		}
	}
}

// TestRecordedResponses: these hands read the planner of version 1, and ask as
// those of version 1 did.
func TestRecordedResponses(t *testing.T) {
	var seen []Request
	c := dial(t, func(conn net.Conn) {
		for _, name := range []string{"need", "need2", "plan"} {
			var req Request
			if Read(conn, &req) != nil {
				return
			}
			seen = append(seen, req)
			_, _ = conn.Write(recorded(t, name+".response"))
		}
	})
	var needs []plan.Need
	p, err := c.Plan(t.Context(), recordedRequest(), func(n plan.Need) plan.File {
		needs = append(needs, n)
		f := recordedFiles()[len(needs)-1]
		f.Need = ""
		return f
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]plan.Need{"path//etc/cni/net.d/10-main.conflist", "confDir/filed", "chain/extras"}, needs); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(recordedPlan(), p, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Error(d)
	}
	c.Close()
	for i, name := range []string{"need", "need2", "plan"} {
		var want Request
		if err := Read(bytes.NewReader(recorded(t, name+".request")), &want); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, seen[i]); d != "" {
			t.Errorf("request %d differs from the recorded one: %s", i, d)
		}
	}
}

func TestRecordedError(t *testing.T) {
	c := dial(t, func(conn net.Conn) {
		var req Request
		if Read(conn, &req) == nil {
			_, _ = conn.Write(recorded(t, "error.response"))
		}
	})
	_, err := c.Plan(t.Context(), recordedRequest(), noFile(t))
	want := "pod shop/gone: is not known yet: no manifest holds it; " +
		"file /etc/weft/manifests/web.yaml:24: document is no YAML and is skipped: did not find expected node content"
	if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.TryLater || f.Error() != want {
		t.Errorf("error %v", err)
	}
}
