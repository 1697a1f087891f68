// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package confpub_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/weftnet/weft/internal/cni/confpub"
	"github.com/weftnet/weft/internal/host/kernel/kerneltest"
)

const (
	confA = `{"cniVersion":"0.3.1","name":"a","plugins":[{"type":"pa","mtu":1450.0}]}`
	confB = `{"cniVersion":"0.4.0","name":"b","type":"pb"}`
)

// node is a runtime's directory, and a Publisher whose time the test makes.
type node struct {
	*testing.T
	dir  string
	opts confpub.Options
	log  bytes.Buffer
	pub  *confpub.Publisher
	now  time.Time
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{T: t, dir: filepath.Join(t.TempDir(), "net.d"), now: time.Unix(1000, 0)}
	if err := os.Mkdir(n.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.opts = confpub.Options{ConfDir: n.dir, ConfName: "00-weft.conflist", AgentSocket: "/run/weft/agent.sock"}
	n.start()
	return n
}

// start is a start of the agent.
func (n *node) start() {
	n.Helper()
	pub, err := confpub.New(n.opts, slog.New(slog.NewTextHandler(&n.log, nil)))
	if err != nil {
		n.Fatal(err)
	}
	n.pub = pub
}

func (n *node) at(name string) string { return filepath.Join(n.dir, name) }

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) write(name, text string) {
	n.Helper()
	n.must(os.WriteFile(n.at(name), []byte(text), 0o644))
}

// pass lets so much time go by and looks.
func (n *node) pass(after time.Duration) confpub.Status {
	n.Helper()
	n.now = n.now.Add(after)
	if next := n.pub.Pass(n.now); next <= 0 {
		n.Fatalf("the next look is in %v", next)
	}
	return n.pub.Status()
}

// own is what the runtime reads; it must be whole.
func (n *node) own() confpub.Published {
	n.Helper()
	b, err := os.ReadFile(n.at("00-weft.conflist"))
	if err != nil {
		n.Fatal(err)
	}
	if _, err := libcni.ConfListFromBytes(b); err != nil {
		n.Fatalf("libcni refuses %q: %v", b, err)
	}
	p, err := confpub.Read(b)
	if err != nil {
		n.Fatal(err)
	}
	return p
}

// want checks the published conf and the status after it.
func (n *node) want(st confpub.Status, file, primary string, primaryErr error) {
	n.Helper()
	p := n.own()
	if string(p.Primary) != primary || p.PrimaryConf != n.at(file) {
		n.Errorf("published %q of %s, want %q of %s", p.Primary, p.PrimaryConf, primary, file)
	}
	if !st.Published || st.Err != nil || !errors.Is(st.PrimaryErr, primaryErr) || primaryErr == nil && st.PrimaryErr != nil {
		n.Errorf("status %+v, want primary fault %v", st, primaryErr)
	}
}

func (n *node) absent() {
	n.Helper()
	if _, err := os.Lstat(n.at("00-weft.conflist")); !errors.Is(err, os.ErrNotExist) {
		n.Fatalf("published: %v", err)
	}
}

func TestNothingBeforeAllow(t *testing.T) {
	n := newNode(t)
	n.write("10-a.conflist", confA)
	if st := n.pass(0); st.Published || st.PrimaryErr != nil || st.Err != nil || st.Primary != n.at("10-a.conflist") {
		t.Errorf("status %+v", st)
	}
	n.absent()
	n.pub.Allow()
	n.want(n.pass(time.Second), "10-a.conflist", confA, nil)
	info, err := os.Stat(n.at("00-weft.conflist"))
	n.must(err)
	if info.Mode() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if !strings.Contains(n.log.String(), "published the cni conf") {
		t.Errorf("log:\n%s", &n.log)
	}
}

