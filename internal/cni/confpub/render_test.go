// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package confpub_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/confpub"
	"github.com/weftnet/weft/internal/cni/netconf"
)

func options() confpub.Options {
	return confpub.Options{ConfDir: "/etc/cni/net.d", ConfName: "00-weft.conflist", AgentSocket: "/run/weft/agent.sock"}
}

const flannel = `{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {"type": "flannel", "delegate": {"hairpinMode": true, "mtu": 1450.0}},
    {"type": "portmap", "capabilities": {"portMappings": true, "off": false}},
    {"type": "bandwidth", "capabilities": {"bandwidth": true}}
  ]
}
`

func TestRender(t *testing.T) {
	o := options()
	o.PrimaryConf = "/etc/cni/net.d/10-flannel.conflist"
	o.StateDir, o.BinDir = netconf.DefaultStateDir, "/opt/cni/bin"
	got, err := confpub.Render(o, []byte(flannel))
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "cniVersion": "1.1.0",
  "name": "weft",
  "plugins": [
    {
      "type": "weft-cni",
      "capabilities": {"bandwidth":true,"io.kubernetes.cri.pod-annotations":true,"portMappings":true},
      "agentSocket": "/run/weft/agent.sock",
      "primaryConf": "/etc/cni/net.d/10-flannel.conflist",
      "delegates": [` + strings.TrimSpace(flannel) + `]
    }
  ]
}
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("published conf (-want +got):\n%s", diff)
	}
}

