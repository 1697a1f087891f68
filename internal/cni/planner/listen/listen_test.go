// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/wire"
	"github.com/weftnet/weft/internal/host/logs/logstest"
)

// askEnv makes the test's program a plugin that asks at the socket that it names.
const askEnv = "LISTEN_TEST_ASK"

func TestMain(m *testing.M) {
	if socket := os.Getenv(askEnv); socket != "" {
		p, err := ask(context.Background(), socket, "cid1")
		fmt.Println(p, err)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const long = 30 * time.Second

// ask asks once and gives the plan's pod.
func ask(ctx context.Context, socket, id string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	c, err := wire.Dial(ctx, socket)
	if err != nil {
		return "", err
	}
	defer c.Close()
	p, err := c.Plan(ctx, request(id), nil)
	if err != nil {
		return "", err
	}
	return p.PodName, nil
}

func request(id string) wire.PlanRequest {
	return wire.PlanRequest{Conf: []byte("{}"), Sandbox: plan.Sandbox{ContainerID: id, IfName: "eth0"}}
}

// echo answers with the container's ID as the pod's name.
func echo(_ context.Context, req wire.Request) wire.Response {
	return wire.Response{Plan: &plan.Plan{PodName: req.Plan.Sandbox.ContainerID}}
}

type rig struct {
	*Server
	t    *testing.T
	logs *logstest.Buffer
	stop func() error // and wait
}

// start runs a server at path until stop, or the test's end.
func start(t *testing.T, path string, handle Handle, edit func(*Server)) *rig {
	t.Helper()
	r := &rig{t: t, logs: &logstest.Buffer{}}
	s, err := New(path, 0o600, handle, slog.New(slog.NewTextHandler(r.logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(s)
	}
	r.Server = s
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(long):
			t.Error("Run does not end")
			return nil
		}
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	return r
}

func socketPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "agent.sock")
}

func (r *rig) asks(id string) {
	r.t.Helper()
	if got, err := ask(r.t.Context(), r.path, id); got != id || err != nil {
		r.t.Errorf("answer %q, %v", got, err)
	}
}

// conn is a bare connection.
func (r *rig) conn() *net.UnixConn {
	r.t.Helper()
	c, err := net.Dial("unix", r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c.(*net.UnixConn)
}

func TestServe(t *testing.T) {
	path := socketPath(t)
	r := start(t, path, echo, nil)
	r.asks("a")
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs0600|os.ModeSocket {
		t.Errorf("%v %v", info, err)
	}
	c, err := wire.Dial(t.Context(), path) // several requests over one connection
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, id := range []string{"b", "c"} {
		if p, err := c.Plan(t.Context(), request(id), nil); err != nil || p.PodName != id {
			t.Errorf("%v %v", p, err)
		}
	}
	if err := r.stop(); err != nil { // an idle connection holds up nothing
		t.Error(err)
	}
	if _, err := c.Plan(t.Context(), request("d"), nil); err == nil {
		t.Error("a server that has ended answers")
	}
	left, err := filepath.Glob(path + "*")
	if err != nil || len(left) != 1 || left[0] != path+".lock" {
		t.Errorf("left are %q, %v", left, err)
	}
}

const fs0600 = os.FileMode(0o600)

// TestAnotherUser: the kernel's word counts, also where the mode lets everybody in.
func TestAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	dir, err := os.MkdirTemp("", "listen") //nolint:usetesting // others must get there, unlike to t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "ask")
	copyProgram(t, program)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r := start(t, filepath.Join(dir, "agent.sock"), echo, func(s *Server) { s.mode = 0o666 })
	as := func(uid uint32) string {
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Env = []string{askEnv + "=" + r.path}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := as(0); got != "cid1 <nil>" {
		t.Errorf("root: %s", got)
	}
	want := "planner at " + r.path + ": answers root and user 0 alone, asked has user 65534"
	if got := as(65534); got != want {
		t.Errorf("another user: %s, want %s", got, want)
	}
	if logs := r.logs.String(); !strings.Contains(logs, "uid=65534") {
		t.Error(logs)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	start(t, r.path, echo, func(s *Server) { s.mode, s.uid = 0o666, 65534 }) // as if it were of that user
	if got := as(65534); got != "cid1 <nil>" {
		t.Errorf("the server's own user: %s", got)
	}
}

func copyProgram(t *testing.T, to string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestCodeOfRefusal is what a refused peer is told on the wire.
func TestCodeOfRefusal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	us, them := pair(t)
	s := &Server{path: "/x", log: slog.New(slog.DiscardHandler)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&session{s: s, conn: us}).refuse("no")
		us.Close()
	}()
	if err := wire.Write(them, wire.Request{Version: 1, Verb: wire.VerbPlan}); err != nil {
		t.Fatal(err)
	}
	var res wire.Response
	if err := wire.Read(them, &res); err != nil || res.Error == nil || res.Error.Code != uint(fault.Config) {
		t.Errorf("%+v %v", res.Error, err)
	}
	them.Close()
	<-done
}

// pair is two ends of a connection.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketPath(t), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); other.Close() })
	return other, c.(*net.UnixConn)
}

// TestGarbage: whatever bytes come, the server goes on.
func TestGarbage(t *testing.T) {
	r := start(t, socketPath(t), echo, nil)
	for name, sent := range map[string]string{
		"nothing": "", "half a header": "\x00\x00", "half a frame": "\x00\x00\x00\x09{", "no JSON": "\x00\x00\x00\x02xx",
		"too large": "\xff\xff\xff\xff", "no verb": "\x00\x00\x00\x02{}", "http": "GET / HTTP/1.1\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := r.conn()
			if _, err := io.WriteString(c, sent); err != nil {
				t.Fatal(err)
			}
			_ = c.CloseWrite()
			_ = c.SetDeadline(time.Now().Add(long))
			if _, err := io.ReadAll(c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Error(err)
			}
			r.asks("a")
		})
	}
}

