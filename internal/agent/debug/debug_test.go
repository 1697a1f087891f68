// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/plan"
)

// helperSocket makes the test binary a client that prints what it is answered.
const helperSocket = "WEFT_TEST_DEBUG_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(helperSocket); path != "" {
		_, err := NewClient(path).Node(context.Background())
		fmt.Printf("permission %t: %v\n", errors.Is(err, fs.ErrPermission), err)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var now = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

type view struct {
	node     Node
	pods     []Pod
	networks []Network
	explain  func(context.Context, string, string) (plan.Output, error)
}

func (v *view) Node() Node          { return v.node }
func (v *view) Pods() []Pod         { return v.pods }
func (v *view) Networks() []Network { return v.networks }
func (v *view) Explain(ctx context.Context, namespace, name string) (plan.Output, error) {
	return v.explain(ctx, namespace, name)
}

// serve runs a server, and gives a client of it and what stops it.
func serve(t *testing.T, v *view, edit func(*Server)) (client *Client, path string, stop func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "debug.sock")
	s := New(path, v, slog.New(slog.DiscardHandler))
	s.now = func() time.Time { return now }
	if edit != nil {
		edit(s)
	}
	client = NewClient(path)
	t.Cleanup(client.Close)
	return client, path, start(t, s)
}

func start(t *testing.T, s *Server) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}
	var done atomic.Bool
	stop := func() {
		cancel()
		if done.CompareAndSwap(false, true) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestAnswers(t *testing.T) {
	web := Pod{
		Namespace: "default", Name: "web", UID: "u1", Known: true,
		Sandboxes: []Sandbox{{ContainerID: "c1", Interface: "eth0", Created: now, Finished: true, Attachments: []Attachment{
			{Network: "default/neta", Interface: "net1", MAC: "02:00:00:00:00:01", Addresses: []string{"10.0.0.2/24"}, Plugins: []string{"macvlan"}, Phase: PhaseDone, Since: now},
			{Network: "default/netb", Interface: "net2", Phase: PhasePlanned},
		}}},
		NetworkStatus: NetworkStatus{State: StatusPending, Since: now, Desired: []netstatus.Entry{{Name: "default/neta"}}, Written: "[]"},
	}
	v := &view{
		node: Node{
			Name: "n1", Conf: Conf{Path: "/etc/cni/net.d/00-weft.conflist", Fault: "no primary"}, Counts: Counts{Pods: 2, HalfDone: 1},
			Paths: Paths{StateDir: "/var/lib/weft"},
		},
		pods:     []Pod{web, {Namespace: "other", Name: "db"}},
		networks: []Network{{Namespace: "default", Name: "neta", Types: []string{"macvlan"}, IPAM: []string{"static"}, Pods: 1}, {Namespace: "other", Name: "b", Gone: true}},
	}
	client, path, _ := serve(t, v, nil)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v %v, want mode 0600", info, err)
	}
	head := Head{Version: 1, Node: "n1", Now: now}

	node, err := client.Node(t.Context())
	want := v.node
	want.Conditions = []Condition{}
	check(t, "node", node, err, &NodeAnswer{Head: head, State: want})

	wantWeb := web
	wantWeb.Sandboxes = []Sandbox{web.Sandboxes[0]}
	wantWeb.Sandboxes[0].Attachments = append([]Attachment{}, web.Sandboxes[0].Attachments...)
	wantWeb.Sandboxes[0].Attachments[1].Addresses, wantWeb.Sandboxes[0].Attachments[1].Plugins = []string{}, []string{}
	db := Pod{Namespace: "other", Name: "db", Sandboxes: []Sandbox{}}
	pods, err := client.Pods(t.Context(), "", "")
	check(t, "all pods", pods, err, &PodsAnswer{Head: head, Pods: []Pod{wantWeb, db}})
	pods, err = client.Pods(t.Context(), "other", "")
	check(t, "pods of a namespace", pods, err, &PodsAnswer{Head: head, Pods: []Pod{db}})
	pods, err = client.Pods(t.Context(), "default", "db")
	check(t, "no pod", pods, err, &PodsAnswer{Head: head, Pods: []Pod{}})
	if v.pods[0].Sandboxes[0].Attachments[1].Plugins != nil {
		t.Error("the view's own pod was changed")
	}

	networks, err := client.Networks(t.Context(), "other")
	check(t, "networks", networks, err, &NetworksAnswer{Head: head, Networks: []Network{{Namespace: "other", Name: "b", Types: []string{}, IPAM: []string{}, Gone: true}}})
}

