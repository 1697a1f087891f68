// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func node(name string) Overrides { return Overrides{FallbackNodeName: name} }

var ignoreOrigins = cmpopts.IgnoreUnexported(Config{})

func TestNothingWritten(t *testing.T) {
	want := Defaults()
	want.NodeName = "n1"
	for name, text := range map[string]string{
		"empty": "", "comments": "# nothing\n", "null": "null\n", "a bare section": "cni:\nlog: ~\nnodeName:\n",
	} {
		got, err := Parse("agent.yaml", []byte(text), node("n1"))
		if d := cmp.Diff(want, got, ignoreOrigins); err != nil || d != "" {
			t.Errorf("%s: %v %s", name, err, d)
		}
	}
	got, err := Load("", node("n1"))
	if d := cmp.Diff(want, got, ignoreOrigins); err != nil || d != "" {
		t.Errorf("no file: %v %s", err, d)
	}
}

// TestTableTellsTheDefaults: what the documentation says is what holds.
func TestTableTellsTheDefaults(t *testing.T) {
	sections := map[string][]string{}
	for _, k := range Keys() {
		if strings.HasPrefix(k.Default, "(") {
			continue
		}
		section, name, nested := strings.Cut(k.Name, ".")
		if !nested {
			section, name = "", k.Name
		}
		value := k.Default
		if value == "" {
			t.Errorf("%s: the table has no default", k.Name)
		}
		sections[section] = append(sections[section], fmt.Sprintf("%s: %s", name, value))
	}
	var b strings.Builder
	b.WriteString(strings.Join(sections[""], "\n") + "\n")
	for section, lines := range sections {
		if section != "" {
			fmt.Fprintf(&b, "%s:\n  %s\n", section, strings.Join(lines, "\n  "))
		}
	}
	got, err := Parse("agent.yaml", []byte(b.String()), node("n1"))
	want := Defaults()
	want.NodeName = "n1"
	if d := cmp.Diff(want, got, ignoreOrigins); err != nil || d != "" {
		t.Errorf("%v %s\n%s", err, d, b.String())
	}
}

func TestEverythingWritten(t *testing.T) {
	text := `
nodeName: node-7.example
kubeconfig: /etc/k
stateDir: /s
socketDir: /r
metricsAddress: "[::1]:1"
pprof: true
log: {level: debug, format: text}
cni:
  confDir: /c
  confName: 01-w.conflist
  primaryConf: /c/10-p.conflist
  binDir: /b
  statusTimeout: 500ms
  kubeletDir: /k
  namespaceIsolation: true
  globalNamespaces: a,b
  delegateLimit: 8
  systemNamespaces: [kube-system, x]
  logOptions: {maxAge: 1}
networkDriver: {enabled: false, kubeletDir: /k2, nriSocket: /n, sysfs: /y}
vmi: {mode: publish, policy: pod-authoritative, podCacheDir: /p, procDir: /q, pollInterval: 3s}
`
	want := Config{
		NodeName: "node-7.example", Kubeconfig: "/etc/k", StateDir: "/s", SocketDir: "/r", MetricsAddress: "[::1]:1", PProf: true,
		Log: Log{slog.LevelDebug, "text"},
		CNI: CNI{
			Enabled: true, ConfDir: "/c", ConfName: "01-w.conflist", PrimaryConf: "/c/10-p.conflist", BinDir: "/b",
			StatusTimeout: 500 * time.Millisecond, KubeletDir: "/k",
			Conf: map[string]json.RawMessage{
				"namespaceIsolation": json.RawMessage("true"), "globalNamespaces": json.RawMessage(`"a,b"`), "delegateLimit": json.RawMessage("8"),
				"systemNamespaces": json.RawMessage(`["kube-system","x"]`), "logOptions": json.RawMessage(`{"maxAge":1}`),
			},
		},
		NetworkDriver: NetworkDriver{KubeletDir: "/k2", NRISocket: "/n", Sysfs: "/y"},
		VMI:           VMI{"publish", "pod-authoritative", "/p", "/q", 3 * time.Second},
	}
	got, err := Parse("agent.yaml", []byte(text), node("other"))
	if d := cmp.Diff(want, got, ignoreOrigins); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
	if got.AgentSocket() != "/r/agent.sock" || got.DebugSocket() != "/r/debug.sock" {
		t.Error(got.AgentSocket(), got.DebugSocket())
	}
	got, err = Parse("agent.yaml", []byte(text), Overrides{NodeName: new("flagged"), Kubeconfig: new(""), EnableNetworkDriver: new(false)})
	if err != nil || got.NodeName != "flagged" || got.Kubeconfig != "" {
		t.Errorf("%v %q %q", err, got.NodeName, got.Kubeconfig)
	}
}

