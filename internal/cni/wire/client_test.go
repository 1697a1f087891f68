// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/plan"
)

// listen runs peer on the first connection to a socket, and returns the socket's
// path. Without a peer nobody accepts: the connection is there, and deaf.
func listen(t *testing.T, peer func(net.Conn)) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if peer == nil {
		t.Cleanup(func() { l.Close() })
		return socket
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		peer(conn)
	}()
	return socket
}

func dial(t *testing.T, peer func(net.Conn)) *Client {
	t.Helper()
	c, err := Dial(t.Context(), listen(t, peer))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

var testRequest = PlanRequest{
	Conf:    []byte(`{"name":"m"}`),
	Sandbox: plan.Sandbox{ContainerID: "cid1", IfName: "eth0", Netns: "/run/netns/x"},
}

// noFile fails the test when a file is asked for.
func noFile(t *testing.T) func(plan.Need) plan.File {
	t.Helper()
	return func(n plan.Need) plan.File {
		t.Errorf("asked for %s", n)
		return plan.File{}
	}
}

func TestPlanWithNeeds(t *testing.T) {
	var seen []Request
	c := dial(t, func(conn net.Conn) {
		_ = Serve(conn, conn, func(req Request) Response {
			seen = append(seen, req)
			switch len(req.Plan.Files) {
			case 0:
				return Response{Need: []plan.Need{"confDir/a", "path//etc/b"}}
			case 2:
				return Response{Need: []plan.Need{"chain/c"}}
			}
			return Response{Plan: &plan.Plan{PodName: "web"}}
		})
	})
	var read []plan.Need
	p, err := c.Plan(t.Context(), testRequest, func(n plan.Need) plan.File {
		read = append(read, n)
		return plan.File{Found: true, Data: []byte("bytes of " + n)}
	})
	if err != nil || p.PodName != "web" {
		t.Fatalf("plan %+v, %v", p, err)
	}
	if want := []plan.Need{"confDir/a", "path//etc/b", "chain/c"}; !slices.Equal(read, want) {
		t.Errorf("read %q, want %q", read, want)
	}
	c.Close()
	if len(seen) != 3 {
		t.Fatalf("%d requests, want 3", len(seen))
	}
	for i, want := range []string{"cid1-eth0/0", "cid1-eth0/1", "cid1-eth0/2"} {
		if r := seen[i]; r.RequestID != want || r.Version != 1 || r.Verb != "plan" || string(r.Plan.Conf) != `{"name":"m"}` || r.Plan.Sandbox != testRequest.Sandbox {
			t.Errorf("request %d is %+v", i, r)
		}
	}
	last := seen[2].Plan.Files
	if len(last) != 3 || last[2].Need != "chain/c" || string(last[2].Data) != "bytes of chain/c" || string(last[0].Data) != "bytes of confDir/a" {
		t.Errorf("last request brings %+v", last)
	}
	if len(testRequest.Files) != 0 {
		t.Error("the caller's request was changed")
	}
}

// TestMeanwhile: it is done once, when the request is there and before the answer is.
func TestMeanwhile(t *testing.T) {
	done := make(chan int, 2)
	c := dial(t, func(conn net.Conn) {
		for range 2 {
			var req Request
			if Read(conn, &req) != nil {
				return
			}
			if req.RequestID != requestID(testRequest.Sandbox, "0") {
				t.Errorf("request %q", req.RequestID)
			}
			if len(done) == 0 {
				done <- <-done // waits until it is done
			}
			_ = Write(conn, Response{Version: Version, RequestID: req.RequestID, Plan: &plan.Plan{}})
		}
	})
	calls := 0
	c.Meanwhile = func() { calls++; done <- calls }
	for range 2 {
		if _, err := c.Plan(t.Context(), testRequest, noFile(t)); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 1 {
		t.Errorf("done %d times", calls)
	}
}

// TestPlanFaults has a peer for each way in which an answer can be wrong.
func TestPlanFaults(t *testing.T) {
	const id = `"requestID":"cid1-eth0/0"`
	reply := func(out string) func(net.Conn) {
		return func(conn net.Conn) {
			var req Request
			if Read(conn, &req) == nil {
				_, _ = io.WriteString(conn, out)
			}
		}
	}
	for name, c := range map[string]struct {
		peer func(net.Conn)
		code fault.Code
		text string // after the planner's name; a leading "=" is the whole text
	}{
		"planner's own error": {
			reply(frames(`{"version":1,` + id + `,"error":{"code":7,"msg":"pod a: bad","details":"more"}}`)),
			7, "=pod a: bad; more",
		},
		"error without code and text": {
			reply(frames(`{"version":1,` + id + `,"error":{}}`)), 100, " gives an error without a text",
		},
		"error to a request that it could not read": {
			reply(frames(`{"version":1,"requestID":"","error":{"code":100,"msg":"what?"}}`)), 100, "=what?",
		},
		"error of a planner that is too new": {
			reply(frames(`{"version":9,` + id + `,"error":{"code":11,"msg":"I know versions 8, 9"}}`)), 11, "=I know versions 8, 9",
		},
		"plan of another version": {
			reply(frames(`{"version":9,` + id + `,"plan":{}}`)), 11, ": answers in protocol version 9, known are versions 1",
		},
		"wrong request ID": {
			reply(frames(`{"version":1,"requestID":"other","plan":{}}`)), 100, `: answers request "other", asked was "cid1-eth0/0"`,
		},
		"plan without a request ID": {
			reply(frames(`{"version":1,"plan":{}}`)), 100, `: answers request "", asked was "cid1-eth0/0"`,
		},
		"nothing in it": {
			reply(frames(`{"version":1,` + id + `}`)), 100, ": answers with other than one of plan, need and error",
		},
		"plan and need": {
			reply(frames(`{"version":1,` + id + `,"plan":{},"need":["confDir/a"]}`)), 100, ": answers with other than one of plan, need and error",
		},
		"plan and error": {
			reply(frames(`{"version":1,` + id + `,"plan":{},"error":{"code":7,"msg":"x"}}`)), 100, ": answers with other than one of plan, need and error",
		},
		"garbage": {
			reply(frames(`<html>`)), 100,
			": answers nonsense: decode message: message is not of the planner protocol: invalid character '<' looking for beginning of value",
		},
		"oversized length": {
			reply("HTTP/1.1 400 Bad Request\r\n"), 100, ": answers nonsense: receive message of 1213486160 bytes: message is larger than 32 MiB",
		},
		"gone inside the message": {reply("\x00\x00\x00\x09{\"ver"), 11, ": hangs up without an answer"},
		"gone inside the header":  {reply("\x00\x00"), 11, ": hangs up without an answer"},
		"gone after the request":  {reply(""), 11, ": hangs up without an answer"},
		"asks twice for one file": {
			reply(frames(`{"version":1,` + id + `,"need":["confDir/a","confDir/a"]}`)), 100, `: asks for "confDir/a" again`,
		},
		"never has enough": {
			func(conn net.Conn) {
				_ = Serve(conn, conn, func(r Request) Response { return Response{Need: []plan.Need{plan.Need(r.RequestID)}} })
			}, 100, ": still asks for files after 8 rounds",
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := dial(t, c.peer)
			p, err := client.Plan(t.Context(), testRequest, func(plan.Need) plan.File { return plan.File{} })
			f, ok := errors.AsType[*fault.Fault](err)
			if !ok || p != nil {
				t.Fatalf("plan %+v, error %v; want a fault", p, err)
			}
			want, whole := strings.CutPrefix(c.text, "=")
			if !whole {
				want = client.name + want
			}
			if f.Code != c.code || f.Error() != want {
				t.Errorf("code %d %q\nwant %d %q", f.Code, f.Error(), c.code, want)
			}
		})
	}
}

func TestPlanHoldsItsDeadline(t *testing.T) {
	silent := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	trickle := func(conn net.Conn) { // a byte now and then keeps nobody waiting either
		for {
			if _, err := io.WriteString(conn, "\x00"); err != nil {
				return
			}
			var one [1]byte
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
			if _, err := conn.Read(one[:]); errors.Is(err, io.EOF) {
				return
			}
		}
	}
	big := testRequest
	big.Conf = make([]byte, 1<<20)
	for name, c := range map[string]struct {
		peer func(net.Conn)
		req  PlanRequest
	}{"silent": {silent, testRequest}, "trickling header": {trickle, testRequest}, "deaf": {nil, big}} {
		for _, how := range []string{"deadline", "cancel"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				client := dial(t, c.peer)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				if how == "cancel" {
					cancel()
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(50*time.Millisecond, cancel)
				}
				defer cancel()
				start := time.Now()
				_, err := client.Plan(ctx, c.req, noFile(t))
				f, ok := errors.AsType[*fault.Fault](err)
				if name == "trickling header" && ok && f.Code == fault.Internal {
					return // four zero bytes are an empty frame: told as nonsense before the deadline
				}
				if !ok || f.Code != fault.TryLater || !strings.HasSuffix(f.Error(), ": gives no answer in time") {
					t.Errorf("error %v", err)
				}
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("took %v", took)
				}
			})
		}
	}
	t.Run("already past", func(t *testing.T) {
		client := dial(t, silent)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := client.Plan(ctx, testRequest, noFile(t))
		if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.TryLater || !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

func TestPlanRefusesWhatCannotBeSent(t *testing.T) {
	client := dial(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	req := testRequest
	req.Conf = make([]byte, MaxMessage/4*3) // base64 makes four of three
	_, err := client.Plan(t.Context(), req, noFile(t))
	if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.Config || !errors.Is(err, ErrTooLarge) {
		t.Errorf("error %v, want code 7", err)
	}
}

func TestDialFaults(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for name, c := range map[string]struct {
		socket string
		cause  error
	}{
		"no socket":      {filepath.Join(dir, "none.sock"), syscall.ENOENT},
		"nobody listens": {dead, syscall.ECONNREFUSED},
		"name too long":  {"/" + strings.Repeat("a", 200), syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Dial(t.Context(), c.socket)
			f, ok := errors.AsType[*fault.Fault](err)
			if !ok || f.Code != fault.TryLater || f.Error() != "planner at "+c.socket+": connect: "+c.cause.Error() || !errors.Is(err, c.cause) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestDialWaitsForABusyPeer fills the backlog of a listener that accepts nobody.
func TestDialWaitsForABusyPeer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "busy.sock")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: socket}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	first, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if c, err := Dial(ctx, socket); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("second dial: %v, %v; want to wait until the deadline", c, err)
	}
	// A place becomes free while the third waits.
	time.AfterFunc(20*time.Millisecond, func() {
		if conn, _, err := syscall.Accept(fd); err == nil {
			syscall.Close(conn)
		}
	})
	third, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatalf("third dial: %v", err)
	}
	third.Close()
}
