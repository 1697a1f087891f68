// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package podcache_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/vmistatus"
	"github.com/weftnet/weft/vmistatus/podcache"
)

// TestRoundTrip is the table 2.5.
func TestRoundTrip(t *testing.T) {
	c := podcache.New(t.TempDir())
	missing := func(when string) {
		t.Helper()
		if _, err := c.Read("uid", "red"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", when, err)
		}
	}
	missing("nothing there")
	want := vmistatus.PodRead{PodIP: "10.0.0.1", PodIPs: []string{"10.0.0.1", "fd10::1"}}
	if err := c.Write("uid", "red", want); err != nil {
		t.Fatal(err)
	}
	got, err := c.Read("uid", "red")
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for range 2 {
		if err := c.Remove("uid", "red"); err != nil {
			t.Error(err)
		}
	}
	missing("removed")
	c = podcache.New(filepath.Join(t.TempDir(), "later"))
	missing("no root")
}

// TestOutcomes are the three of a read, on what may lie there.
func TestOutcomes(t *testing.T) {
	for _, r := range []struct {
		name, text string
		want       vmistatus.PodRead
		err        string
	}{
		{name: "KubeVirt's", text: `{"iface": {"name": "red", "bridge": {}}, "podIP": "10.0.0.1", "podIPs": ["10.0.0.1"], "networkState": 2}`, want: vmistatus.PodRead{PodIP: "10.0.0.1", PodIPs: []string{"10.0.0.1"}}},
		{name: "no address", text: `{"networkState": 1}`},
		{name: "torn", text: "{", err: "unexpected end"},
		{name: "empty", text: "", err: "unexpected end"},
		{name: "null", text: "null", err: "it is null"},
		{name: "a wrong type", text: `{"podIP": 5}`, err: "cannot unmarshal number"},
		{name: "two values", text: `{}{}`, err: "after top-level value"},
		{name: "huge", text: strings.Repeat(" ", 300<<10) + "{}", err: "more than"},
		{name: "deep", text: strings.Repeat("[", 200<<10), err: "exceeded max depth"},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "uid"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "uid", "red"), []byte(r.text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := podcache.New(root).Read("uid", "red")
		if diff := cmp.Diff(r.want, got); diff != "" || (err == nil) != (r.err == "") || err != nil && !strings.Contains(err.Error(), r.err) {
			t.Errorf("%s: error %v\n%s", r.name, err, diff)
		}
		if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: it is told as no file", r.name)
		}
	}
}

// TestNothingLeadsOut plants what would lead a read elsewhere, or make it wait.
func TestNothingLeadsOut(t *testing.T) {
	top := t.TempDir()
	secret := filepath.Join(top, "secret")
	root := filepath.Join(top, "root")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(secret, []byte(`{"podIP": "10.6.6.6"}`), 0o644))
	must(os.MkdirAll(filepath.Join(root, "uid", "folder"), 0o755))
	must(os.Symlink("../../secret", filepath.Join(root, "uid", "link")))
	must(os.Symlink(secret, filepath.Join(root, "uid", "absolute")))
	must(os.Symlink("..", filepath.Join(root, "up")))
	must(unix.Mkfifo(filepath.Join(root, "uid", "pipe"), 0o644))
	c := podcache.New(root)
	for _, at := range [][2]string{
		{"uid", "link"},
		{"uid", "absolute"},
		{"uid", "pipe"},
		{"uid", "folder"},
		{"up", "secret"},
		{"..", "secret"},
		{"uid", "../../secret"},
		{"", "secret"},
		{"uid", ""},
		{"uid", "."},
		{"uid", "a\x00b"},
	} {
		got, err := c.Read(types.UID(at[0]), at[1])
		if err == nil || errors.Is(err, fs.ErrNotExist) || got.PodIP != "" {
			t.Errorf("%q: read %v, error %v", at, got, err)
		}
		if c.Write(types.UID(at[0]), at[1], vmistatus.PodRead{}) == nil && at[1] != "link" && at[1] != "absolute" && at[1] != "pipe" {
			t.Errorf("%q: written", at)
		}
	}
	if b, err := os.ReadFile(secret); err != nil || !strings.Contains(string(b), "10.6.6.6") {
		t.Errorf("the file outside was written: %s %v", b, err)
	}
}

// FuzzParse is for any text: it gives addresses or an error.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"podIP": "10.0.0.1", "podIPs": ["10.0.0.1"], "networkState": 2}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := podcache.Parse(text)
		if err != nil && (r.PodIP != "" || r.PodIPs != nil) {
			t.Errorf("an error with a result: %v", r)
		}
	})
}