func check(t *testing.T, what string, got any, err error, want any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	} else if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestExplain(t *testing.T) {
	whole := plan.Output{
		Plan: &plan.Plan{Attachments: []plan.Attachment{{
			Network: "default/neta", IfName: "net1", DeviceID: "0000:01", Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
			Conf:          netconf.Network{Plugins: []netconf.Plugin{{Type: "macvlan", IPAM: "static", Conf: []byte(`{"secret":"x"}`)}, {Type: "tuning"}}},
			RuntimeConfig: map[string]json.RawMessage{"ips": json.RawMessage(`["10.0.0.2/24"]`)},
		}}},
		Decisions: []plan.Decision{{Attachment: -1, Subject: plan.SubjectDevice, Value: "v", Reason: "r", Object: "o", Field: "f"}},
		Warnings:  []fault.Warning{{Object: "o", Text: "w"}},
	}
	wantWhole := Plan{
		Decisions: []Decision{{Attachment: -1, Subject: "device", Value: "v", Reason: "r", Object: "o", Field: "f"}},
		Attachments: []Planned{{
			Network: "default/neta", Interface: "net1", Plugins: []string{"macvlan", "tuning"}, IPAM: []string{"static"},
			RuntimeConfig: map[string]json.RawMessage{"ips": json.RawMessage(`["10.0.0.2/24"]`)}, Gateways: []string{"10.0.0.1"}, Device: "0000:01",
		}},
		Faults: []Fault{}, Warnings: whole.Warnings,
	}
	none := func(faults ...Fault) Plan {
		return Plan{Decisions: []Decision{}, Attachments: []Planned{}, Faults: faults, Warnings: []fault.Warning{}}
	}
	for name, test := range map[string]struct {
		out  plan.Output
		err  error
		want Plan
	}{
		"a plan": {out: whole, want: wantWhole},
		"faults": {
			err:  errors.Join(fault.New(fault.Config, "pod a/b", "annotation x", "is wrong"), fault.New(fault.TryLater, "pod a/b", "", "is late")),
			want: none(Fault{Code: 7, Object: "pod a/b", Field: "annotation x", Text: "is wrong"}, Fault{Code: 11, Object: "pod a/b", Text: "is late"}),
		},
		"another error": {err: io.ErrUnexpectedEOF, want: none(Fault{Code: 100, Text: "unexpected EOF"})},
		"nothing":       {want: none(Fault{Code: 100, Text: "there is neither a plan nor a reason"})},
	} {
		t.Run(name, func(t *testing.T) {
			client, _, _ := serve(t, &view{node: Node{Name: "n1"}, explain: func(_ context.Context, namespace, pod string) (plan.Output, error) {
				if namespace != "default" || pod != "web" {
					return plan.Output{}, fmt.Errorf("explain: %w", ErrNoPod)
				}
				return test.out, test.err
			}}, nil)
			got, err := client.Explain(t.Context(), "default", "web")
			check(t, "plan", got, err, &PlanAnswer{Head: Head{Version: 1, Node: "n1", Now: now}, Plan: test.want})
			if _, err := client.Explain(t.Context(), "default", "db"); !errors.Is(err, ErrNoPod) {
				t.Errorf("another pod: %v, want ErrNoPod", err)
			}
			if _, err := client.Explain(t.Context(), "", "db"); err == nil || !strings.Contains(err.Error(), "needs namespace and name") {
				t.Errorf("no namespace: %v", err)
			}
			if _, err := client.Explain(t.Context(), "default", strings.Repeat("x", maxRequest)); err == nil || !strings.Contains(err.Error(), "answer 400") {
				t.Errorf("huge request: %v", err)
			}
		})
	}
}

// A list that is larger than an answer may be says what is left out, and arrives.
func TestHugeLists(t *testing.T) {
	const all = 500
	v := &view{explain: func(context.Context, string, string) (plan.Output, error) {
		return plan.Output{Decisions: []plan.Decision{{Value: strings.Repeat("v", 1<<20)}}, Plan: &plan.Plan{}}, nil
	}}
	for i := range all {
		v.pods = append(v.pods, Pod{Namespace: "default", Name: fmt.Sprintf("pod-%03d-%s", i, strings.Repeat("x", 200))})
		v.networks = append(v.networks, Network{Namespace: "default", Name: fmt.Sprintf("net-%03d-%s", i, strings.Repeat("<", 200))})
	}
	client, path, _ := serve(t, v, func(s *Server) { s.limit = 64 << 10 })
	pods, err := client.Pods(t.Context(), "", "")
	if err != nil || len(pods.Pods) == 0 || pods.LeftOut == 0 || len(pods.Pods)+pods.LeftOut != all {
		t.Errorf("pods: %d shown, %d left out, %v; want some of each of %d", len(pods.Pods), pods.LeftOut, err, all)
	}
	networks, err := client.Networks(t.Context(), "")
	if err != nil || len(networks.Networks) == 0 || networks.LeftOut == 0 || len(networks.Networks)+networks.LeftOut != all {
		t.Errorf("networks: %d shown, %d left out, %v; want some of each of %d", len(networks.Networks), networks.LeftOut, err, all)
	}
	if n := len(raw(t, path, "GET /v1/pods HTTP/1.0\r\n\r\n")); n > 64<<10 {
		t.Errorf("the answer has %d bytes, the limit is %d", n, 64<<10)
	}
	if _, err := client.Explain(t.Context(), "a", "b"); err == nil || !strings.Contains(err.Error(), "the limit is 65536") {
		t.Errorf("a plan beyond the limit: %v", err)
	}
}