// B64 and B65: the last good one goes on while the file is being written, broken or gone.
func TestPrimaryChanges(t *testing.T) {
	n := newNode(t)
	n.pub.Allow()
	st := n.pass(0)
	if !errors.Is(st.PrimaryErr, confpub.ErrNone) || st.Published {
		t.Errorf("status of an empty directory: %+v", st)
	}
	n.absent()
	n.write("10-a.conflist", confA)
	n.write("87-podman.conflist", confB)
	n.want(n.pass(time.Second), "10-a.conflist", confA, nil)
	for _, broken := range []string{"", confA[:20], `{}`, `{"name":"a","plugins":[]}`, "\x00"} {
		n.write("10-a.conflist", broken)
		n.want(n.pass(time.Hour), "10-a.conflist", confA, confpub.ErrBroken)
	}
	n.write("10-a.conflist", `{"cniVersion":"0.3.1","name":"a","plugins":[{"type":"pa"},{"type":"weft-cni"}]}`)
	n.want(n.pass(time.Hour), "10-a.conflist", confA, confpub.ErrNested)
	const changed = `{"cniVersion":"0.3.1","name":"a","plugins":[{"type":"pa"},{"type":"portmap","capabilities":{"portMappings":true}}]}`
	n.write("10-a.conflist", changed)
	n.want(n.pass(time.Second), "10-a.conflist", changed, nil)
	n.must(os.Remove(n.at("87-podman.conflist")))
	n.must(os.Remove(n.at("10-a.conflist")))
	n.want(n.pass(time.Hour), "10-a.conflist", changed, confpub.ErrGone)
	n.write("10-a.conflist", confA)
	n.want(n.pass(time.Second), "10-a.conflist", confA, nil)
}

// Another file becomes the primary at once when it sorts first, and only after a while
// when the primary is gone or an earlier one is broken: it may be being written.
func TestAnotherPrimary(t *testing.T) {
	n := newNode(t)
	n.pub.Allow()
	n.write("10-a.conflist", confA[:10])
	n.write("20-b.conf", confB)
	if st := n.pass(0); st.Published || st.PrimaryErr == nil {
		t.Errorf("status %+v", st)
	}
	n.absent()
	n.write("10-a.conflist", confA)
	n.want(n.pass(time.Second), "10-a.conflist", confA, nil)

	n.write("05-b.conf", confB)
	n.want(n.pass(time.Second), "05-b.conf", confB, nil)
	if !strings.Contains(n.log.String(), "primary="+n.at("05-b.conf")+" before="+n.at("10-a.conflist")+" others=2") {
		t.Errorf("log:\n%s", &n.log)
	}
	n.must(os.Rename(n.at("05-b.conf"), n.at("05-b.conf.bak")))
	n.want(n.pass(time.Second), "05-b.conf", confB, confpub.ErrGone)
	n.want(n.pass(time.Second), "05-b.conf", confB, confpub.ErrGone)
	n.must(os.Rename(n.at("05-b.conf.bak"), n.at("05-b.conf"))) // back within the while
	n.want(n.pass(time.Minute), "05-b.conf", confB, nil)
	n.must(os.Remove(n.at("05-b.conf")))
	n.want(n.pass(time.Second), "05-b.conf", confB, confpub.ErrGone)
	n.want(n.pass(time.Minute), "10-a.conflist", confA, nil)
}

// One that comes and goes keeps none that stays from becoming the primary in the place of one
// that is gone, and says the same over and over only once in a while.
func TestPrimaryThatFlaps(t *testing.T) {
	n := newNode(t)
	n.pub.Allow()
	n.write("05-x.conflist", confA)
	n.pass(0)
	n.must(os.Remove(n.at("05-x.conflist")))
	n.write("20-b.conflist", confB)
	const confC = `{"cniVersion":"0.4.0","name":"c","type":"pc"}`
	flap := func(i int) {
		if i%2 == 0 {
			n.write("10-a.conflist", confC)
		} else {
			n.must(os.Remove(n.at("10-a.conflist")))
		}
		n.pass(250 * time.Millisecond)
	}
	for i := range 12 { // 3 s
		flap(i)
		if p := n.own(); p.PrimaryConf != n.at("05-x.conflist") {
			t.Fatalf("%s after %d looks", p.PrimaryConf, i+1)
		}
	}
	for i := range 4 {
		flap(i)
	}
	if p := n.own(); p.PrimaryConf == n.at("05-x.conflist") {
		t.Errorf("%s after 4 s", p.PrimaryConf)
	}
	// What sorts first is the primary again, and its coming and going is no other choice.
	for i := range 472 { // 2 minutes all in all
		flap(i)
	}
	n.want(n.pub.Status(), "10-a.conflist", confC, confpub.ErrGone)
	for what, most := range map[string]int{"chose the primary conf": 3, "has a fault": 6, "is over": 6} {
		if got := strings.Count(n.log.String(), what); got == 0 && most > 3 || got > most {
			t.Errorf("%d times %q", got, what)
		}
	}
	// What was not told while it was new is told when it lasts.
	n.log.Reset()
	n.pass(2 * time.Second)
	n.write("10-a.conflist", confC)
	n.pass(time.Second)
	n.must(os.Remove(n.at("20-b.conflist")))
	n.must(os.Remove(n.at("10-a.conflist")))
	for range 12 {
		n.pass(10 * time.Second)
	}
	if got := n.log.String(); !strings.Contains(got, "has a fault") {
		t.Errorf("a fault that lasts is not told: %s", got)
	}
}