// TestFaults: each text with the faults that it has, all of them.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"no YAML":          {"a: [", []string{"a.yaml: is no YAML: line 1: did not find expected node content"}},
		"a list":           {"- a", []string{"a.yaml:1: is a list, keys with values are needed"}},
		"two documents":    {"pprof: true\n---\npprof: false\n", []string{"a.yaml:2: has something after the first document"}},
		"an unknown key":   {"x: 1\ncni:\n  confdir: /x\n  \"a\\nb\": 1\n", []string{"a.yaml:1: x: is no key of the agent", "a.yaml:3: cni.confdir: is no key of the agent; cni.confDir is one", "a.yaml:4: cni.a b: is no key of the agent"}},
		"a misplaced key":  {"confDir: /x\nlog: {Level: info}\nNamespaceIsolation: true", []string{"a.yaml:1: confDir: is no key of the agent; cni.confDir is one", "a.yaml:2: log.Level: is no key of the agent; log.level is one", "a.yaml:3: NamespaceIsolation: is no key of the agent; cni.namespaceIsolation is one"}},
		"dotted":           {"cni.confDir: /x", []string{"a.yaml:1: cni.confDir: is no key of the agent"}},
		"twice":            {"pprof: true\npprof: false\n", []string{"a.yaml:2: pprof: is written twice, first in line 1"}},
		"a numeric key":    {"1: 2", []string{"a.yaml:1: has a key that is the number 1, a string is needed"}},
		"an alias":         {"stateDir: &a /x\nsocketDir: *a", []string{"a.yaml:2: socketDir: is an alias, which is not taken here, a string is needed"}},
		"an endless alias": {"cni: &a\n  logOptions: *a", []string{"a.yaml:2: cni.logOptions: is an alias, which is not taken here"}},
		"wrong types": {
			"nodeName: 7\npprof: \"true\"\nlog: info\ncni: {statusTimeout: 2, enabled: yes please, binDir: [/x]}",
			[]string{
				"a.yaml:1: nodeName: is the number 7, a string is needed", "a.yaml:2: pprof: is the text \"true\", true or false is needed",
				"a.yaml:3: log: is the text \"info\", keys with values are needed",
				"a.yaml:4: cni.statusTimeout: is the number 2, a duration such as \"2s\" is needed",
				"a.yaml:4: cni.enabled: is the text \"yes please\", true or false is needed", "a.yaml:4: cni.binDir: is a list, a string is needed",
			},
		},
		"wrong values": {
			"nodeName: Node_1\nkubeconfig: k\nstateDir: ''\nsocketDir: /" + strings.Repeat("x", 100) + "\nmetricsAddress: 9479\nlog: {level: trace, format: xml}\n" +
				"cni: {confName: a/b.conf, primaryConf: x, statusTimeout: -1s, criSocket: /x}\nvmi: {policy: best}",
			[]string{
				"a.yaml:5: metricsAddress: is the number 9479, a string is needed",
				"a.yaml:6: log.level: \"trace\" is none of debug, info, warn and error",
				"a.yaml:1: nodeName: \"Node_1\" is no name of a node: small letters, digits, '-' and '.'",
				"a.yaml:2: kubeconfig: \"k\" is not absolute", "a.yaml:3: stateDir: is empty, an absolute path is needed",
				"a.yaml:4: socketDir: \"/" + strings.Repeat("x", 63) + "…\" is too long: a socket's path has at most 103 bytes",
				"a.yaml:6: log.format: \"xml\" is none of json, text",
				"a.yaml:7: cni.confName: \"a/b.conf\" is no plain file name", "a.yaml:7: cni.primaryConf: \"x\" is not absolute",
				"a.yaml:7: cni.statusTimeout: -1s is not between 0s and 30s",
				"a.yaml:7: cni.criSocket: is not used by this build, which never asks the runtime: leave it out",
				"a.yaml:8: vmi.policy: \"best\" is none of family-merge, pod-authoritative",
			},
		},
		"virtual machines": {
			"networkDriver: {enabled: true}\nvmi:\n  mode: enabled\n  procDir: proc\n  pollInterval: 2h\n",
			[]string{
				"a.yaml:3: vmi.mode: \"enabled\" is none of disabled, observe, publish",
				"a.yaml:4: vmi.procDir: \"proc\" is not absolute",
				"a.yaml:5: vmi.pollInterval: 2h0m0s is not between 1s and 1h",
			},
		},
		"nothing to do":     {"cni: {enabled: false}", []string{"a.yaml:1: cni.enabled: is false, which leaves nothing to do"}},
		"a conf's name":     {"cni: {confName: weft.conf}", []string{"a.yaml:1: cni.confName: \"weft.conf\" does not end in .conflist, which tells runtimes that it is a list"}},
		"a hidden conf":     {"cni: {confName: .w.conflist}", []string{"a.yaml:1: cni.confName: \".w.conflist\" is no plain file name"}},
		"an address":        {"metricsAddress: somewhere:80", []string{"a.yaml:1: metricsAddress: \"somewhere:80\" is no address with a port such as 127.0.0.1:9479: the host is no address"}},
		"an address's port": {"metricsAddress: 127.0.0.1:99999", []string{"a.yaml:1: metricsAddress: \"127.0.0.1:99999\" is no address with a port such as 127.0.0.1:9479: the port is no number from 0 to 65535"}},
		"no port":           {"metricsAddress: 127.0.0.1", []string{"a.yaml:1: metricsAddress: \"127.0.0.1\" is no address with a port such as 127.0.0.1:9479: missing port in address"}},
		"the agent's own":   {"cni: {kubeconfig: /x, type: y}", []string{"a.yaml:1: cni.kubeconfig: is for work without an agent, it cannot be given", "a.yaml:1: cni.type: is set by the agent itself, it cannot be given"}},
		"conf values": {
			"cni:\n  namespaceIsolation: maybe\n  delegateLimit: -1\n  logLevel: loud\n  logOptions: {x: 1}\n  timeout: .inf\n",
			[]string{
				"a.yaml:6: cni.timeout: is the number .inf, which JSON does not have",
				"a.yaml:2: cni.namespaceIsolation: is a string, true or false is needed",
				"a.yaml:3: cni.delegateLimit: is -1, it cannot be negative",
				"a.yaml:4: cni.logLevel: \"loud\" is none of panic, error, verbose and debug; panic is used",
				"a.yaml:5: cni.logOptions: has keys that Weft does not know: \"x\"",
			},
		},
	} {
		_, err := Parse("a.yaml", []byte(c.text), node("n1"))
		var got []string
		for _, e := range each(err) {
			if _, ok := errors.AsType[*Fault](e); !ok {
				t.Errorf("%s: %T is no *Fault", name, e)
			}
			got = append(got, e.Error())
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestFaultsOfFlags(t *testing.T) {
	_, err := Parse("a.yaml", nil, Overrides{NodeName: new("A"), Kubeconfig: new("x"), EnableNetworkDriver: new(true)})
	want := "flag --node-name: nodeName: \"A\" is no name of a node: small letters, digits, '-' and '.'\n" +
		"flag --kubeconfig: kubeconfig: \"x\" is not absolute"
	if err == nil || err.Error() != want {
		t.Error(err)
	}
	_, err = Parse("a.yaml", nil, Overrides{})
	if err == nil || !strings.HasPrefix(err.Error(), "nodeName: is not given") {
		t.Error(err)
	}
}

func TestLoadFaults(t *testing.T) {
	dir := t.TempDir()
	huge := filepath.Join(dir, "huge")
	if err := os.WriteFile(huge, make([]byte, maxBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir + "/none": ": cannot be read: no such file or directory", dir: ": is no file", huge: ": has 1048577 bytes, more than 1048576",
	} {
		_, err := Load(path, node("n1"))
		if _, ok := errors.AsType[*Fault](err); !ok || err.Error() != path+want {
			t.Errorf("%v, want %s", err, path+want)
		}
	}
}

// TestConfKeys: every key of a CNI configuration is the agent's, or is refused, or may be set.
func TestConfKeys(t *testing.T) {
	all := strings.Join(ConfKeys(), " ")
	for _, own := range []string{
		"type", "name", "cniVersion", "delegates", "kubeconfig", "manifests", "agentSocket", "stateDir", "prevResult", "runtimeConfig",
		"capabilities", "clusterNetwork", "confDir", "binDir", "kubeletDir", "primaryConf",
	} {
		if strings.Contains(" "+all+" ", " "+own+" ") {
			t.Errorf("%s may be set for the published configuration", own)
		}
	}
	for _, free := range []string{"strict", "readinessindicatorfile", "retryDeleteOnError", "timeout", "logFile", "deviceInfoDir"} {
		if !strings.Contains(" "+all+" ", " "+free+" ") {
			t.Errorf("%s cannot be set for the published configuration", free)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("nodeName: a\ncni: {confDir: /x, strict: true}\n")
	f.Add("cni: &a {logOptions: *a, x: {<<: *a}}")
	f.Add("log: {level: debug}\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse("a.yaml", []byte(text), node("n1"))
		for _, e := range each(err) {
			if strings.ContainsAny(e.Error(), "\n\x00") {
				t.Errorf("%q is more than one line", e)
			}
		}
		if err == nil && c.Validate() != nil {
			t.Error(c.Validate())
		}
		for name, raw := range c.CNI.Conf {
			if !json.Valid(raw) {
				t.Errorf("%s is %q", name, raw)
			}
		}
	})
}