// What the house needs and what a user adds are all there; places that are the default are not.
func TestRenderKeys(t *testing.T) {
	o := options()
	o.StateDir, o.BinDir = "/state", "/bin/cni"
	o.Extra = map[string]json.RawMessage{
		"namespaceIsolation": json.RawMessage(`true`), "confDir": json.RawMessage(`"/nads"`),
		"logOptions": json.RawMessage(`{"maxAge": 1}`), "strict": json.RawMessage(`null`), "timeout": json.RawMessage(`"30s"`),
		"defaultNetworks": json.RawMessage(`["a"]`), "auxiliaryCNIChainName": json.RawMessage(`"aux"`),
	}
	b, err := confpub.Render(o, []byte(` {"type":"ptp","name":"p","capabilities":{"mac":true}} `))
	if err != nil {
		t.Fatal(err)
	}
	// The runtime's own reading of it.
	list, err := libcni.ConfListFromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	if list.Name != "weft" || list.CNIVersion != "1.1.0" || len(list.Plugins) != 1 || !list.Plugins[0].Network.Capabilities["mac"] {
		t.Errorf("libcni reads %+v", list)
	}
	var got map[string]any
	if err := json.Unmarshal(list.Plugins[0].Bytes, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"type": "weft-cni", "agentSocket": "/run/weft/agent.sock", "stateDir": "/state", "binDir": "/bin/cni",
		"capabilities":    map[string]any{"mac": true, "io.kubernetes.cri.pod-annotations": true},
		"defaultNetworks": []any{"a"}, "auxiliaryCNIChainName": "aux",
		"namespaceIsolation": true, "confDir": "/nads", "logOptions": map[string]any{"maxAge": 1.0}, "strict": nil, "timeout": "30s",
		"delegates": []any{map[string]any{"type": "ptp", "name": "p", "capabilities": map[string]any{"mac": true}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plugin conf (-want +got):\n%s", diff)
	}
}

func TestRenderRefuses(t *testing.T) {
	for name, primary := range map[string]string{
		"nothing":        ``,
		"no JSON":        `{"name":`,
		"no plugin":      `{"name":"x","plugins":[]}`,
		"version":        `{"name":"x","cniVersion":"9.0.0","type":"ptp"}`,
		"too large":      `{"name":"x","type":"ptp","x":"` + strings.Repeat("x", netconf.MaxBytes-60) + `"}`,
		"type is a path": `{"name":"x","type":"../ptp"}`,
	} {
		if b, err := confpub.Render(options(), []byte(primary)); err == nil {
			t.Errorf("%s: rendered %.100s", name, b)
		}
	}
}

// Every fault of the options is told with its key.
func TestValidate(t *testing.T) {
	if err := options().Validate(); err != nil {
		t.Fatal(err)
	}
	o := confpub.Options{
		ConfName: "x/00-weft.conf", PrimaryConf: "10.conf", StateDir: "state", BinDir: "bin",
		Extra: map[string]json.RawMessage{},
	}
	for _, k := range []string{
		"type", "name", "cniVersion", "delegates", "kubeconfig", "agentSocket", "clusterNetwork", "manifests", "capabilities",
		"runtimeConfig", "prevResult", "primaryConf", "args", "nosuch", "Type", "cni.dev/attachments",
	} {
		o.Extra[k] = json.RawMessage(`true`)
	}
	o.Extra["strict"] = json.RawMessage(`tru`)
	err := o.Validate()
	if err == nil {
		t.Fatal("no fault")
	}
	lines := strings.Split(err.Error(), "\n")
	keys := append([]string{"confDir", "confName", "stateDir", "binDir"}, "nosuch", "strict")
	for k := range o.Extra {
		keys = append(keys, k)
	}
	for _, k := range keys {
		found := false
		for _, l := range lines {
			found = found || strings.HasPrefix(l, k+": ")
		}
		if !found {
			t.Errorf("no fault names %s:\n%s", k, err)
		}
	}
	for name, change := range map[string]func(*confpub.Options){
		"namespaceIsolation": func(o *confpub.Options) {
			o.Extra = map[string]json.RawMessage{"namespaceIsolation": json.RawMessage(`"yes"`)}
		},
		"timeout":     func(o *confpub.Options) { o.Extra = map[string]json.RawMessage{"timeout": json.RawMessage(`"-1s"`)} },
		"primaryConf": func(o *confpub.Options) { o.PrimaryConf = "/etc/cni/net.d/./00-weft.conflist" },
		"confName":    func(o *confpub.Options) { o.ConfName = ".conflist" },
	} {
		o := options()
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type verdict struct{ path, primary, fault string }

func TestFind(t *testing.T) {
	file := func(name, data string) confpub.File { return confpub.File{Path: "/d/" + name, Data: []byte(data)} }
	const a, b = `{"name":"a","cniVersion":"0.4.0","plugins":[{"type":"pa"}]}`, `{"name":"b","type":"pb"}`
	own, err := confpub.Render(options(), []byte(a))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		files   []confpub.File
		current string
		want    verdict
		skipped int
		own     int
	}{
		"nothing":                   {want: verdict{"", "", "no conf"}},
		"first by name":             {files: []confpub.File{file("20-a.conflist", a), file("10-b.conf", b)}, want: verdict{"/d/10-b.conf", b, ""}},
		"bytes, not numbers":        {files: []confpub.File{file("9-a.conflist", a), file("10-b.json", b)}, want: verdict{"/d/10-b.json", b, ""}},
		"white space around":        {files: []confpub.File{file("1.conf", "\n "+b+" \n")}, want: verdict{"/d/1.conf", b, ""}},
		"own output":                {files: []confpub.File{file("05-x.conflist", string(own)), file("10-b.conf", b)}, want: verdict{"/d/10-b.conf", b, ""}, own: 1},
		"own output alone":          {files: []confpub.File{file("05-x.conflist", string(own))}, want: verdict{"", "", "no conf"}, own: 1},
		"own name":                  {files: []confpub.File{file("05-x.conf", `{"name":"weft","type":"pa"}`), file("10-b.conf", b)}, want: verdict{"/d/10-b.conf", b, ""}, own: 1},
		"own and broken":            {files: []confpub.File{file("05-x.conf", `{"name":"weft","type":7}`)}, want: verdict{"", "", "no conf"}, own: 1},
		"Multus":                    {files: []confpub.File{file("00-m.conf", `{"name":"multus-cni-network","type":"multus-shim","clusterNetwork":"/d/10-b.conf"}`), file("01-m.conflist", `{"name":"m","plugins":[{"type":"multus"}]}`), file("10-b.conf", b)}, want: verdict{"/d/10-b.conf", b, ""}, own: 2},
		"Weft chained":              {files: []confpub.File{file("05-x.conflist", `{"name":"x","plugins":[{"type":"pa"},{"type":"weft-cni"}]}`), file("10-b.conf", b)}, want: verdict{"/d/05-x.conflist", "", "plugins[1]"}},
		"Weft as a delegate":        {files: []confpub.File{file("05-x.conf", `{"name":"x","type":"pa","delegate":{"type":"weft-cni"}}`)}, want: verdict{"/d/05-x.conf", "", "weft-cni"}},
		"Multus among delegates":    {files: []confpub.File{file("05-x.conf", `{"name":"x","type":"pa","delegates":[{"type":"pb"},{"type":"multus"}]}`)}, want: verdict{"/d/05-x.conf", "", "multus"}},
		"delegates that are none":   {files: []confpub.File{file("05-x.conf", `{"name":"x","type":"pa","delegates":7,"delegate":[]}`)}, want: verdict{"/d/05-x.conf", `{"name":"x","type":"pa","delegates":7,"delegate":[]}`, ""}},
		"broken ones before":        {files: []confpub.File{file("01.conf", ``), file("02.conf", `{`), file("03.conf", `{"name":"x"}`), file("04.conf", `{"type":"pa"}`), file("10-b.conf", b)}, want: verdict{"/d/10-b.conf", b, ""}, skipped: 4},
		"broken one alone":          {files: []confpub.File{file("01.conf", `{`)}, want: verdict{"", "", "no conf"}, skipped: 1},
		"current is broken":         {files: []confpub.File{file("05-a.conf", `{"name":`), file("10-b.conf", b)}, current: "/d/05-a.conf", want: verdict{"/d/05-a.conf", "", "broken"}},
		"current is unreadable":     {files: []confpub.File{{Path: "/d/05-a.conf", Err: bytes.ErrTooLarge}, file("10-b.conf", b)}, current: "/d/05-a.conf", want: verdict{"/d/05-a.conf", "", "too large"}},
		"an earlier one than it":    {files: []confpub.File{file("05-a.conf", `{"name":`), file("04-b.conf", b)}, current: "/d/05-a.conf", want: verdict{"/d/04-b.conf", b, ""}},
		"current is gone":           {files: []confpub.File{file("10-b.conf", b)}, current: "/d/05-a.conf", want: verdict{"/d/10-b.conf", b, ""}},
		"chained plugins":           {files: []confpub.File{{Path: "/d/1.conflist", Data: []byte(`{"name":"a", "plugins":[ {"type":"pa"} ],"z":1.0}`), Chained: [][]byte{[]byte(`{"type":"pb", "n":1.0}`)}}}, want: verdict{"/d/1.conflist", `{"name":"a","plugins":[{"type":"pa"},{"type":"pb", "n":1.0}],"z":1.0}`, ""}},
		"chained plugins alone":     {files: []confpub.File{{Path: "/d/1.conflist", Data: []byte(`{"name":"a"}`), Chained: [][]byte{[]byte(`{"type":"pb"}`)}}}, want: verdict{"/d/1.conflist", `{"name":"a","plugins":[{"type":"pb"}]}`, ""}},
		"chained plugin broken":     {files: []confpub.File{{Path: "/d/1.conflist", Data: []byte(a), Chained: [][]byte{[]byte(`{`)}}}, want: verdict{"", "", "no conf"}, skipped: 1},
		"chained plugin is Weft":    {files: []confpub.File{{Path: "/d/1.conflist", Data: []byte(a), Chained: [][]byte{[]byte(`{"type":"weft-cni"}`)}}}, want: verdict{"/d/1.conflist", "", "weft-cni"}},
		"chained plugins unwanted":  {files: []confpub.File{{Path: "/d/1.conflist", Data: []byte(`{"name":"a","loadOnlyInlinedPlugins":true,"plugins":[{"type":"pa"}]}`), Chained: [][]byte{[]byte(`{`)}}}, want: verdict{"/d/1.conflist", `{"name":"a","loadOnlyInlinedPlugins":true,"plugins":[{"type":"pa"}]}`, ""}},
		"unknown version is broken": {files: []confpub.File{file("05-a.conf", `{"name":"a","type":"pa","cniVersion":"7.0.0"}`)}, want: verdict{"", "", "no conf"}, skipped: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := confpub.Find(test.files, test.current)
			if c.Path != test.want.path || string(c.Primary) != test.want.primary {
				t.Errorf("found %q %q, want %q %q", c.Path, c.Primary, test.want.path, test.want.primary)
			}
			if (c.Fault == nil) != (test.want.fault == "") || c.Fault != nil && !strings.Contains(c.Fault.Error(), test.want.fault) {
				t.Errorf("fault %v, want %q", c.Fault, test.want.fault)
			}
			if len(c.Skipped) != test.skipped || len(c.Own) != test.own {
				t.Errorf("skipped %v, own %v", c.Skipped, c.Own)
			}
		})
	}
}

// Whatever a file of the directory holds: what is found can be published, is not of
// Weft's making, and the published conf gives it back byte for byte.
func FuzzFind(f *testing.F) {
	for _, s := range []string{flannel, `{"name":"b","type":"pb"}`, `{"name":"weft","type":"x"}`, `{"name":"a","plugins":[{"type":"multus"}]}`, `{`, ``, `[]`} {
		f.Add([]byte(s), []byte(`{"type":"pc"}`), true)
		f.Add([]byte(s), []byte(`{`), false)
	}
	f.Fuzz(func(t *testing.T, data, chained []byte, chain bool) {
		file := confpub.File{Path: "/d/10-x.conflist", Data: data}
		if chain {
			file.Chained = [][]byte{chained}
		}
		c := confpub.Find([]confpub.File{file}, "")
		if (c.Primary == nil) == (c.Fault == nil) {
			t.Fatalf("primary %q, fault %v", c.Primary, c.Fault)
		}
		if c.Primary == nil {
			return
		}
		b, err := confpub.Render(options(), c.Primary)
		if err != nil {
			return
		}
		if _, err := libcni.ConfListFromBytes(b); err != nil {
			t.Fatalf("libcni refuses %q: %v", b, err)
		}
		p, err := confpub.Read(b)
		if err != nil || !bytes.Equal(p.Primary, c.Primary) {
			t.Fatalf("%q comes back as %q, %v", c.Primary, p.Primary, err)
		}
		if again := confpub.Find([]confpub.File{{Path: "/d/05-y.conf", Data: b}}, ""); again.Primary != nil {
			t.Fatalf("own output taken for a primary: %q", b)
		}
	})
}

// Whatever stands in the published file: what is kept of it is what the hands accept.
func FuzzRead(f *testing.F) {
	b, err := confpub.Render(options(), []byte(flannel))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"weft","plugins":[{"type":"weft-cni","delegates":[{"type":"weft-cni"}]}]}`))
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"weft","plugins":[{"type":"weft-cni","delegates":[7]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := confpub.Read(b)
		if err != nil {
			return
		}
		if _, err := netconf.ParseNetwork(p.Primary, "primary"); err != nil {
			t.Fatalf("%q is kept as the primary: %v", p.Primary, err)
		}
	})
}