// Another tool takes the published file away, renames it, empties it, changes its mode, or
// puts something else there.
func TestRestore(t *testing.T) {
	n := newNode(t)
	n.pub.Allow()
	n.write("10-a.conflist", confA)
	own := n.at("00-weft.conflist")
	n.pass(0)
	hurt := []func() error{
		func() error { return os.Remove(own) },
		func() error { return os.Rename(own, own+".cilium_bak") },
		func() error { return os.Truncate(own, 0) },
		func() error { return os.WriteFile(own, []byte(confB), 0o644) },
		func() error { return os.Chmod(own, 0o644) },
		func() error { return errors.Join(os.Remove(own), os.Symlink(n.at("10-a.conflist"), own)) },
		func() error { return errors.Join(os.Remove(own), syscall.Mkfifo(own, 0o600)) },
	}
	for i, f := range hurt {
		n.must(f())
		st := n.pass(time.Hour)
		n.want(st, "10-a.conflist", confA, nil)
		if st.Restored != uint64(i+1) {
			t.Errorf("restored %d times, want %d", st.Restored, i+1)
		}
	}
	if got := strings.Count(n.log.String(), "restored the cni conf"); got != len(hurt) {
		t.Errorf("%d restorings in the log", got)
	}
	// One that keeps on is fought ever more rarely.
	looks := 0
	for range 1000 {
		n.must(os.WriteFile(own, []byte(confB), 0o600))
		before := n.pub.Status().Restored
		if st := n.pass(100 * time.Millisecond); st.Restored > before {
			looks++
		} else if st.Err == nil || st.Published {
			t.Fatalf("status of a conf that another tool holds: %+v", st)
		}
	}
	if looks < 5 || looks > 20 {
		t.Errorf("restored %d times in 100 s", looks)
	}
}

// What Weft or Multus published is not the primary under any name; a file that the runtime
// takes before the published one is told.
func TestOwnOutput(t *testing.T) {
	n := newNode(t)
	n.pub.Allow()
	n.write("10-a.conflist", confA)
	n.pass(0)
	b, err := os.ReadFile(n.at("00-weft.conflist"))
	n.must(err)
	n.write("05-x.conflist", string(b))
	n.write("06-multus.conf", `{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus","delegates":[`+confA+`]}`)
	n.want(n.pass(time.Minute), "10-a.conflist", confA, nil)
	n.must(os.Remove(n.at("10-a.conflist")))
	n.want(n.pass(time.Minute), "10-a.conflist", confA, confpub.ErrGone)
	n.write("10-a.conflist", confA)
	n.must(os.Rename(n.at("06-multus.conf"), n.at("00-multus.conf")))
	st := n.pass(time.Minute)
	if !st.Published || st.PrimaryErr != nil || st.Err == nil || !strings.Contains(st.Err.Error(), "00-multus.conf") {
		t.Errorf("status %+v", st)
	}
	if p := n.own(); string(p.Primary) != confA {
		t.Errorf("primary %q", p.Primary)
	}
}

// Equal bytes are not written.
func TestUntouched(t *testing.T) {
	n := newNode(t)
	n.pub.Allow()
	n.write("10-a.conflist", confA)
	n.pass(0)
	before, err := os.Stat(n.at("00-weft.conflist"))
	n.must(err)
	same := func() {
		t.Helper()
		after, err := os.Stat(n.at("00-weft.conflist"))
		n.must(err)
		if !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
			t.Error("written again")
		}
	}
	n.write("10-a.conflist", confA+"\n")
	n.pass(time.Minute)
	same()
	n.start()
	n.pass(time.Minute)
	n.pub.Allow()
	if st := n.pass(time.Minute); !st.Published || st.Restored != 0 {
		t.Errorf("status %+v", st)
	}
	same()
}

