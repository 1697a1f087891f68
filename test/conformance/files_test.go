// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	. "github.com/weftnet/weft/test/conformance"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, r *Rig, target, path string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(r.At(path)), 0o700))
	must(t, os.Symlink(target, r.At(path)))
}

func fifo(t *testing.T, r *Rig, path string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(r.At(path)), 0o700))
	must(t, syscall.Mkfifo(r.At(path), 0o600))
}

// plain is a rig whose pod asks for neta.
func plain(t *testing.T) *Rig {
	t.Helper()
	r := New(t, Manifests)
	withNetworks(r, "neta")
	return r
}

func wantText(t *testing.T, r *Rig, path, want string) {
	t.Helper()
	got, err := os.ReadFile(r.At(path))
	if err != nil || string(got) != want {
		t.Errorf("%s holds %q (%v), want %q", path, got, err, want)
	}
}

// However a NAD has no configuration, its network is the file of its name, also for two NADs of
// that name; and what was attached is deleted when the file is no more.
func TestNADWithoutConfig(t *testing.T) {
	loopback(t)
	for _, mode := range []Mode{Manifests, Kubeconfig} {
		for name, spec := range map[string]string{
			"no spec": "", "null": "null", "nothing in it": "{}", "config null": `{"config":null}`, "config empty": `{"config":""}`,
			"config blank": `{"config":" \n\t"}`,
		} {
			t.Run(string(mode)+", "+name, func(t *testing.T) {
				r := New(t, mode)
				withNetworks(r, "neta, other/neta")
				r.BareNAD("default/neta", spec)
				r.BareNAD("other/neta", spec)
				r.Write("conf/10-other.conf", r.Expand(`{"cniVersion":"1.0.0","name":"nete","type":"pc"}`))
				r.Write("conf/20-list.conflist", r.Expand(`{"cniVersion":"1.0.0","name":"neta","plugins":[{"type":"pb"}]}`))
				wantAdded(t, r.Call("ADD"), ok1, "pb ADD net1", "pb ADD net2")
				must(t, os.RemoveAll(r.At("conf")))
				wantAdded(t, r.Call("DEL"), "pb DEL net2", "pb DEL net1", "pa DEL eth0")
			})
		}
	}
}

// A link in confDir may lead to a file beside it, and to none outside.
func TestLinksInConfDir(t *testing.T) {
	const conf = `{"cniVersion":"1.0.0","name":"neta","type":"pb"}`
	for name, c := range map[string]struct {
		target string
		inside bool
	}{
		"relative, outside":  {"../outside.conf", false},
		"absolute, outside":  {"$DIR/outside.conf", false},
		"to itself":          {"10.conf", false},
		"dangling":           {"gone", false},
		"to a file of /proc": {"/proc/self/environ", false},
		"beside it":          {"kept.txt", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := plain(t)
			r.NAD("default/neta", "", nil)
			r.Write("outside.conf", r.Expand(conf))
			r.Write("conf/kept.txt", r.Expand(conf))
			link(t, r, r.Expand(c.target), "conf/10.conf")
			o := r.Call("ADD")
			if c.inside {
				wantAdded(t, o, ok1, "pb ADD net1")
				return
			}
			wantRefused(t, r, o, 7, "NetworkAttachmentDefinition default/neta", "10.conf")
		})
	}
}

// Whoever can change records can make Weft run anything: a folder of the state directory
// that is a link, another user's, or open to others is refused, on every verb.
func TestStateDirOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, r *Rig)
		word string
	}{
		"open to all": {func(t *testing.T, r *Rig) {
			t.Helper()
			must(t, os.Mkdir(r.At("state"), 0o700))
			must(t, os.Chmod(r.At("state"), 0o777))
		}, "0777"},
		"records open to the group": {func(t *testing.T, r *Rig) {
			t.Helper()
			must(t, os.MkdirAll(r.At("state/attachments"), 0o700))
			must(t, os.Chmod(r.At("state/attachments"), 0o770))
		}, "0770"},
		"another user's": {func(t *testing.T, r *Rig) {
			t.Helper()
			must(t, os.MkdirAll(r.At("state/attachments"), 0o700))
			if err := os.Chown(r.At("state/attachments"), 65534, 65534); err != nil {
				t.Skipf("no other user here: %v", err)
			}
		}, "user 65534"},
		"records are a link": {func(t *testing.T, r *Rig) {
			t.Helper()
			must(t, os.Mkdir(r.At("elsewhere"), 0o700))
			link(t, r, r.At("elsewhere"), "state/attachments")
		}, "attachments"},
		"a file": {func(t *testing.T, r *Rig) {
			t.Helper()
			r.Write("state", "")
		}, "state"},
	} {
		t.Run(name, func(t *testing.T) {
			r := plain(t)
			c.make(t, r)
			for _, verb := range []string{"ADD", "CHECK", "DEL"} {
				o := r.Call(verb)
				if o.Error.Code != 101 || !strings.Contains(o.Error.Msg, c.word) {
					t.Errorf("%s answers code %d %q, want 101 with %q", verb, o.Error.Code, o.Error.Msg, c.word)
				}
				if len(o.Calls) > 0 {
					t.Errorf("%s called %q", verb, o.Names())
				}
			}
			if entries, err := os.ReadDir(r.At("elsewhere")); err == nil && len(entries) > 0 {
				t.Errorf("something was made behind the link: %v", entries)
			}
		})
	}
}

