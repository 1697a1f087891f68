// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/test/binaries"
)

// bench is a network of recording delegates and what they recorded.
type bench struct {
	t    *testing.T
	dir  string
	log  string
	call chain.Call
}

// record is one line of the delegates' log.
type record struct {
	Command, ContainerID, IfName, Netns, Args, Path, Type, Stdin string
	PID, Child                                                   int
	End                                                          bool
	Env                                                          []string
	FDs                                                          []int
}

// newBench makes a network with one plugin for each of confs: a JSON object without the
// braces, starting with "type".
func newBench(t *testing.T, version string, confs ...string) *bench {
	t.Helper()
	b := &bench{t: t, log: filepath.Join(t.TempDir(), "calls.jsonl")}
	b.dir = binaries.Delegate(t, "pa", "pb", "pc")
	b.call = chain.Call{
		Network:     netconf.Network{Name: "net", CNIVersion: version},
		ContainerID: "c1", Netns: "/run/netns/x", IfName: "net1", Args: "IgnoreUnknown=1;A=b=c", Path: "/nowhere:" + b.dir,
	}
	for _, conf := range confs {
		text := fmt.Sprintf(`{%s,"log":%q}`, conf, b.log)
		var c struct {
			Type         string
			Capabilities map[string]bool
		}
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		b.call.Network.Plugins = append(b.call.Network.Plugins,
			netconf.Plugin{Type: c.Type, Capabilities: c.Capabilities, Conf: []byte(text)})
	}
	return b
}

// records reads the log; ends are left out unless asked for.
func (b *bench) records(ends bool) []record {
	b.t.Helper()
	data, err := os.ReadFile(b.log)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.t.Fatal(err)
	}
	var all []record
	for line := range strings.Lines(string(data)) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			b.t.Fatalf("log line %q: %v", line, err)
		}
		if r.End == ends {
			all = append(all, r)
		}
	}
	return all
}

func (b *bench) order() []string {
	var order []string
	for _, r := range b.records(false) {
		order = append(order, r.Type+" "+r.Command)
	}
	return order
}

func (b *bench) wantOrder(want ...string) {
	b.t.Helper()
	if got := b.order(); !slices.Equal(got, want) {
		b.t.Errorf("calls %q, want %q", got, want)
	}
}

func runner(stderr io.Writer) *chain.Runner {
	return chain.New(stderr, []string{"PATH=/bin", "SECRET=x", "CNI_IFNAME=eth0", "CNI_NETNS_OVERRIDE=1", "HTTPS_PROXY=p"})
}

func chainError(t *testing.T, err error) *chain.Error {
	t.Helper()
	e, ok := errors.AsType[*chain.Error](err)
	if !ok {
		t.Fatalf("error %v (%T), want a *chain.Error", err, err)
	}
	return e
}

// stdin gives a recorded configuration with the log's key dropped.
func (b *bench) stdin(r record) string {
	return strings.Replace(r.Stdin, fmt.Sprintf(`,"log":%q`, b.log), "", 1)
}

const full = `{"cniVersion":"1.0.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:01","sandbox":"/run/netns/x"}],` +
	`"ips":[{"interface":0,"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}],"dns":{},"x":9007199254740993}`