// The published conf outlives the agent: nothing takes it away, and what is in it is the
// last good primary.
func TestRestart(t *testing.T) {
	n := newNode(t)
	n.pub.Allow()
	n.write("10-a.conflist", confA)
	n.pass(0)
	n.must(os.Remove(n.at("10-a.conflist")))
	n.write("20-b.conf", confB[:10])
	n.start()
	n.want(n.pass(time.Minute), "10-a.conflist", confA, confpub.ErrGone)
	// Not allowed, it is put back all the same, and not changed.
	n.must(os.Rename(n.at("00-weft.conflist"), n.at("00-weft.conflist.cilium_bak")))
	n.want(n.pass(time.Minute), "10-a.conflist", confA, confpub.ErrGone)
	n.write("10-a.conflist", confB)
	if n.want(n.pass(time.Minute), "10-a.conflist", confA, nil); n.pub.Status().Restored != 1 {
		t.Errorf("status %+v", n.pub.Status())
	}
	n.must(os.Remove(n.at("10-a.conflist")))
	// New options, with nothing but the old primary.
	n.opts.Extra = map[string]json.RawMessage{"namespaceIsolation": json.RawMessage("true")}
	n.start()
	n.pub.Allow()
	n.want(n.pass(time.Minute), "10-a.conflist", confA, confpub.ErrGone)
	b, err := os.ReadFile(n.at("00-weft.conflist"))
	n.must(err)
	if !bytes.Contains(b, []byte(`"namespaceIsolation": true`)) {
		t.Errorf("published %s", b)
	}
	// A torn one, of a version that wrote it badly, is no last good one.
	n.write("00-weft.conflist", string(b[:len(b)/2]))
	n.start()
	if st := n.pass(time.Minute); st.Published {
		t.Errorf("status of a torn conf: %+v", st)
	}
	n.write("10-a.conflist", confA)
	n.pub.Allow()
	n.want(n.pass(time.Minute), "10-a.conflist", confA, nil)
}

// A primary that is named is the only one.
func TestNamedPrimary(t *testing.T) {
	n := newNode(t)
	elsewhere := filepath.Join(t.TempDir(), "cni.conf")
	n.opts.PrimaryConf = elsewhere
	n.start()
	n.pub.Allow()
	n.write("10-a.conflist", confA)
	if st := n.pass(0); !errors.Is(st.PrimaryErr, confpub.ErrGone) || st.Published {
		t.Errorf("status %+v", st)
	}
	n.must(os.WriteFile(elsewhere, []byte(`{"name":"weft","type":"x"}`), 0o600))
	if st := n.pass(time.Hour); st.PrimaryErr == nil || st.Published {
		t.Errorf("status %+v", st)
	}
	n.must(os.WriteFile(elsewhere, []byte(confB), 0o600))
	if st := n.pass(time.Second); !st.Published || st.Primary != elsewhere || string(n.own().Primary) != confB {
		t.Errorf("status %+v", st)
	}
}

// The directory may come later, go, and come again; a link and a directory among the confs
// are what they are to the runtime.
func TestDirectory(t *testing.T) {
	n := newNode(t)
	n.must(os.Remove(n.dir))
	n.pub.Allow()
	if st := n.pass(0); !errors.Is(st.PrimaryErr, os.ErrNotExist) || st.Published {
		t.Errorf("status %+v", st)
	}
	n.must(os.Mkdir(n.dir, 0o755))
	n.must(os.Mkdir(n.at("05-dir.conf"), 0o755))
	n.must(os.Mkdir(n.at("a"), 0o755))
	n.write("a/10-chained.conf", `{"type":"pc"}`)
	n.must(os.Symlink(n.at("real"), n.at("10-a.conflist")))
	n.write("real", confA)
	const chained = `{"cniVersion":"0.3.1","name":"a","plugins":[{"type":"pa","mtu":1450.0},{"type":"pc"}]}`
	n.want(n.pass(time.Minute), "10-a.conflist", chained, nil)
	n.must(os.RemoveAll(n.dir))
	if st := n.pass(time.Minute); st.Published || st.Err == nil || !errors.Is(st.PrimaryErr, os.ErrNotExist) {
		t.Errorf("status %+v", st)
	}
	n.must(os.Mkdir(n.dir, 0o755))
	n.want(n.pass(time.Hour), "10-a.conflist", chained, confpub.ErrGone)
}

