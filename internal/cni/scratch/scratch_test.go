// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

const id = "0123abcd"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write puts files into a new cniDir.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "results"), 0o700))
	for name, data := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
	}
	return dir
}

func base(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// wrote is an element as Multus writes it: the conf in three forms, then the requests.
func wrote(name, conf, more string) string {
	return `{"Conf":{"type":"pa"},"ConfList":{},"Name":"` + name + `",` + more +
		`"IsFilterV4Gateway":false,"IsFilterV6Gateway":false,"Bytes":"` + base(conf) + `"}`
}

func list(elements ...string) string { return "[" + strings.Join(elements, ",") + "]" }

const (
	confA  = `{"cniVersion":"1.0.0","name":"defnet","type":"pa","big":12345678901234567890}`
	confB  = `{"cniVersion":"1.0.0","name":"neta","plugins":[{"type":"pb","capabilities":{"mac":true}},{"type":"tuning"}]}`
	noName = `{"cniVersion":"1.0.0","type":"pc"}`
)

func network(name string, plugins ...netconf.Plugin) netconf.Network {
	return netconf.Network{Name: name, CNIVersion: "1.0.0", Plugins: plugins}
}

var (
	defnet = network("defnet", netconf.Plugin{Type: "pa", Conf: []byte(confA)})
	neta   = network("neta",
		netconf.Plugin{Type: "pb", Capabilities: map[string]bool{"mac": true}, Conf: []byte(`{"type":"pb","capabilities":{"mac":true}}`)},
		netconf.Plugin{Type: "tuning", Conf: []byte(`{"type":"tuning"}`)})
)

func wantAttachments(t *testing.T, got, want []Attachment) {
	t.Helper()
	diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(netconf.Network{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
	if diff != "" {
		t.Error(diff)
	}
}

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, data string
		want       []Entry
		errs       []string // each in the error's text
	}{
		{name: "nothing", data: "[]"},
		{name: "null", data: " null "},
		{
			name: "every field",
			data: list(wrote("default/neta", confA, `"ifnameRequest":"foo0","macRequest":"02:00:00:00:00:09","infinibandGUIDRequest":"24:8a:07:03:00:8d:ae:2e",`+
				`"ipRequest":["10.1.1.5/24","fd01::5"],"default-route":["10.1.1.1","","fd01::1"],"deviceID":"0000:03:02.0","resourceName":"ex.com/vf",`)),
			want: []Entry{{
				Name: "default/neta", IfName: "foo0", MAC: "02:00:00:00:00:09", GUID: "24:8a:07:03:00:8d:ae:2e",
				IPs: []string{"10.1.1.5/24", "fd01::5"}, Gateways: []netip.Addr{netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("fd01::1")},
				DeviceID: "0000:03:02.0", ResourceName: "ex.com/vf", Conf: []byte(confA),
			}},
		},
		{
			name: "bad elements beside good ones",
			data: list(`null`, `1`, wrote("a", confA, ""), wrote("b", "", ""), wrote("c", confA, `"ifnameRequest":"../x",`),
				`{"Bytes":"*"}`, wrote("d", confB, ""), wrote("e", confA, `"default-route":["x"],`)),
			want: []Entry{{Index: 2, Name: "a", Conf: []byte(confA)}, {Index: 6, Name: "d", Conf: []byte(confB)}},
			errs: []string{"element 0", "element 1", "element 3", "element 4", "element 5", "element 7"},
		},
		{name: "empty file", data: "", errs: []string{"read scratch file"}},
		{name: "truncated", data: list(wrote("a", confA, ""))[:60], errs: []string{"read scratch file"}},
		{name: "no array", data: `{"Name":"a"}`, errs: []string{"read scratch file"}},
		{name: "deep", data: strings.Repeat("[", 20000), errs: []string{"read scratch file"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.data))
			if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if (err != nil) != (len(tt.errs) > 0) {
				t.Fatalf("error is %v", err)
			}
			for _, text := range tt.errs {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q does not name %q", err, text)
				}
			}
		})
	}
}

func TestLoadWithResults(t *testing.T) {
	result := `{"cniVersion":"1.0.0","ips":[{"address":"10.2.0.2/24"}],"big":12345678901234567890}`
	dir := write(t, map[string]string{
		id: list(wrote("defnet", confA, ""), wrote("default/neta", confB, `"macRequest":"02:00:00:00:00:09",`), wrote("other/netc", noName, `"ifnameRequest":"foo0",`)),
		"results/defnet-" + id + "-eth0": `{"kind":"cniCacheV1","containerId":"` + id + `","config":"` + base(confA) + `","ifName":"eth0","networkName":"defnet",` +
			`"netns":"/var/run/netns/x","cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAME","web"]],"result":` + result + `}`,
		"results/neta-" + id + "-net1": `{"kind":"cniCacheV1","containerId":"` + id + `","ifName":"net1","capabilityArgs":{"portMappings":[{"hostPort":1}],"n":1.0},` +
			`"result":` + result + `}`,
		// From before libcni 0.8.
		"results/netc-" + id + "-foo0": `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.3/24"}}`,
	})
	got, err := Load(dir, id, "eth0")
	must(t, err)
	wantAttachments(t, got, []Attachment{
		{
			Attachment: plan.Attachment{Network: "defnet", IfName: "eth0", Default: true, Conf: defnet, Args: "IgnoreUnknown=1;K8S_POD_NAME=web"},
			Result:     []byte(result),
		},
		{
			Attachment: plan.Attachment{
				Network: "default/neta", IfName: "net1", Conf: neta,
				RuntimeConfig: map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":1}]`), "n": json.RawMessage("1.0")},
			},
			Result: []byte(result),
		},
		{
			Attachment: plan.Attachment{Network: "other/netc", IfName: "foo0", Conf: network("netc", netconf.Plugin{Type: "pc", Conf: []byte(noName)})},
			Result:     []byte(`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.3/24"}}`),
		},
	})
}

