// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

const (
	networks = "annotation k8s.v1.cni.cncf.io/networks"
	defnet   = "annotation v1.multus-cni.io/default-network"
)

// TestCases runs the planning cases of spec/cni.md section 3 by their numbers.
func TestCases(t *testing.T) {
	cluster := `"clusterNetwork":"cn","defaultNetworks":["fromfile","third"]`
	kube := map[string]string{
		"kube-system/cn":      `{"cniVersion":"1.0.0","type":"pa"}`,
		"kube-system/third":   `{"cniVersion":"1.0.0","type":"pd"}`,
		"kube-system/neta":    `{"cniVersion":"1.0.0","type":"pb"}`,
		"kube-system/netk":    `{"cniVersion":"1.0.0","type":"pk","capabilities":{"mac":true,"ips":true}}`,
		"default/bare":        "",
		"default/caps":        `{"cniVersion":"1.0.0","type":"pb","capabilities":{"ips":true,"portMappings":true}}`,
		"default/str":         `{"cniVersion":"1.0.0","type":"pb","args":"str"}`,
		"default/slash":       `{"cniVersion":"1.0.0","plugins":[{"type":"ok"},{"type":"../../tmp/x"}]}`,
		"default/self":        `{"cniVersion":"1.0.0","type":"multus"}`,
		"default/old":         `{"cniVersion":"1.2","type":"pb"}`,
		"default/noplugins":   `{"cniVersion":"1.0.0","plugins":[]}`,
		"default/null":        `{"cniVersion":"1.0.0","type":"pb"}`,
		"default/dotted.name": `{"cniVersion":"1.0.0","type":"pb"}`,
	}
	files := map[plan.Need]plan.File{
		"confDir/fromfile": {Found: true, Path: "/c/20-f.conf", Data: []byte(`{"cniVersion":"1.0.0","name":"fromfile","type":"pf"}`)},
		"confDir/bare": {
			Found: true, Path: "/c/10-a.conflist", Data: []byte(`{"cniVersion":"1.0.0","name":"bare","plugins":[{"type":"pb"}]}`),
			Warnings: []fault.Warning{{Object: "file /c/01-broken.conf", Text: "is skipped"}},
		},
	}
	json1 := func(members string) string { return `[{"name":"neta",` + members + "}]" }
	cases := []struct {
		name  string
		w     world
		want  []string
		fault []string // words of the one fault of code 7
		warn  string
	}{
		{name: "B1", w: world{networks: "neta"}, want: []string{"eth0 defnet", "net1 default/neta"}},
		{name: "B2", w: world{networks: "neta,other/netb@foo0,neta"}, want: []string{"eth0 defnet", "net1 default/neta", "foo0 other/netb", "net3 default/neta"}},
		{name: "B4", w: world{networks: "neta@dup,neta@dup"}, fault: []string{networks + "[1]", `"dup"`, networks + "[0]"}},
		{name: "B5", w: world{networks: "neta@eth0"}, fault: []string{networks + "[0]", `"eth0"`, "delegates[0]"}},
		{name: "B7", w: world{networks: "neta,"}, want: []string{"eth0 defnet", "net1 default/neta"}},
		{name: "B7 blank item inside", w: world{networks: "neta,,neta"}, fault: []string{networks + "[1]", "is empty"}},
		{name: "B8", w: world{networks: " \t\n"}, want: []string{"eth0 defnet"}},
		{name: "B9", w: world{networks: `{"name":"neta"}`}, fault: []string{"pod default/pod-a", networks + ": is an object, an array is needed"}},
		{name: "B10 sixteen", w: world{networks: json1(`"interface":"abcdefghijklmnop"`)}, fault: []string{networks + "[0].interface", "15 bytes"}},
		{name: "B10 slash", w: world{networks: json1(`"interface":"x/y"`)}, fault: []string{networks + "[0].interface", `"x/y"`}},
		{name: "B10 colon", w: world{networks: json1(`"interface":"a:b"`)}, fault: []string{networks + "[0].interface", `"a:b"`}},
		{name: "B10 dot", w: world{networks: json1(`"interface":"."`)}, fault: []string{networks + "[0].interface", `"."`}},
		{name: "B10 dots", w: world{networks: json1(`"interface":".."`)}, fault: []string{networks + "[0].interface", `".."`}},
		{name: "B11", w: world{networks: `[{"name":"other/netb"}]`}, want: []string{"eth0 defnet", "net1 other/netb"}, warn: "key namespace"},
		{name: "B11 strict", w: world{conf: `"strict":true,` + delegatesPA, networks: `[{"name":"other/netb"}]`}, fault: []string{networks + "[0].name", "key namespace"}},
		{name: "B12", w: world{networks: json1(`"mac":"24:8a:07:03:00:8d:ae:2f"`)}, fault: []string{networks + "[0].mac", `"24:8a:07:03:00:8d:ae:2f" is not 6 bytes`}},
		{name: "B12 guid", w: world{networks: json1(`"infiniband-guid":"24:8a:07:03:00:8d"`)}, fault: []string{networks + "[0].infiniband-guid", "is not 8 bytes"}},
		{name: "B13", w: world{networks: json1(`"ips":["10.1.1.5/24"]`)}, want: []string{"eth0 defnet", "net1 default/neta"}, warn: "capability ips"},
		{name: "B13 strict", w: world{conf: `"strict":true,` + delegatesPA, networks: json1(`"ips":["10.1.1.5/24"]`)}, fault: []string{networks + "[0].ips", "capability ips"}},
		{name: "B14", w: world{networks: json1(`"portMappings":[{"hostPort":99999,"containerPort":80}]`)}, fault: []string{networks + "[0].portMappings[0].hostPort", "99999", "65535"}},
		{name: "B15 old", w: world{networks: json1(`"interfaceRequest":"old0"`)}, want: []string{"eth0 defnet", "old0 default/neta"}},
		{name: "B15 both", w: world{networks: json1(`"interfaceRequest":"old0","interface":"new0"`)}, want: []string{"eth0 defnet", "new0 default/neta"}},
		{name: "B17", w: world{nads: kube, networks: `[{"name":"str","cni-args":{"a":1}}]`}, fault: []string{"NetworkAttachmentDefinition default/str", "spec.config args", "is a string"}},
		{name: "B20", w: world{nads: kube, files: files, networks: "bare"}, want: []string{"eth0 defnet", "net1 default/bare"}, warn: "/c/01-broken.conf"},
		{name: "B20 no file", w: world{nads: kube, networks: "bare"}, fault: []string{"NetworkAttachmentDefinition default/bare", "spec.config", "/etc/cni/multus/net.d"}},
		{name: "B21 other", w: world{conf: `"namespaceIsolation":true,` + delegatesPA, ns: "ns1", args: "A=b", networks: "other/netb"}, fault: []string{networks + "[0]", `"other"`, `"ns1"`}},
		{name: "B21 default", w: world{conf: `"namespaceIsolation":true,` + delegatesPA, ns: "ns1", args: "A=b", networks: "default/neta"}, want: []string{"eth0 defnet", "net1 default/neta"}},
		{name: "B21 global", w: world{conf: `"namespaceIsolation":true,"globalNamespaces":"other",` + delegatesPA, ns: "ns1", args: "A=b", networks: "other/netb"}, want: []string{"eth0 defnet", "net1 other/netb"}},
		{name: "B21 no longer global", w: world{conf: `"namespaceIsolation":true,"globalNamespaces":"other",` + delegatesPA, ns: "ns1", args: "A=b", networks: "default/neta"}, fault: []string{networks + "[0]", `"default"`}},
		{name: "isolation of the default network", w: world{conf: `"namespaceIsolation":true,` + delegatesPA, ns: "ns1", args: "A=b", def: "other/netb"}, fault: []string{defnet + "[0]", `"other"`}},
		{name: "B23 list", w: world{def: "[]"}, want: []string{"eth0 defnet"}},
		{name: "B23 blank", w: world{def: "  "}, want: []string{"eth0 defnet"}},
		{name: "default network replaced", w: world{nads: kube, def: "netk", networks: "neta"}, want: []string{"eth0 kube-system/netk", "net1 default/neta"}},
		{name: "two default networks", w: world{nads: kube, def: "netk,netk"}, fault: []string{defnet, "2 networks"}},
		{name: "B25", w: world{nads: kube, def: "netk@foo0"}, fault: []string{defnet + "[0]", `"foo0"`, `"eth0"`}},
		{
			name: "B26", w: world{conf: cluster, nads: kube, files: files, networks: "neta"},
			want: []string{"eth0 kube-system/cn", "net1 fromfile", "net2 kube-system/third", "net3 default/neta"},
		},
		{
			name: "B26 kube-system", w: world{conf: cluster, nads: kube, files: files, ns: "kube-system", args: "A=b", networks: "neta"},
			want: []string{"eth0 kube-system/cn", "net1 kube-system/neta"},
		},
		{name: "B51 one element", w: world{networks: json1(`"default-route":["10.2.0.1","10.2.0.2"]`)}, fault: []string{networks + "[0].default-route[1]", "IPv4"}},
		{name: "B51", w: world{networks: `[{"name":"neta","default-route":["10.2.0.1"]},{"name":"neta","default-route":["10.2.0.9"]}]`}, fault: []string{networks + "[1].default-route[0]", "IPv4", networks + "[0]"}},
		{name: "B51 families", w: world{networks: `[{"name":"neta","default-route":["10.2.0.1"]},{"name":"neta","default-route":["fd02::1"]}]`}, want: []string{"eth0 defnet", "net1 default/neta", "net2 default/neta"}},
		{name: "B51 families, strict", w: world{conf: `"strict":true,` + delegatesPA, networks: `[{"name":"neta","default-route":["10.2.0.1"]},{"name":"neta","default-route":["fd02::1"]}]`}, fault: []string{networks + "[1].default-route", networks + "[0]"}},

		{name: "automatic name taken", w: world{networks: "neta@net2,neta"}, fault: []string{networks + "[1]", `"net2"`, "automatic", networks + "[0]"}},
		{name: "reserved name", w: world{reserved: []string{"net1"}, networks: "neta"}, fault: []string{networks + "[0]", `"net1"`, "claims"}},
		{name: "loopback", w: world{networks: "neta@lo"}, fault: []string{networks + "[0]", "loopback"}},
		{name: "text null", w: world{nads: kube, networks: "null"}, want: []string{"eth0 defnet", "net1 default/null"}, warn: "null is read as the name"},
		{name: "[null]", w: world{networks: "[null]"}, fault: []string{networks + "[0]: is null, an object is needed"}},
		{name: "{}", w: world{networks: "{}"}, fault: []string{networks + ": is an object"}},
		{name: "[]", w: world{networks: "[]"}, want: []string{"eth0 defnet"}},
		{name: "dots", w: world{nads: kube, networks: "dotted.name"}, want: []string{"eth0 defnet", "net1 default/dotted.name"}},
		{name: "capitals", w: world{networks: "NetA"}, fault: []string{networks + "[0]", `"NetA"`}},
		{name: "no such NAD", w: world{networks: "gone"}, fault: []string{networks + "[0]", `"default/gone"`, "does not exist"}},
		{name: "type with a slash", w: world{nads: kube, networks: "slash"}, fault: []string{"NetworkAttachmentDefinition default/slash", "spec.config plugins[1].type", "slash"}},
		{name: "calls itself", w: world{nads: kube, networks: "self"}, fault: []string{"NetworkAttachmentDefinition default/self", "spec.config type", "multus"}},
		{name: "unknown version", w: world{nads: kube, networks: "old"}, fault: []string{"NetworkAttachmentDefinition default/old", "spec.config cniVersion", `"1.2"`}},
		{name: "no plugins", w: world{nads: kube, networks: "noplugins,noplugins"}, fault: []string{"NetworkAttachmentDefinition default/noplugins", "spec.config plugins", "is empty"}},
		{name: "no networks but the conf's", w: world{noPod: true, conf: `"delegates":[{"name":"a","type":"pa"},{"name":"b","type":"pb"}]`}, want: []string{"eth0 a", "net1 b"}},
		{name: "delegates and networks", w: world{networks: "neta", conf: `"delegates":[{"name":"a","type":"pa"},{"name":"b","type":"pb"}]`}, want: []string{"eth0 a", "net1 b", "net2 default/neta"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, err := c.w.make(t)
			if c.fault != nil {
				wantFault(t, err, fault.Config, c.fault...)
				return
			}
			if err != nil {
				t.Fatalf("plan: %v", err)
			}
			if diff := cmp.Diff(c.want, show(p)); diff != "" {
				t.Errorf("attachments (-want +got):\n%s", diff)
			}
			got := texts(p.Warnings)
			if c.warn == "" && got != "" || !strings.Contains(got, c.warn) {
				t.Errorf("warnings %q, want %q", got, c.warn)
			}
			for i, a := range p.Attachments {
				if a.Default != (i == 0) {
					t.Errorf("attachment %d: default is %t", i, a.Default)
				}
			}
		})
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	w := world{networks: `[{"name":"neta","mac":"x","ips":"1.2.3.4"},{"name":"NETA"},null]`, def: "a,b"}
	_, err := w.make(t)
	var fields []string
	for _, f := range fault.All(err) {
		fields = append(fields, f.Field)
	}
	want := []string{defnet, networks + "[0].ips", networks + "[0].mac", networks + "[1].name", networks + "[2]"}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	// They are known before anything was asked for; what neta and the default network lack is besides.
	out, first := plan.Make(w.input(t))
	if first == nil || first.Error() != err.Error() || len(out.NeedNADs) == 0 {
		t.Errorf("at first: %v, lacks %v", first, out.NeedNADs)
	}
}

func TestEveryPieceIsAskedForAtOnce(t *testing.T) {
	w := world{
		conf: `"clusterNetwork":"cn","defaultNetworks":["/etc/x.conf","d2"],"auxiliaryCNIChainName":"aux"`,
		def:  "netk", networks: "neta,other/netb,neta",
	}
	out, err := plan.Make(w.input(t))
	if err != nil {
		t.Fatal(err)
	}
	wantNADs := []plan.NADRef{{Namespace: "kube-system", Name: "cn"}, {Namespace: "kube-system", Name: "netk"}, {Namespace: "kube-system", Name: "d2"}, {Namespace: "default", Name: "neta"}, {Namespace: "other", Name: "netb"}}
	if diff := cmp.Diff(wantNADs, out.NeedNADs); diff != "" {
		t.Errorf("NADs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]plan.Need{"path//etc/x.conf"}, out.NeedFiles); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if out.Plan != nil {
		t.Error("a plan although something is missing")
	}
}

func TestTooManyNetworks(t *testing.T) {
	w := world{networks: strings.Repeat("neta,", plan.MaxNetworks+1)}
	_, err := w.make(t)
	wantFault(t, err, fault.Config, networks, "257", "256")
	w = world{networks: strings.Repeat("neta,", plan.MaxNetworks), conf: `"delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa"},{"cniVersion":"1.0.0","name":"more","type":"pa"}]`} // one too many
	_, err = w.make(t)
	wantFault(t, err, fault.Config, "257", "256")
	w = world{networks: strings.Repeat("neta,", plan.MaxNetworks)} // besides the pod network
	if p := mustPlan(t, w); len(p.Attachments) != plan.MaxNetworks+1 {
		t.Errorf("%d attachments", len(p.Attachments))
	}
}

func TestLargeNAD(t *testing.T) {
	pad := strings.Repeat("x", 1<<20)
	w := world{networks: "neta", nads: map[string]string{"default/neta": `{"type":"pb","pad":"` + pad + `"}`}}
	if p := mustPlan(t, w); len(p.Attachments[1].Conf.Plugins[0].Conf) < 1<<20 {
		t.Error("a NAD of 1 MiB lost bytes")
	}
	w.nads["default/neta"] = `{"type":"pb","pad":"` + pad + pad + `"}`
	_, err := w.make(t)
	wantFault(t, err, fault.Config, "NetworkAttachmentDefinition default/neta", "spec.config", "2097152")
	w.nads["default/neta"] = `{"type":"pb","pad":"` + pad + `"}`
	w.networks = strings.Repeat("neta,", 50)
	_, err = w.make(t)
	wantFault(t, err, fault.Config, "pod default/pod-a: "+networks+": ", "together, at most 4194304 are allowed")
	w.networks = "neta,neta,neta"
	if p := mustPlan(t, w); p.ConfBytes() < 3<<20 || p.ConfBytes() > plan.MaxConfs {
		t.Errorf("%d bytes", p.ConfBytes())
	}
}

// TestManyNetworks: the limit of a plan leaves room for as many networks as a pod may have.
func TestManyNetworks(t *testing.T) {
	w := world{networks: strings.TrimSuffix(strings.Repeat("neta,", 200), ","), nads: map[string]string{
		"default/neta": `{"type":"pb","pad":"` + strings.Repeat("x", 16<<10) + `"}`,
	}}
	if p := mustPlan(t, w); len(p.Attachments) != 201 {
		t.Errorf("%d attachments", len(p.Attachments))
	}
}
