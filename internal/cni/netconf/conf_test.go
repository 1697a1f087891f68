// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netconf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
)

func TestDefaults(t *testing.T) {
	const text = `{"cniVersion":"1.0.0","name":"m","type":"weft-cni","clusterNetwork":"cn","globalNamespaces":"","multusNamespace":null}`
	got, warnings, err := netconf.Parse([]byte(text))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, warnings %v", err, warnings)
	}
	want := &netconf.Conf{
		CNIVersion: "1.0.0", Name: "m", Type: "weft-cni", ClusterNetwork: "cn",
		ConfDir: "/etc/cni/multus/net.d", BinDir: "/opt/cni/bin", CNIDir: "/var/lib/cni/multus",
		GlobalNamespaces: []string{"default"}, SystemNamespaces: []string{"kube-system"}, MultusNamespace: "kube-system",
		Log:         netconf.Log{Level: "panic", ToStderr: true, MaxAge: 5, MaxSize: 100, MaxBackups: 5, Compress: true},
		AgentSocket: "/run/weft/agent.sock", StateDir: "/var/lib/weft", Timeout: 90 * time.Second,
		KubeletDir: "/var/lib/kubelet", DeviceInfoDir: "/var/run/k8s.cni.cncf.io/devinfo",
		Raw: []byte(text),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

// everyKey sets all keys of the table to something that is not their default.
const everyKey = `{"cniVersion":"1.1.0","name":"m","type":"multus","capabilities":{"portMappings":true,"x":false},
	"runtimeConfig":{"portMappings":[{"hostPort":1.0}]},"prevResult":{"cniVersion":"1.1.0"},
	"cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}],"cni.dev/attachments":[],"args":{},"ipam":{},"dns":{},
	"confDir":"/c","binDir":"/b","cniDir":"/d","kubeconfig":"/k","clusterNetwork":"cn","delegates":[7],"defaultNetworks":["a","b"],
	"namespaceIsolation":true,"globalNamespaces":"x, y,","systemNamespaces":[],"multusNamespace":"mns","readinessindicatorfile":"/r",
	"retryDeleteOnError":true,"auxiliaryCNIChainName":"aux","logFile":"/l","logLevel":"DEBUG","logToStderr":false,
	"logOptions":{"maxAge":1,"maxSize":2,"maxBackups":3,"compress":false},"agentSocket":"/a","manifests":"/m","stateDir":"/s",
	"timeout":"1m30.5s","delegateLimit":3,"strict":true,"kubeletDir":"/kl","deviceInfoDir":"/di","primaryConf":"/p"}`

func TestEveryKey(t *testing.T) {
	got, warnings, err := netconf.Parse([]byte(everyKey))
	if err != nil {
		t.Fatal(err)
	}
	want := &netconf.Conf{
		CNIVersion: "1.1.0", Name: "m", Type: "multus", ClusterNetwork: "cn", ConfDir: "/c", BinDir: "/b", CNIDir: "/d", Kubeconfig: "/k",
		DefaultNetworks: []string{"a", "b"}, NamespaceIsolation: true, GlobalNamespaces: []string{"x", "y"}, SystemNamespaces: []string{},
		MultusNamespace: "mns", ReadinessIndicatorFile: "/r", RetryDeleteOnError: true, AuxiliaryCNIChainName: "aux",
		Capabilities:  map[string]bool{"portMappings": true, "x": false},
		RuntimeConfig: map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":1.0}]`)},
		Log:           netconf.Log{File: "/l", Level: "debug", MaxAge: 1, MaxSize: 2, MaxBackups: 3},
		AgentSocket:   "/a", AgentSocketSet: true, Manifests: "/m", StateDir: "/s", Timeout: 90*time.Second + 500*time.Millisecond,
		DelegateLimit: 3, Strict: true, KubeletDir: "/kl", KubeletDirSet: true, DeviceInfoDir: "/di", PrimaryConf: "/p",
		PrevResult:       json.RawMessage(`{"cniVersion":"1.1.0"}`),
		ValidAttachments: []netconf.ValidAttachment{{ContainerID: "c", IfName: "eth0"}},
		Raw:              []byte(everyKey),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if len(warnings) != 1 || warnings[0].Field != "delegates" || warnings[0].Object != "configuration m" {
		t.Errorf("warnings %v", warnings)
	}
	o, err := netconf.ParseObject([]byte(everyKey))
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, k := range netconf.Keys() {
		documented = append(documented, k.Name)
		if k.Meaning == "" {
			t.Errorf("key %s has no meaning", k.Name)
		}
	}
	if diff := cmp.Diff(o.Keys(), documented); diff != "" {
		t.Errorf("this test and the key table differ (-test +table):\n%s", diff)
	}
}

// A wrong type of any key of the table is a fault that names the key.
func TestWrongTypes(t *testing.T) {
	for _, k := range netconf.Keys() {
		for _, wrong := range []string{"3.5", "[[]]", `"\u0000/.."`, `{"a":7}`} {
			if legal[k.Name] == wrong[:1] {
				continue
			}
			_, _, err := netconf.Parse([]byte(`{"` + k.Name + `":` + wrong + `}`))
			named := false
			for _, f := range fault.All(err) {
				named = named || strings.HasPrefix(f.Field, k.Name) && f.Code == fault.Config
			}
			if !named {
				t.Errorf("%s: %s gives %v", k.Name, wrong, err)
			}
		}
	}
}

// legal is how a value starts that is right for the key although it is odd.
var legal = map[string]string{
	"type": `"`, "clusterNetwork": `"`, "multusNamespace": `"`, "globalNamespaces": `"`, "logLevel": `"`,
	"runtimeConfig": "{", "prevResult": "{", "args": "{", "ipam": "{", "dns": "{", "logOptions": "{",
}

func TestConfFaults(t *testing.T) {
	cases := []struct {
		name, conf string
		want       []string // of one fault
	}{
		{"empty", "", []string{"configuration: is empty"}},
		{"not JSON", `{"a":}`, []string{"configuration: is not JSON, at byte 6"}},
		{"list", "[]", []string{"configuration: is an array"}},
		{"neither", `{"name":"m"}`, []string{"configuration m: names no default network"}},
		{"no delegate", `{"name":"m","delegates":[]}`, []string{"names no default network"}},
		{"delegate", `{"name":"m","delegates":[{"type":"a"},{"plugins":[{"type":"a"},{"type":"/bin/sh"}]}]}`, []string{"configuration m: delegates[1].plugins[1].type", "slash"}},
		{"null delegate", `{"name":"m","delegates":[null]}`, []string{"delegates[0]: is null"}},
		{"version", `{"cniVersion":"2.0","clusterNetwork":"x"}`, []string{"cniVersion", `"2.0"`, "1.1.0"}},
		{"name", `{"name":"../x","clusterNetwork":"x"}`, []string{"name", `"../x"`}},
		{"relative path", `{"clusterNetwork":"x","stateDir":"var"}`, []string{"stateDir", `"var" is not absolute`}},
		{"timeout", `{"clusterNetwork":"x","timeout":"90"}`, []string{"timeout", `"90"`, "duration"}},
		{"no time", `{"clusterNetwork":"x","timeout":"0s"}`, []string{"timeout", `"0s"`}},
		{"limit", `{"clusterNetwork":"x","delegateLimit":-1}`, []string{"delegateLimit", "-1"}},
		{"null network", `{"clusterNetwork":"x","defaultNetworks":["a",null]}`, []string{"defaultNetworks", "[1] is null"}},
		{"empty network", `{"clusterNetwork":"x","defaultNetworks":[""]}`, []string{"defaultNetworks[0]", "is empty"}},
		{"auxiliary", `{"clusterNetwork":"x","auxiliaryCNIChainName":"a/b"}`, []string{"auxiliaryCNIChainName", `"a/b"`}},
		{"log option", `{"clusterNetwork":"x","logOptions":{"maxAge":"5"}}`, []string{"logOptions", "maxAge is a string"}},
		{"too large", `{"clusterNetwork":"x","pad":"` + strings.Repeat("x", 2<<20) + `"}`, []string{"larger than 2097152"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			conf, _, err := netconf.Parse([]byte(c.conf))
			all := fault.All(err)
			if conf != nil || len(all) != 1 || all[0].Code != fault.Config {
				t.Fatalf("configuration %v, faults %v", conf, err)
			}
			for _, word := range c.want {
				if !strings.Contains(all[0].Error(), word) {
					t.Errorf("%q is not in %q", word, all[0].Error())
				}
			}
		})
	}
}

func TestConfWarnings(t *testing.T) {
	conf, warnings, err := netconf.Parse([]byte(`{"name":"m","LogFile":"/l","cniConf":"/x","name":"n","logLevel":"info",
		"defaultNetworks":["a"],"logOptions":{"maxAge":7,"localTime":true},"delegates":[{"type":"a"}],"strict":null}`))
	if err != nil {
		t.Fatal(err)
	}
	if conf.Name != "n" || conf.Log.File != "/l" || conf.Log.Level != "panic" || conf.Log.MaxAge != 7 || conf.Strict || conf.AgentSocketSet {
		t.Errorf("configuration %+v", conf)
	}
	var got []string
	for _, w := range warnings {
		got = append(got, w.Field)
	}
	if diff := cmp.Diff([]string{"LogFile", "cniConf", "name", "logLevel", "logOptions", "defaultNetworks"}, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestParseNetwork(t *testing.T) {
	conf := `{ "name":"n","cniVersion":"0.3.1", "type":"bridge","capabilities":{"ips":true},"mtu":9007199254740993 }`
	got, err := netconf.ParseNetwork([]byte("\n"+conf+"\n"), "file x")
	if err != nil {
		t.Fatal(err)
	}
	want := netconf.Network{Name: "n", CNIVersion: "0.3.1", Plugins: []netconf.Plugin{{Type: "bridge", Capabilities: map[string]bool{"ips": true}, Conf: []byte(conf)}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("conf (-want +got):\n%s", diff)
	}
	if !got.Declares("ips") || got.Declares("mac") {
		t.Error("capabilities are lost")
	}
	got, err = netconf.ParseNetwork([]byte(`{"plugins":[ {"type":"a", "x":1.0} ,{"type":"b"}],"disableCheck":"True","disableGC":true,"loadOnlyInlinedPlugins":"false"}`), "file x")
	if err != nil {
		t.Fatal(err)
	}
	want = netconf.Network{DisableCheck: true, DisableGC: true, Plugins: []netconf.Plugin{{Type: "a", Conf: []byte(`{"type":"a", "x":1.0}`)}, {Type: "b", Conf: []byte(`{"type":"b"}`)}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

// One Parser reads as a new one for each does, whatever it read before, and what it gave stays.
func TestParserIsUsedAgain(t *testing.T) {
	texts := []string{
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"pa","capabilities":{"ips":true,"mac":null,"ips":false}},{"type":"pb","args":{"cni":{}}}]}`,
		`{"type":"pb","capabilities":{"\u0069ps":true}}`,
		`{"type":`,
		`{"plugins":[{"type":"pa","capabilities":{"mac":"yes"}},{"type":"p\u0061"}]}`,
		`{"cniVersion":"0.4.0","type":"pa","capabilities":null}`,
		`{"name":"n"}`,
		`{"plugins":[{"type":"pc","capabilities":{}}, {"type":"pa"},{"type":"pa","x":1} ]}`,
	}
	var p netconf.Parser
	var got, want []netconf.Network
	for _, text := range slices.Concat(texts, texts) {
		n, err := p.Network([]byte(text), "file x")
		fresh, freshErr := netconf.ParseNetwork([]byte(text), "file x")
		if fmt.Sprint(err) != fmt.Sprint(freshErr) {
			t.Errorf("%s\n got %v\nwant %v", text, err, freshErr)
		}
		got, want = append(got, n), append(want, fresh)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("networks (-want +got):\n%s", diff)
	}
	if caps := got[0].Plugins[0].Capabilities; caps["ips"] || len(caps) != 2 {
		t.Errorf("of a key written twice the last counts, got %v", caps)
	}
	if !got[1].Declares("ips") || got[3].Plugins[1].Type != "pa" {
		t.Errorf("escapes: %+v", got)
	}
}

func TestNetworkFaults(t *testing.T) {
	for text, want := range map[string]string{
		"{}":             "file x: has neither type nor plugins",
		`{"plugins":[]}`: "file x: plugins: is empty",
		`{"plugins":[` + strings.Repeat(`{"type":"pb"},`, 64) + `{"type":"pb"}]}`: "file x: plugins: holds 65 plugins, at most 64",
		`{"plugins":{}}`: "plugins: is an object, an array",
		`{"plugins":[{"type":"a"},{"name":"b"}]}`:            "plugins[1].type: is missing",
		`{"plugins":[{"type":"a"},null]}`:                    "plugins[1]: is null",
		`{"plugins":[{"type":"multus-shim"}]}`:               `plugins[0].type: "multus-shim" would call Weft again`,
		`{"type":7}`:                                         "type: is a number",
		`{"type":""}`:                                        `type: "" is empty`,
		`{"type":".."}`:                                      `type: ".." is a directory`,
		`{"type":"a/b"}`:                                     `type: "a/b" holds a slash`,
		`{"type":"a\u0000"}`:                                 `type: "a\x00" holds`,
		`{"type":"a","name":"a/../b"}`:                       `name: "a/../b"`,
		`{"type":"a","name":"-a"}`:                           `name: "-a"`,
		`{"type":"a","name":1}`:                              "name: is 1, a string",
		`{"type":"a","cniVersion":"1.0"}`:                    `cniVersion: "1.0" is none of`,
		`{"plugins":[{"type":"a"}],"cniVersions":["9.0.0"]}`: "cniVersions: names none of",
		`{"type":"a","capabilities":{"x":"yes"}}`:            "capabilities: is an object, an object of booleans",
		`{"type":"a","args":"str"}`:                          "args: is a string",
		`{"type":"a","args":{"cni":[]}}`:                     "args.cni: is an array",
		`{"plugins":[{"type":"a"}],"disableCheck":"maybe"}`:  "disableCheck: is a string, true or false",
	} {
		_, err := netconf.ParseNetwork([]byte(text), "file x")
		all := fault.All(err)
		if len(all) != 1 || all[0].Code != fault.Config || !strings.Contains(all[0].Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
	n, err := netconf.ParseNetwork([]byte(`{"name":"n"}`), "file x")
	if !errors.Is(err, netconf.ErrNoPlugins) || n.Name != "n" {
		t.Errorf("a list of a sub-directory: %+v, %v", n, err)
	}
}

func FuzzConf(f *testing.F) {
	f.Add([]byte(everyKey))
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"m","type":"X","delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa"}]}`))
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"m","clusterNetwork":"/etc/cni/net.d/10-x.conflist","capabilities":{"portMappings":true},"logOptions":{"maxAge":-1}}`))
	f.Add([]byte(`{"cniVersion":`))
	f.Fuzz(func(t *testing.T, b []byte) {
		conf, _, err := netconf.Parse(b)
		if (conf == nil) == (err == nil) {
			t.Fatalf("configuration %v, error %v", conf, err)
		}
		checkFaults(t, err)
		if conf != nil && (conf.Timeout <= 0 || conf.DelegateLimit < 0 || conf.StateDir[0] != '/' || !netconf.KnownVersion(conf.CNIVersion) ||
			conf.ClusterNetwork == "" && len(conf.Delegates) == 0) {
			t.Errorf("accepted %+v", conf)
		}
	})
}

func FuzzNetwork(f *testing.F) {
	for _, s := range []string{
		`{"cniVersion":"1.0.0","type":"pb"}`, `{"cniVersion":"1.0.0","type":"pb","args":"str"}`, `{"plugins":[]}`, `{"plugins":[{}]}`,
		`{"cniVersions":["1.0.0"],"name":"n","plugins":[{"type":"a","capabilities":{"x":true},"args":{"cni":{"a":9}}}],"disableGC":"TRUE"}`,
		`{"type":"../../bin/sh"}`, `{bad`, "null", "", `{"type":"a","capabilities":{"x":null,"\\u0078":true}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := netconf.ParseNetwork(b, "file x")
		checkFaults(t, err)
		if err != nil {
			return
		}
		if n.Name != "" && netconf.NetworkName(n.Name) != nil || len(n.Plugins) == 0 {
			t.Errorf("accepted %+v", n)
		}
		for _, p := range n.Plugins {
			if strings.ContainsAny(p.Type, "/\x00") || p.Type == "" || p.Type == "." || p.Type == ".." || !json.Valid(p.Conf) || !strings.Contains(string(b), string(p.Conf)) {
				t.Errorf("accepted plugin %q %s", p.Type, p.Conf)
			}
			var keys map[string]json.RawMessage
			var want map[string]bool
			if err := json.Unmarshal(p.Conf, &keys); err != nil {
				t.Fatal(err)
			}
			if raw, ok := keys["capabilities"]; ok && json.Unmarshal(raw, &want) != nil {
				t.Errorf("accepted capabilities %s", raw)
			}
			if diff := cmp.Diff(want, p.Capabilities); diff != "" {
				t.Errorf("capabilities of %s (-want +got):\n%s", p.Conf, diff)
			}
		}
	})
}

func checkFaults(t *testing.T, err error) {
	t.Helper()
	if err != nil && len(fault.All(err)) == 0 {
		t.Errorf("an error without a fault: %v", err)
	}
	for _, f := range fault.All(err) {
		if f.Code != fault.Config || f.Object == "" || strings.Contains(strings.ToLower(f.Error()), "not found") || strings.Contains(f.Error(), "\n") {
			t.Errorf("malformed fault %+v", f)
		}
	}
}

// The two CNI rules that are written out here are the ones that CNI itself has.
func TestNetworkName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "A_b.c-9": true, "0": true, strings.Repeat("a", 255): true,
		"": false, "-a": false, ".a": false, "_a": false, "a b": false, "a/b": false, "é": false, "a\n": false, strings.Repeat("a", 256): false,
	} {
		if err := netconf.NetworkName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}