func TestLoadWithoutGoodResults(t *testing.T) {
	want := []Attachment{
		{Attachment: plan.Attachment{Network: "defnet", IfName: "if0", Default: true, Conf: defnet}},
		{Attachment: plan.Attachment{
			Network: "default/neta", IfName: "net1", Conf: neta, DeviceID: "0000:03:02.0", ResourceName: "ex.com/vf",
			Gateways: []netip.Addr{netip.MustParseAddr("10.2.0.1")},
			RuntimeConfig: map[string]json.RawMessage{
				"mac": json.RawMessage(`"02:00:00:00:00:09"`), "ips": json.RawMessage(`["10.2.0.2/24"]`),
				"deviceID": json.RawMessage(`"0000:03:02.0"`), "infinibandGUID": json.RawMessage(`"<guid>"`),
			},
		}},
	}
	file := list(wrote("defnet", confA, ""), wrote("default/neta", confB,
		`"macRequest":"02:00:00:00:00:09","ipRequest":["10.2.0.2/24"],"infinibandGUIDRequest":"<guid>","default-route":["10.2.0.1"],"deviceID":"0000:03:02.0","resourceName":"ex.com/vf",`))
	for name, cache := range map[string]string{
		"torn":             `{"kind":"cniCacheV1","containerId":"` + id,
		"empty":            "",
		"other kind":       `{"kind":"cniCacheV9","result":{"a":1}}`,
		"null":             `null`,
		"array":            `[]`,
		"wrongly typed":    `{"kind":"cniCacheV1","cniArgs":7}`,
		"result but alone": `{"result":{"a":1}}`,
	} {
		got, err := Load(write(t, map[string]string{id: file, "results/neta-" + id + "-net1": cache}), id, "if0")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		t.Run(name, func(t *testing.T) { wantAttachments(t, got, want) })
	}
}

// A scratch file that is lost is what the result files say, as a torn one is.
func TestLoadFromResultsAlone(t *testing.T) {
	cached := func(ifName, conf string) string {
		return `{"kind":"cniCacheV1","containerId":"` + id + `","config":"` + base(conf) + `","ifName":"` + ifName + `"}`
	}
	results := map[string]string{
		"results/neta-" + id + "-net1":     cached("net1", confB),
		"results/defnet-" + id + "-eth0":   cached("eth0", confA),
		"results/defnet-" + id + "ff-eth0": cached("eth0", confA), // another container
		"results/broken-" + id + "-net2":   `{"kind":`,
	}
	want := []Attachment{
		{Attachment: plan.Attachment{Network: "defnet", IfName: "eth0", Default: true, Conf: defnet}},
		{Attachment: plan.Attachment{Network: "neta", IfName: "net1", Conf: neta}},
	}
	for name, more := range map[string]map[string]string{"lost": {}, "torn": {id: `[{"Conf":`}} {
		t.Run(name, func(t *testing.T) {
			files := maps.Clone(results)
			maps.Copy(files, more)
			got, err := Load(write(t, files), id, "eth0")
			if (err != nil) != (name == "torn") {
				t.Error(err)
			}
			wantAttachments(t, got, want)
		})
	}
}