// A full disk is a fault that is over when there is room again.
func TestFullDisk(t *testing.T) {
	kerneltest.Need(t)
	n := newNode(t)
	n.must(syscall.Mount("tmpfs", n.dir, "tmpfs", 0, "size=64k,mode=0755"))
	t.Cleanup(func() { _ = syscall.Unmount(n.dir, syscall.MNT_DETACH) })
	n.pub.Allow()
	n.write("10-a.conflist", confA)
	fill := func() {
		t.Helper()
		err := os.WriteFile(n.at("filler"), make([]byte, 1<<20), 0o600)
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("fill: %v", err)
		}
	}
	fill()
	st := n.pass(0)
	if st.Published || !errors.Is(st.Err, syscall.ENOSPC) {
		t.Errorf("status %+v", st)
	}
	n.absent()
	n.must(os.Remove(n.at("filler")))
	n.want(n.pass(time.Second), "10-a.conflist", confA, nil)
	n.write("10-a.conflist", confB)
	fill()
	st = n.pass(time.Second)
	if p := n.own(); !errors.Is(st.Err, syscall.ENOSPC) || !st.Published || string(p.Primary) != confA {
		t.Errorf("status %+v, primary %q", st, p.Primary)
	}
	n.must(os.Remove(n.at("filler")))
	n.want(n.pass(time.Second), "10-a.conflist", confB, nil)
	names, err := filepath.Glob(n.at(".*"))
	if n.must(err); len(names) > 0 {
		t.Errorf("left %v", names)
	}
}

// A write that fails is tried again after a pause, however often the directory's own events,
// those of the failed write's temporary file among them, have the disk looked at.
func TestPauseAfterAFailedWrite(t *testing.T) {
	n := newNode(t)
	n.write("10-a.conflist", confA)
	n.must(os.Mkdir(n.at("00-weft.conflist"), 0o755)) // no file can be renamed to it
	n.pub.Allow()
	long := time.Unix(1, 0)
	tries := 0
	for range 40 { // 10 s
		n.must(os.Chtimes(n.dir, long, long))
		if st := n.pass(250 * time.Millisecond); st.Err == nil || st.Published {
			t.Fatalf("status %+v", st)
		}
		info, err := os.Stat(n.dir)
		if n.must(err); !info.ModTime().Equal(long) {
			tries++
		}
	}
	if tries != 10 {
		t.Errorf("%d tries in 10 s", tries)
	}
	if lines := strings.Count(n.log.String(), "has a fault"); lines != 1 {
		t.Errorf("told %d times: %s", lines, &n.log)
	}
	n.must(os.Remove(n.at("00-weft.conflist")))
	n.want(n.pass(time.Second), "10-a.conflist", confA, nil)
	// What failed once is no reason to wait for anything later.
	n.write("10-a.conflist", confB)
	n.want(n.pass(0), "10-a.conflist", confB, nil)
}

// Who wants to know is told of every change, and of nothing else.
func TestNotify(t *testing.T) {
	n := newNode(t)
	told := 0
	n.pub.Notify(func() { told++; n.pub.Status() })
	for i, step := range []struct {
		do   func()
		told int
	}{
		{func() {}, 1}, // nothing there
		{func() {}, 1},
		{func() { n.write("10-a.conflist", confA) }, 2},
		{n.pub.Allow, 3},
		{func() {}, 3},
		{func() { n.write("10-a.conflist", "") }, 4},
		{func() { n.must(os.Remove(n.at("00-weft.conflist"))) }, 5},
	} {
		step.do()
		n.pass(time.Minute)
		if told != step.told {
			t.Errorf("step %d: told %d times, want %d", i, told, step.told)
		}
	}
	published, primary, fault := n.pub.State()
	if !published || primary != n.at("10-a.conflist") || !errors.Is(fault, confpub.ErrBroken) {
		t.Errorf("state %v %s %v", published, primary, fault)
	}
}