// TestIdle: who says nothing, and who never finishes, is sent away; who waits for an
// answer, or has said to take longer, is not.
func TestIdle(t *testing.T) {
	r := start(t, socketPath(t), echo, func(s *Server) { s.idle = 200 * time.Millisecond })
	silent, slow := r.conn(), r.conn()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // a byte now and then
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				if _, err := slow.Write([]byte{1}); err != nil {
					return
				}
			}
		}
	})
	patient := r.conn()
	req := request("p")
	if err := wire.Write(patient, wire.Request{Version: 1, Verb: wire.VerbPlan, TimeoutMS: long.Milliseconds(), Plan: &req}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*net.UnixConn{silent, slow} {
		_ = c.SetReadDeadline(time.Now().Add(long))
		if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a connection is not closed")
		}
	}
	close(stop)
	wg.Wait()
	var res wire.Response
	if err := wire.Read(patient, &res); err != nil {
		t.Fatal(err)
	}
	if err := wire.Write(patient, wire.Request{Version: 1, Verb: wire.VerbPlan, Plan: &req}); err != nil {
		t.Fatal(err)
	}
	if err := wire.Read(patient, &res); err != nil || res.Plan == nil {
		t.Errorf("who said to take longer: %+v %v", res, err)
	}
}

// TestSlowReader: who does not take its answer holds up nobody.
func TestSlowReader(t *testing.T) {
	big := strings.Repeat("x", 4<<20)
	r := start(t, socketPath(t), func(ctx context.Context, req wire.Request) wire.Response {
		if req.Plan.Sandbox.ContainerID == "big" {
			return wire.Response{Plan: &plan.Plan{PodName: big}}
		}
		return echo(ctx, req)
	}, func(s *Server) { s.drain = time.Second })
	req, c := request("big"), r.conn()
	if err := wire.Write(c, wire.Request{Version: 1, Verb: wire.VerbPlan, Plan: &req}); err != nil {
		t.Fatal(err)
	}
	r.asks("a")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // the answer is on its way
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

func TestPanic(t *testing.T) {
	r := start(t, socketPath(t), func(ctx context.Context, req wire.Request) wire.Response {
		if req.Plan.Sandbox.ContainerID == "bad" {
			panic("boom")
		}
		return echo(ctx, req)
	}, nil)
	_, err := ask(t.Context(), r.path, "bad")
	if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.Internal || !strings.Contains(f.Text, "boom") {
		t.Errorf("error %v", err)
	}
	r.asks("a")
	if logs := r.logs.String(); !strings.Contains(logs, "request panicked") || !strings.Contains(logs, "TestPanic") {
		t.Error(logs)
	}
}

// TestManyConnections: more than are served at once are all served.
func TestManyConnections(t *testing.T) {
	const all = 600
	var mu sync.Mutex
	under, most := 0, 0
	full := make(chan struct{})
	r := start(t, socketPath(t), func(ctx context.Context, req wire.Request) wire.Response {
		mu.Lock()
		under++
		most = max(most, under)
		if under == maxConnections {
			close(full)
		}
		mu.Unlock()
		<-full
		mu.Lock()
		under--
		mu.Unlock()
		return echo(ctx, req)
	}, nil)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { r.asks(fmt.Sprint(i)) })
	}
	wg.Wait()
	if most != maxConnections {
		t.Errorf("%d at once, want %d", most, maxConnections)
	}
}

// TestDrain: a request under way is answered; one that takes too long sees its context end.
func TestDrain(t *testing.T) {
	for name, patient := range map[string]bool{"in time": true, "too long": false} {
		t.Run(name, func(t *testing.T) {
			arrived, release := make(chan struct{}), make(chan struct{})
			r := start(t, socketPath(t), func(ctx context.Context, req wire.Request) wire.Response {
				close(arrived)
				select {
				case <-release:
					return echo(ctx, req)
				case <-ctx.Done():
					return wire.Response{Error: &wire.Error{Code: 11, Msg: "ends"}}
				}
			}, func(s *Server) {
				if !patient {
					s.drain = 50 * time.Millisecond
				}
			})
			type outcome struct {
				pod string
				err error
			}
			answer := make(chan outcome, 1)
			go func() {
				pod, err := ask(context.Background(), r.path, "a")
				answer <- outcome{pod, err}
			}()
			<-arrived
			stopped := make(chan error, 1)
			go func() { stopped <- r.stop() }()
			if patient {
				if !gone(r.path) {
					t.Error("the socket still takes connections")
				}
				close(release)
			}
			got := <-answer
			if patient && (got.pod != "a" || got.err != nil) || !patient && got.err == nil {
				t.Errorf("answer %+v", got)
			}
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}

// gone waits until nobody listens.
func gone(path string) bool {
	for end := time.Now().Add(long); time.Now().Before(end); {
		c, err := net.Dial("unix", path)
		if err != nil {
			return true
		}
		c.Close()
	}
	return false
}

// TestPassingFaults: running out of descriptors ends nothing.
func TestPassingFaults(t *testing.T) {
	if !passing(&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}) || passing(net.ErrClosed) {
		t.Error("passing faults are told wrongly")
	}
}