// Order, environment, and exactly the keys that CNI asks for, with every other byte
// as it was written.
func TestAddPassesOnWhatWasWritten(t *testing.T) {
	b := newBench(t, "1.0.0",
		`"type":"pa","name":"other", "big":9007199254740993 ,"f":1.00,"capabilities":{"ips":true,"mac":false},"detail":true,"result":`+full,
		`"type":"pb","cniVersion":"0.3.1","capabilities":{"ips":true,"portMappings":true},"args":{"é":"\u00e9"}`)
	b.call.RuntimeConfig = map[string]json.RawMessage{
		"portMappings": json.RawMessage(`[ {"hostPort":9007199254740993} ]`),
		"mac":          json.RawMessage(`"02:00:00:00:00:09"`),
		"ips":          json.RawMessage(`["10.1.0.2/24"]`),
	}
	out, err := runner(nil).Add(t.Context(), b.call)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := out.Bytes(); err != nil || string(raw) != full {
		t.Errorf("result\n%s\n%v, want the plugin's own\n%s", raw, err, full)
	}
	b.wantOrder("pa ADD", "pb ADD")
	calls := b.records(false)
	want := `{"type":"pa","name":"net","big":9007199254740993,"f":1.00,"capabilities":{"ips":true,"mac":false},"detail":true,"result":` +
		full + `,"cniVersion":"1.0.0","runtimeConfig":{"ips":["10.1.0.2/24"]}}`
	if got := b.stdin(calls[0]); got != want {
		t.Errorf("first configuration\n%s\nwant\n%s", got, want)
	}
	want = `{"type":"pb","cniVersion":"1.0.0","capabilities":{"ips":true,"portMappings":true},"args":{"é":"\u00e9"},"name":"net","prevResult":` +
		full + `,"runtimeConfig":{"ips":["10.1.0.2/24"],"portMappings":[ {"hostPort":9007199254740993} ]}}`
	if got := b.stdin(calls[1]); got != want {
		t.Errorf("second configuration\n%s\nwant\n%s", got, want)
	}
	c := calls[0]
	if c.ContainerID != "c1" || c.IfName != "net1" || c.Netns != "/run/netns/x" || c.Args != "IgnoreUnknown=1;A=b=c" || c.Path != b.call.Path {
		t.Errorf("variables %+v", c)
	}
	wantEnv := []string{
		"CNI_ARGS", "CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_NETNS_OVERRIDE", "CNI_PATH", "GOMAXPROCS",
		"HTTPS_PROXY", "PATH",
	}
	if got := slices.Sorted(slices.Values(c.Env)); !slices.Equal(got, wantEnv) {
		t.Errorf("environment %q, want %q", got, wantEnv)
	}
	if len(c.FDs) != 0 {
		t.Errorf("descriptors %v inherited, want none", c.FDs)
	}
}