// raw sends text and gives all that is answered.
func raw(t *testing.T, path, text string) string {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestStrangeRequests(t *testing.T) {
	client, path, _ := serve(t, &view{explain: func(context.Context, string, string) (plan.Output, error) { panic("of a view") }}, nil)
	for text, want := range map[string]string{
		"GET /v2/node HTTP/1.0\r\n\r\n":                            "this agent speaks version 1",
		"DELETE /v1/node HTTP/1.0\r\n\r\n":                         "404 Not Found",
		"GET /v1/explain HTTP/1.0\r\n\r\n":                         "404 Not Found",
		"\x00\x01\x02\r\n\r\n":                                     "400 Bad Request",
		"GET / HTTP/1.1\r\nX: \x00\r\n\r\n":                        "400 Bad Request",
		"POST /v1/explain HTTP/1.0\r\nContent-Length: 2\r\n\r\n[]": "read request",
	} {
		if got := raw(t, path, text); !strings.Contains(got, want) {
			t.Errorf("%q is answered with %q, want %q", text, got, want)
		}
	}
	// A panic costs its own connection alone.
	if _, err := client.Explain(t.Context(), "a", "b"); err == nil {
		t.Error("a panic is answered")
	}
	if _, err := client.Node(t.Context()); err != nil {
		t.Errorf("after a panic: %v", err)
	}
}

// Who is neither root nor the server's user is refused, also where the file would let him.
func TestWrongUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	_, path, _ := serve(t, &view{}, nil)
	if err := os.Chmod(filepath.Dir(filepath.Dir(path)), 0o755); err != nil { // t.TempDir's own
		t.Fatal(err)
	}
	for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode()&1 == 0 {
			t.Skipf("others cannot reach %s", dir)
		}
	}
	ask := func() string {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = []string{helperSocket + "=" + path}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if got := ask(); !strings.HasPrefix(got, "permission true") || !strings.Contains(got, "connect: permission denied") {
		t.Errorf("mode 0600: %s", got)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if got := ask(); !strings.HasPrefix(got, "permission true") || !strings.Contains(got, "user 65534 is neither root nor the agent's own") {
		t.Errorf("mode 0666: %s", got)
	}
}

// Nobody who connects and says nothing holds up the others, up to the bound; at the end
// all of them are let go.
func TestSilentClients(t *testing.T) {
	client, path, stop := serve(t, &view{}, nil)
	for range maxConns - 1 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if _, err := client.Node(t.Context()); err != nil {
		t.Error(err)
	}
	stop()
}

func TestServerGone(t *testing.T) {
	client, path, stop := serve(t, &view{}, nil)
	if _, err := client.Node(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if _, err := client.Node(t.Context()); !errors.Is(err, ErrAway) {
		t.Errorf("no socket: %v, want ErrAway", err)
	}

	// A killed agent leaves its socket: nobody is there, and the next one replaces it.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := client.Node(t.Context()); !errors.Is(err, ErrAway) {
		t.Errorf("stale socket: %v, want ErrAway", err)
	}
	first := New(path, &view{node: Node{Name: "first"}}, slog.New(slog.DiscardHandler))
	stopFirst := start(t, first)
	second := New(path, &view{node: Node{Name: "second"}}, slog.New(slog.DiscardHandler))
	start(t, second)
	stopFirst() // leaves the second's file alone
	client.Close()
	if a, err := client.Node(t.Context()); err != nil || a.Node != "second" {
		t.Errorf("after the first ended: %+v %v, want the second", a, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("folder holds %v %v, want the socket alone", entries, err)
	}
}

// Who cleans up the socket's folder does not leave an agent that nobody can ask.
func TestTakenAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "debug.sock")
	s := New(path, &view{node: Node{Name: "n"}}, slog.New(slog.DiscardHandler))
	s.look = 5 * time.Millisecond
	stop := start(t, s)
	for range 2 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		client := NewClient(path)
		defer client.Close()
		for began := time.Now(); ; time.Sleep(time.Millisecond) { //nolint:forbidigo // polls a real file, within a bound
			if _, err := os.Lstat(path); err == nil {
				break
			}
			if time.Since(began) > 30*time.Second {
				t.Fatal("the socket does not come back")
			}
		}
		if a, err := client.Node(t.Context()); err != nil || a.Node != "n" {
			t.Errorf("%+v %v", a, err)
		}
	}
	stop()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestNoPlaceForASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "debug.sock")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := New(path, &view{}, slog.New(slog.DiscardHandler)).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "mine" || err != nil {
		t.Errorf("the file is now %q %v", b, err)
	}
	if err := New(filepath.Join(path, "x"), &view{}, slog.New(slog.DiscardHandler)).Run(t.Context()); err == nil {
		t.Error("no folder is no error")
	}
}