func TestLoadNothing(t *testing.T) {
	for name, dir := range map[string]string{
		"no directory": filepath.Join(t.TempDir(), "none"), "not configured": "", "no file": write(t, nil),
		"empty list": write(t, map[string]string{id: "[]"}), "null": write(t, map[string]string{id: "null"}),
	} {
		if got, err := Load(dir, id, "eth0"); err != nil || len(got) > 0 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestLoadKeepsTheGoodOnes(t *testing.T) {
	dir := write(t, map[string]string{id: list(wrote("x", `{"type":"../evil"}`, ""), wrote("y", `{bad`, ""), "7", wrote("default/neta", confB, ""))})
	got, err := Load(dir, id, "eth0")
	wantAttachments(t, got, []Attachment{{Attachment: plan.Attachment{Network: "default/neta", IfName: "net3", Conf: neta}}})
	for _, want := range []string{"element 0", "element 1", "element 2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

func TestTornScratchFileFallsBackToResults(t *testing.T) {
	cache := func(container, conf, ifName string) string {
		return `{"kind":"cniCacheV1","containerId":"` + container + `","config":"` + base(conf) + `","ifName":"` + ifName + `","result":{"r":"` + ifName + `"}}`
	}
	dir := write(t, map[string]string{
		id:                                    `[{"Conf":{"na`,
		"results/neta-" + id + "-net10":       cache(id, confB, "net10"),
		"results/neta-" + id + "-net9":        cache(id, confB, "net9"),
		"results/zdef-" + id + "-eth0":        cache(id, confA, "eth0"),
		"results/neta-" + id + "-net1":        `{"kind":"cni`,
		"results/neta-" + id + "-bad":         cache(id, confB, "a/b"),
		"results/neta-x-" + id + "-y-net1":    cache("x-"+id+"-y", confB, "net1"),
		"results/neta-ffff" + id + "ff-net1":  cache("ffff"+id+"ff", confB, "net1"),
		"results/broken-" + id + "-net2":      cache(id, "{", "net2"),
		"results/unrelated-99999999-net1":     cache("99999999", confB, "net1"),
		"results/neta-" + id + "-net3.backup": "",
	})
	got, err := Load(dir, id, "eth0")
	if err == nil || !strings.Contains(err.Error(), "broken-") {
		t.Errorf("error is %v", err)
	}
	wantAttachments(t, got, []Attachment{
		{Attachment: plan.Attachment{Network: "defnet", IfName: "eth0", Default: true, Conf: defnet}, Result: []byte(`{"r":"eth0"}`)},
		{Attachment: plan.Attachment{Network: "neta", IfName: "net9", Conf: neta}, Result: []byte(`{"r":"net9"}`)},
		{Attachment: plan.Attachment{Network: "neta", IfName: "net10", Conf: neta}, Result: []byte(`{"r":"net10"}`)},
	})
	must(t, Remove(dir, id))
	left, err := filepath.Glob(dir + "/*/*" + id + "*")
	must(t, err)
	if diff := cmp.Diff([]string{dir + "/results/neta-ffff" + id + "ff-net1", dir + "/results/neta-x-" + id + "-y-net1"}, left); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(dir, id)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the scratch file is there: %v", err)
	}
	must(t, Remove(dir, id))
}

func TestStaysInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(outside, []byte(list(wrote("a", confA, ""))), 0o600))
	dir := write(t, map[string]string{"fine": list(wrote("a", confA, ""))})
	must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "dir"), 0o700))
	for _, name := range []string{"link", "fifo", "dir", "results", "../" + filepath.Base(filepath.Dir(outside)) + "/secret", "", ".", "..", "a/b", "a\x00"} {
		if got, err := Load(dir, name, "eth0"); err == nil || got != nil {
			t.Errorf("%q gave %v, %v", name, got, err)
		}
	}
	must(t, Remove(dir, "link"))
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
	if err := Remove(dir, "../x"); err == nil {
		t.Error("a container ID led out of the directory")
	}
	ids, err := List(dir)
	must(t, err)
	if diff := cmp.Diff([]string{"fine"}, ids); diff != "" {
		t.Error(diff)
	}
	if ids, err := List(filepath.Join(dir, "none")); err != nil || ids != nil {
		t.Errorf("got %v, %v", ids, err)
	}
}

func FuzzParse(f *testing.F) {
	good := list(wrote("defnet", confA, ""), wrote("default/neta", confB, `"macRequest":"m","default-route":[],`))
	for _, seed := range []string{good, good[:80], "[]", "null", "", `[null]`, `[{"Bytes":"e30="}]`, list(wrote("a", noName, `"ifnameRequest":"a/b",`))} {
		f.Add([]byte(seed), []byte(`{"kind":"cniCacheV1","containerId":"`+id+`","ifName":"eth0","config":"e30=","cniArgs":[["a","b"]],"result":{}}`))
	}
	f.Fuzz(func(t *testing.T, scratch, cache []byte) {
		entries, err := Parse(scratch)
		if err == nil && len(entries) == 0 {
			var elements []json.RawMessage
			if json.Unmarshal(scratch, &elements) != nil || len(elements) > 0 {
				t.Fatalf("%q gave neither entries nor an error", scratch)
			}
		}
		var got []Attachment
		for _, e := range entries {
			a, err := e.attachment("eth0")
			if err != nil {
				continue
			}
			if c, ok := decodeCached(cache); ok {
				a.apply(&c)
			}
			got = append(got, a)
		}
		for _, a := range got {
			if a.IfName == "" || len(a.Conf.Plugins) == 0 {
				t.Fatalf("attachment %+v cannot be undone", a)
			}
			for _, p := range a.Conf.Plugins {
				if netconf.PluginType(p.Type) != nil {
					t.Fatalf("plugin type %q", p.Type)
				}
			}
			if _, err := json.Marshal(a); err != nil {
				t.Fatal(err)
			}
		}
	})
}