// The state directory itself may be a link: an administrator made it.
func TestStateDirIsALink(t *testing.T) {
	r := plain(t)
	must(t, os.Mkdir(r.At("elsewhere"), 0o700))
	link(t, r, "elsewhere", "state")
	wantAdded(t, r.Call("ADD"), ok1, "pb ADD net1")
	if _, err := os.Stat(r.At("elsewhere/attachments/cid1-eth0.jsonl")); err != nil {
		t.Error(err)
	}
	wantAdded(t, r.Call("DEL"), "pb DEL net1", "pa DEL eth0")
}

// A link in the place of a file of the state directory is not followed.
func TestLinksInStateDir(t *testing.T) {
	const precious = "nobody's business\n"
	for _, path := range []string{"state/lanes/gate", "state/gc.gate"} {
		t.Run(path, func(t *testing.T) {
			r := plain(t)
			r.Write("precious", precious)
			link(t, r, r.At("precious"), path)
			for _, verb := range []string{"ADD", "DEL"} {
				o := r.Call(verb)
				if verb == "ADD" && (o.Error.Code != 101 || len(o.Calls) > 0) {
					t.Errorf("ADD answers code %d and calls %q, want 101 and none\n%s", o.Error.Code, o.Names(), o.Stdout)
				}
			}
			wantText(t, r, "precious", precious)
		})
	}
}

// What is no file and stands in the place of a record goes to quarantine as it is, and is told of; what
// the conf knows is undone, and the call goes on.
func TestNoFileInPlaceOfRecord(t *testing.T) {
	const precious, record = "nobody's business\n", "state/attachments/cid1-eth0.jsonl"
	for name, c := range map[string]struct {
		put  func(r *Rig, path string) error
		mode fs.FileMode
	}{
		"link": {func(r *Rig, path string) error { return os.Symlink(r.At("precious"), path) }, fs.ModeSymlink},
		"FIFO": {func(_ *Rig, path string) error { return syscall.Mkfifo(path, 0o600) }, fs.ModeNamedPipe},
	} {
		t.Run(name, func(t *testing.T) {
			r := plain(t)
			r.Write("precious", precious)
			must(t, os.MkdirAll(filepath.Dir(r.At(record)), 0o700))
			must(t, c.put(r, r.At(record)))
			o := r.Call("ADD")
			if want := []string{"pa DEL eth0", "pa ADD eth0", "pb ADD net1"}; o.Error.Code != 0 || !slices.Equal(o.Names(), want) {
				t.Errorf("ADD answers code %d %q and calls %q, want 0 and %q", o.Error.Code, o.Error.Msg, o.Names(), want)
			}
			if !strings.Contains(o.Stderr, "cid1-eth0") {
				t.Errorf("nobody is told: %s", o.Stderr)
			}
			kept, err := filepath.Glob(r.At("state/quarantine/*cid1-eth0*"))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(kept, func(path string) bool {
				info, err := os.Lstat(path)
				return err == nil && info.Mode().Type() == c.mode
			}) {
				t.Errorf("it is not in quarantine: %q", kept)
			}
			if o := r.Call("DEL"); o.Error.Code != 0 {
				t.Errorf("DEL answers code %d %q", o.Error.Code, o.Error.Msg)
			}
			wantText(t, r, "precious", precious)
		})
	}
}

const withTokenFile = `{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],` +
	`"clusters":[{"name":"a","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"a","user":{"tokenFile":"$DIR/token"}}]}`