// An answer under way is finished at the end.
func TestDrain(t *testing.T) {
	asked := make(chan struct{})
	release := make(chan struct{})
	client, _, stop := serve(t, &view{explain: func(context.Context, string, string) (plan.Output, error) {
		close(asked)
		<-release
		return plan.Output{Plan: &plan.Plan{}}, nil
	}}, nil)
	answered := make(chan error, 1)
	go func() {
		_, err := client.Explain(t.Context(), "a", "b")
		answered <- err
	}()
	<-asked
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("answer under way: %v", err)
	}
	<-stopped
}

func TestParseAnswer(t *testing.T) {
	for body, want := range map[string]string{
		`{"version":2,"pods":{}}`: "speaks version 2",
		`{"version":1}`:           "it has no time",
		`{"version":1,"now":"2026-05-04T03:02:01Z","pods":"no"}`: "no JSON of an agent",
		`<html>`: "no JSON of an agent",
		``:       "no JSON of an agent",
	} {
		var a PodsAnswer
		if err := parseAnswer(http.StatusOK, []byte(body), &a, &a.Head); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
	if err := parseAnswer(http.StatusBadGateway, []byte("<html>"), nil, nil); err == nil || !strings.Contains(err.Error(), "502 Bad Gateway of something") {
		t.Errorf("502: %v", err)
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add(200, []byte(`{"version":1,"node":"n","now":"2026-05-04T03:02:01Z","pods":[{"sandboxes":[{"attachments":[{}]}]}],"leftOut":1}`))
	f.Add(404, []byte(`{"version":1,"error":"x","noPod":true}`))
	f.Fuzz(func(t *testing.T, code int, body []byte) {
		var a PodsAnswer
		if err := parseAnswer(code, body, &a, &a.Head); err == nil && (code != http.StatusOK || a.Version != Version || a.Now.IsZero()) {
			t.Errorf("%d %q is taken for an answer", code, body)
		}
	})
}

func FuzzParseExplain(f *testing.F) {
	f.Add([]byte(`{"namespace":"default","name":"web"}`))
	f.Add([]byte(`[null]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if req, err := parseExplain(bytes.NewReader(body)); err == nil && (req.Namespace == "" || req.Name == "") {
			t.Errorf("%q is taken for a request", body)
		}
	})
}

func TestStateDB(t *testing.T) {
	v := &view{node: Node{Name: "n1"}}
	off, _, _ := serve(t, v, nil)
	if _, err := off.StateDB(t.Context()); err == nil || !strings.Contains(err.Error(), "the network driver is off") {
		t.Errorf("without tables: %v", err)
	}

	dump := func(text string, err error) func(*Server) {
		return func(s *Server) {
			s.ServeTables(func(w io.Writer) error {
				_, werr := io.WriteString(w, text)
				return errors.Join(werr, err)
			})
		}
	}
	const tables = "{\n  \"networkdriver-dra-devices\": [\n    {\"Name\":\"<a>\"}\n  ]\n}\n"
	client, _, _ := serve(t, v, dump(tables, nil))
	a, err := client.StateDB(t.Context())
	check(t, "tables", a, err, &StateDBAnswer{
		Head:   Head{Version: Version, Node: "n1", Now: now},
		Tables: json.RawMessage(`{"networkdriver-dra-devices":[{"Name":"<a>"}]}`),
	})

	broken, _, _ := serve(t, v, dump(`{"half`, errors.New("disk full of bees")))
	if _, err := broken.StateDB(t.Context()); err == nil || !strings.Contains(err.Error(), "bees") {
		t.Errorf("a dump that fails: %v", err)
	}
	torn, _, _ := serve(t, v, dump(`{"half`, nil))
	if _, err := torn.StateDB(t.Context()); err == nil || !strings.Contains(err.Error(), "encode answer") {
		t.Errorf("a dump that is no JSON: %v", err)
	}
	large, _, _ := serve(t, v, func(s *Server) {
		dump(`{"t": ["`+strings.Repeat("x", 5000)+`"]}`, nil)(s)
		s.limit = 4000
	})
	if _, err := large.StateDB(t.Context()); err == nil || !strings.Contains(err.Error(), "the limit is 4000") {
		t.Errorf("a dump that is too large: %v", err)
	}
}