// Each plugin gets the previous result in the network's version, whichever version
// the plugin before it answered in.
func TestPrevResultVersions(t *testing.T) {
	old := `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0"}]},"dns":{}}`
	tests := []struct{ name, version, result, prev string }{
		{"0.1.0", "0.1.0", full, `{"cniVersion":"0.1.0","ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}]},"dns":{}}`},
		{"0.2.0 unchanged", "0.2.0", old, old},
		{"0.2.0 to 0.3.0", "0.3.0", old, `{"cniVersion":"0.3.0","ips":[{"version":"4","address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{}}`},
		{"1.0.0 to 0.3.1", "0.3.1", full, `{"cniVersion":"0.3.1","interfaces":[{"name":"net1","mac":"02:00:00:00:00:01","sandbox":"/run/netns/x"}],"ips":[{"version":"4","interface":0,"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"}],"dns":{}}`},
		{"none to 0.4.0", "0.4.0", `{"ips":[]}`, `{"ips":[],"cniVersion":"0.4.0"}`},
		{"1.1.0 to 1.0.0", "1.0.0", `{"cniVersion":"1.1.0","interfaces":[{"name":"a","mtu":9000}]}`, `{"cniVersion":"1.0.0","interfaces":[{"mtu":9000,"name":"a"}]}`},
		{"1.0.0 to 1.1.0", "1.1.0", `{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.1.0"}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, test.version, `"type":"pa","result":`+test.result, `"type":"pb"`)
			if _, err := runner(nil).Add(t.Context(), b.call); err != nil {
				t.Fatal(err)
			}
			var conf struct{ PrevResult json.RawMessage }
			if err := json.Unmarshal([]byte(b.records(false)[1].Stdin), &conf); err != nil {
				t.Fatal(err)
			}
			if string(conf.PrevResult) != test.prev {
				t.Errorf("prevResult\n%s\nwant\n%s", conf.PrevResult, test.prev)
			}
		})
	}
}

// DEL and CHECK get the recorded result in the network's version, DEL from 0.4.0 on.
func TestRecordedPrevResult(t *testing.T) {
	prev := []byte(`{"cniVersion":"1.0.0","dns":{}}`)
	tests := []struct {
		version, command, want string
		disable                bool
	}{
		{version: "0.3.1", command: "DEL"},
		{version: "0.4.0", command: "DEL", want: `{"cniVersion":"0.4.0","dns":{}}`},
		{version: "1.0.0", command: "DEL", want: `{"cniVersion":"1.0.0","dns":{}}`},
		{version: "0.3.1", command: "CHECK", want: "not called"},
		{version: "", command: "CHECK", want: "not called"},
		{version: "1.0.0", command: "CHECK", disable: true, want: "not called"},
		{version: "0.4.0", command: "CHECK", want: `{"cniVersion":"0.4.0","dns":{}}`},
	}
	for _, test := range tests {
		t.Run(test.command+" "+test.version, func(t *testing.T) {
			b := newBench(t, test.version, `"type":"pa"`)
			b.call.PrevResult, b.call.Network.DisableCheck = prev, test.disable
			run := runner(nil).Del
			if test.command == "CHECK" {
				run = runner(nil).Check
			}
			if err := run(t.Context(), b.call); err != nil {
				t.Fatal(err)
			}
			got := "not called"
			if calls := b.records(false); len(calls) > 0 {
				var conf struct{ PrevResult json.RawMessage }
				if err := json.Unmarshal([]byte(calls[0].Stdin), &conf); err != nil {
					t.Fatal(err)
				}
				got = string(conf.PrevResult)
			}
			if got != test.want {
				t.Errorf("prevResult %s, want %s", got, test.want)
			}
		})
	}
}

// A record whose result was damaged is undone without prevResult.
func TestDelWithoutReadableResult(t *testing.T) {
	b := newBench(t, "1.0.0", `"type":"pa"`)
	b.call.PrevResult = []byte(`{"cniVersion":"7"}`)
	if err := runner(nil).Del(t.Context(), b.call); err != nil {
		t.Fatal(err)
	}
	if got, want := b.stdin(b.records(false)[0]), `{"type":"pa","name":"net","cniVersion":"1.0.0"}`; got != want {
		t.Errorf("configuration %s, want %s", got, want)
	}
}

// ADD stops at the first failure, keeps its code and texts, and undoes nothing itself.
func TestAddStops(t *testing.T) {
	b := newBench(t, "1.0.0", `"type":"pa"`, `"type":"pb","fail":{"ADD":{"code":11,"msg":"no address left","details":"pool \"x\""}}`, `"type":"pc"`)
	_, err := runner(nil).Add(t.Context(), b.call)
	e := chainError(t, err)
	if e.Code != 11 || e.Msg != "no address left" || e.Details != `pool "x"` || e.Plugin != "pb" || e.Index != 1 || e.Command != "ADD" {
		t.Errorf("error %+v", e)
	}
	if want := `ADD by plugin "pb" (plugins[1]): no address left; pool "x"`; err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
	b.wantOrder("pa ADD", "pb ADD")
}

// DEL reaches every plugin: behind a failing one, an absent one and one whose
// configuration is broken, in reverse order, and every failure is told.
func TestDelReachesEveryPlugin(t *testing.T) {
	b := newBench(t, "1.0.0", `"type":"pa"`, `"type":"gone"`, `"type":"pb","fail":{"DEL":{"code":5,"msg":"stuck"}}`, `"type":"pa"`, `"type":"pc"`)
	b.call.Network.Plugins[3].Conf = []byte("[]")
	err := runner(nil).Del(t.Context(), b.call)
	b.wantOrder("pc DEL", "pb DEL", "pa DEL")
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("error %v, want a joined one", err)
	}
	var got []string
	for _, err := range joined.Unwrap() {
		e := chainError(t, err)
		got = append(got, fmt.Sprintf("%d %s %d", e.Index, e.Plugin, e.Code))
	}
	if want := []string{"3 pa 7", "2 pb 5", "1 gone 104"}; !slices.Equal(got, want) {
		t.Errorf("errors %q, want %q", got, want)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v does not say that a binary is absent", err)
	}
}

// host-device forgets its addresses when the namespace is gone: they are released for it, also when its
// device is gone as well.
func TestDelReleasesAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		conf, netns string
		want        []string
	}{
		"no namespace":      {`"type":"host-device","ipam":{"type":"pa"}`, "", []string{"pb DEL", "host-device DEL", "host-device DEL"}},
		"no device either":  {`"type":"host-device","ipam":{"type":"pa"},"fail":{"DEL":{"code":5,"msg":"no device","times":1}}`, "", []string{"pb DEL", "host-device DEL", "host-device DEL"}},
		"a namespace":       {`"type":"host-device","ipam":{"type":"pa"}`, "/run/netns/x", []string{"pb DEL", "host-device DEL"}},
		"no addresses":      {`"type":"host-device"`, "", []string{"pb DEL", "host-device DEL"}},
		"one that does not": {`"type":"pc","ipam":{"type":"pa"}`, "", []string{"pb DEL", "pc DEL"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "1.0.0", c.conf, `"type":"pb"`)
			b.call.Path = binaries.Delegate(t, "host-device", "pa", "pb", "pc")
			b.call.Netns = c.netns
			err := runner(nil).Del(t.Context(), b.call)
			if strings.Contains(c.conf, "fail") != (err != nil) {
				t.Errorf("DEL ends with %v", err)
			}
			b.wantOrder(c.want...)
		})
	}
	b := newBench(t, "1.0.0", `"type":"host-device","ipam":{"type":"gone"}`)
	b.call.Path, b.call.Netns = binaries.Delegate(t, "host-device"), ""
	if e := chainError(t, runner(nil).Del(t.Context(), b.call)); e.Plugin != "gone" || !errors.Is(e, fs.ErrNotExist) {
		t.Errorf("without the IPAM plugin DEL ends with %v", e)
	}
}

// A plugin that hangs in DEL has its share of the deadline, not all of it.
func TestDelSharesItsTime(t *testing.T) {
	b := newBench(t, "1.0.0", `"type":"pa"`, `"type":"pb","sleep":{"DEL":"1m"}`)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	err := runner(nil).Del(ctx, b.call)
	if e := chainError(t, err); e.Plugin != "pb" || e.Code != 104 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	b.wantOrder("pb DEL", "pa DEL")
	if ends := b.records(true); len(ends) != 1 || ends[0].Type != "pa" {
		t.Errorf("ended %+v, want pa alone", ends)
	}
}

func TestShare(t *testing.T) {
	for _, tt := range []struct {
		whole time.Duration
		left  int
		want  time.Duration
	}{
		{time.Minute, 1, time.Minute},
		{time.Minute, 2, 30 * time.Second},
		{time.Minute, 12, 5 * time.Second},
		{time.Minute, 256, 5 * time.Second}, // no less, or none of many would ever end
		{6 * time.Second, 256, 3 * time.Second},
	} {
		whole, cancel := context.WithTimeout(t.Context(), tt.whole)
		defer cancel()
		ctx := chain.Share(whole, tt.left, 5*time.Second)
		deadline, _ := ctx.Deadline()
		if got := time.Until(deadline); got > tt.want || got < tt.want-time.Second {
			t.Errorf("the share of 1 of %d in %v is %v, want %v", tt.left, tt.whole, got, tt.want)
		}
	}
	ctx := chain.Share(t.Context(), 9, time.Second)
	if _, ok := ctx.Deadline(); ok {
		t.Error("a deadline where there was none")
	}
}

func TestStatusAndGC(t *testing.T) {
	valid := []netconf.ValidAttachment{{ContainerID: "c1", IfName: "eth0"}}
	b := newBench(t, "1.1.0", `"type":"pa","detail":true,"fail":{"GC":{"code":5,"msg":"x"}}`, `"type":"pb","fail":{"STATUS":{"code":50,"msg":"down"}}`, `"type":"pc"`)
	if e := chainError(t, runner(nil).Status(t.Context(), b.call)); e.Code != 50 || e.Plugin != "pb" {
		t.Errorf("STATUS error %+v", e)
	}
	if e := chainError(t, runner(nil).GC(t.Context(), b.call, valid)); e.Code != 5 || e.Plugin != "pa" {
		t.Errorf("GC error %+v", e)
	}
	b.wantOrder("pa STATUS", "pb STATUS", "pa GC", "pb GC", "pc GC")
	calls := b.records(false)
	if want := []string{"CNI_COMMAND", "CNI_NETNS_OVERRIDE", "CNI_PATH", "GOMAXPROCS", "HTTPS_PROXY", "PATH"}; !slices.Equal(slices.Sorted(slices.Values(calls[0].Env)), want) {
		t.Errorf("STATUS environment %q, want %q", calls[0].Env, want)
	}
	want := `{"type":"pc","name":"net","cniVersion":"1.1.0","cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}],"cni.dev/attachments":[{"containerID":"c1","ifname":"eth0"}]}`
	if got := b.stdin(calls[4]); got != want {
		t.Errorf("GC configuration\n%s\nwant\n%s", got, want)
	}
	for _, skip := range []netconf.Network{{CNIVersion: "1.0.0"}, {CNIVersion: "1.1.0", DisableGC: true}} {
		skip.Plugins = b.call.Network.Plugins
		c := b.call
		c.Network = skip
		if err := runner(nil).GC(t.Context(), c, nil); err != nil {
			t.Errorf("GC of %s: %v", skip.CNIVersion, err)
		}
	}
	old := b.call
	old.Network.CNIVersion = "1.0.0"
	if err := runner(nil).Status(t.Context(), old); err != nil {
		t.Errorf("STATUS of 1.0.0: %v", err)
	}
	if got := len(b.order()); got != 5 {
		t.Errorf("%d calls, want 5: what a version does not have must not be called", got)
	}
}

// What a delegate may answer instead of a result, and what becomes of it.
func TestBadAnswers(t *testing.T) {
	tests := []struct {
		name, conf   string
		code         uint
		msg, details string
	}{
		{"nothing", `"resultRaw":""`, 102, "answered with no CNI result: result is empty, JSON is needed", ""},
		{"garbage", `"resultRaw":"oops"`, 102, "answered with no CNI result: result is not JSON, at byte 1: invalid character 'o' looking for beginning of value", ""},
		{"array", `"resultRaw":"[]"`, 102, "answered with no CNI result: result is an array, an object is needed", ""},
		{"null", `"resultRaw":"null"`, 102, "answered with no CNI result: result is null, an object is needed", ""},
		{"unknown version", `"result":{"cniVersion":"9.9.9"}`, 102, `answered with no CNI result: result cniVersion "9.9.9" is none of [0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0]`, ""},
		{"null element", `"result":{"cniVersion":"0.4.0","interfaces":[null]}`, 102, "answered with no CNI result: result interfaces[0] is null", ""},
		{"two documents", `"resultRaw":"{}{}"`, 102, "answered with no CNI result: result is not JSON, at byte 3: invalid character '{' after top-level value", ""},
		{"status 0 with an error", `"fail":{"ADD":{"code":7,"msg":"bad","details":"d","exit":-1}}`, 7, "bad", "d"},
		{"error with code 0", `"fail":{"ADD":{"msg":"bad"}}`, 104, "bad", ""},
		{"no error, stderr", `"fail":{"ADD":{"exit":3}},"stderr":{"ADD":"panic: x\n"}`, 104, "ended with exit status 3 and without a CNI error, having said on stderr: panic: x", ""},
		{"no error, nothing", `"fail":{"ADD":{"exit":3}}`, 104, "ended with exit status 3 and without a CNI error", ""},
		{"crash", `"crash":{"ADD":true}`, 104, "ended with signal: killed and without a CNI error", ""},
		{"flood", `"flood":{"ADD":40000000}`, 102, "answer is longer than 32 MiB", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, "1.0.0", `"type":"pa",`+test.conf, `"type":"pb"`)
			out, err := runner(nil).Add(t.Context(), b.call)
			e := chainError(t, err)
			if e.Code != test.code || e.Msg != test.msg || e.Details != test.details || e.Plugin != "pa" || out != nil {
				t.Errorf("error %d %q %q, result %v", e.Code, e.Msg, e.Details, out)
			}
			b.wantOrder("pa ADD")
		})
	}
}

// Stderr is passed on up to a limit, and an error cites its end alone.
func TestStderrIsBounded(t *testing.T) {
	b := newBench(t, "1.0.0", `"type":"pa","fail":{"ADD":{"exit":1}},"stderr":{"ADD":"`+strings.Repeat("x", 400<<10)+`end"}`)
	var stderr bytes.Buffer
	_, err := runner(&stderr).Add(t.Context(), b.call)
	e := chainError(t, err)
	if !strings.HasSuffix(e.Msg, "xend") || len(e.Msg) > 5<<10 {
		t.Errorf("message of %d bytes ends %q", len(e.Msg), e.Msg[max(0, len(e.Msg)-20):])
	}
	if stderr.Len() != 256<<10 {
		t.Errorf("%d bytes of stderr passed on, want %d", stderr.Len(), 256<<10)
	}
}

func TestFind(t *testing.T) {
	dir, first := t.TempDir(), t.TempDir()
	write := func(name string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	write("ok", 0o755)
	write("plain", 0o644)
	if err := os.Mkdir(filepath.Join(first, "ok"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := ":" + first + ":" + dir
	if got, err := chain.Find("ok", path); err != nil || got != filepath.Join(dir, "ok") {
		t.Errorf("Find(ok) = %q, %v; a directory of that name must be passed over", got, err)
	}
	for _, bad := range []string{"", ".", "..", "../ok", "/bin/sh", "a\x00b", "plain", "none", strings.Repeat("x", 300)} {
		if got, err := chain.Find(bad, path); err == nil {
			t.Errorf("Find(%q) = %q, want an error", bad, got)
		} else if strings.Contains(err.Error(), "not found") {
			t.Errorf("Find(%q): %q holds the words that containerd takes for success", bad, err)
		}
	}
	if _, err := chain.Find("none", path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Find(none) = %v, want fs.ErrNotExist", err)
	}
}