// A FIFO waits for a writer who never comes. It is refused where a file is needed, skipped
// where others stand beside it; no call waits.
func TestFIFOs(t *testing.T) {
	t.Run("in confDir", func(t *testing.T) {
		r := plain(t)
		r.NAD("default/neta", "", nil)
		fifo(t, r, "conf/01.conf")
		r.Write("conf/10.conf", r.Expand(`{"cniVersion":"1.0.0","name":"neta","type":"pb"}`))
		o := r.Call("ADD")
		wantAdded(t, o, ok1, "pb ADD net1")
		if !strings.Contains(o.Stderr, "01.conf") {
			t.Errorf("nobody is told: %s", o.Stderr)
		}
	})
	t.Run("among manifests", func(t *testing.T) {
		r := plain(t)
		fifo(t, r, "manifests/00.yaml")
		wantAdded(t, r.Call("ADD"), ok1, "pb ADD net1")
	})
	for name, c := range map[string]struct {
		path, conf string
		code       int
		word       string
	}{
		"cluster network": {"cluster.conflist", `{"clusterNetwork":"$DIR/cluster.conflist"}`, 7, "cluster.conflist"},
		"kubeconfig":      {"kubeconfig", `{"manifests":null,"kubeconfig":"$DIR/kubeconfig"}`, 7, "kubeconfig"},
		"token file":      {"token", `{"manifests":null,"kubeconfig":"$DIR/kube.yaml"}`, 11, "token"},
		"plugin":          {"bin/new", `{"binDir":"$DIR/bin","delegates":[{"cniVersion":"1.0.0","name":"x","type":"new"}]}`, 7, `"new"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := plain(t)
			fifo(t, r, c.path)
			r.Write("kube.yaml", r.Expand(withTokenFile))
			r.Set(c.conf)
			o := r.Call("ADD")
			if o.Error.Code != c.code || !strings.Contains(o.Error.Msg, c.word) || len(o.Calls) > 0 {
				t.Errorf("ADD answers code %d %q and calls %q, want %d with %q", o.Error.Code, o.Error.Msg, o.Names(), c.code, c.word)
			}
		})
	}
	t.Run("checkpoint", func(t *testing.T) {
		r := plain(t)
		r.NAD("default/neta", vf, map[string]string{ResourceAnnotation: "ex.com/vf"})
		r.Set(`{"kubeletDir":"$DIR/kubelet"}`)
		fifo(t, r, checkpoint)
		wantRefused(t, r, r.Call("ADD"), 11, "kubelet_internal_checkpoint")
	})
	t.Run("device info", func(t *testing.T) {
		r := plain(t)
		r.NAD("default/neta", vf, map[string]string{ResourceAnnotation: "ex.com/vf"})
		r.Set(`{"kubeletDir":"$DIR/kubelet"}`)
		r.Write(checkpoint, devicesOf(`{"0":["0000:03:02.0"]}`))
		fifo(t, r, "devinfo/dp/ex.com-vf-0000:03:02.0-device.json")
		wantRefused(t, r, r.Call("ADD"), 7, "ex.com-vf-0000:03:02.0-device.json")
	})
	t.Run("scratch file of Multus", func(t *testing.T) {
		r := New(t, Manifests)
		fifo(t, r, "multus/cid1")
		wantAdded(t, r.Call("DEL"), "pa DEL eth0")
	})
	t.Run("logFile", func(t *testing.T) {
		r := plain(t)
		fifo(t, r, "log")
		r.Set(`{"logFile":"$DIR/log"}`)
		o := r.Call("ADD")
		wantAdded(t, o, ok1, "pb ADD net1")
		if !strings.Contains(o.Stderr, "logFile") {
			t.Errorf("nobody is told: %s", o.Stderr)
		}
	})
	t.Run("readiness file", func(t *testing.T) {
		r := plain(t)
		fifo(t, r, "ready")
		r.Set(`{"readinessindicatorfile":"$DIR/ready"}`)
		wantAdded(t, r.Call("ADD"), ok1, "pb ADD net1")
	})
}

// The files that Weft makes are for its own user alone, whatever the umask.
func TestModesOfWhatIsMade(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	r := plain(t)
	r.Set(`{"logFile":"$DIR/log"}`)
	wantAdded(t, r.Call("ADD"), ok1, "pb ADD net1")
	for path, want := range map[string]os.FileMode{
		"state": 0o700, "state/attachments": 0o700, "state/lanes": 0o700, "state/attachments/cid1-eth0.jsonl": 0o600,
	} {
		info, err := os.Stat(r.At(path))
		must(t, err)
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %04o, want %04o", path, info.Mode().Perm(), want)
		}
	}
}
