// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftnet/weft/test/lab/vm/order"
)

func TestSources(t *testing.T) {
	const want = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian bookworm main\n" +
		"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian bookworm-backports main\n"
	for name, test := range map[string]struct{ uris, want string }{
		"nothing":         {"", ""},
		"another release": {"'http://mirror.example/debian/dists/trixie/InRelease' mirror 0 \n", ""},
		"only updates":    {"'http://mirror.example/debian/dists/bookworm-updates/InRelease' mirror 0 \n", ""},
		"among others": {"'http://mirror.example/security/dists/bookworm-security/InRelease' a 0 \n" +
			"'http://mirror.example/debian/dists/bookworm/InRelease' b 0 \n", want},
	} {
		if diff := cmp.Diff(test.want, sources(test.uris)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestNewestPackage(t *testing.T) {
	if older, newer := numbers("linux-image-6.12.9+deb12-amd64"), numbers("linux-image-6.12.10+deb12-amd64"); cmp.Equal(older, newer) || newer[2] != 10 {
		t.Errorf("numbers are %v and %v", older, newer)
	}
}

// A console's output is handed on line by line, without statuses.
func TestConsole(t *testing.T) {
	var out bytes.Buffer
	c := &console{out: &out}
	// A status's line as a test of this package logs it is none.
	for _, part := range []string{"on", "e\r\n", order.StatusLine(0, 0) + "\r\n", "vm: command 0 ended with status 5\r\n", "half" + order.StatusLine(1, 7), "\r\n", "rest"} {
		if _, err := c.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	c.flush()
	if diff := cmp.Diff("one\nvm: command 0 ended with status 5\nhalf\nrest\n", out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{0, 7}, c.statuses); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
}

// What a real cpio reads of an archive: Debian's busybox has one.
func TestArchive(t *testing.T) {
	var out bytes.Buffer
	a := newArchive(&out)
	a.file("/a/b/file", 0o750, []byte("text"))
	a.link("/a/link", "b/file")
	a.dir("/a/b")
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), busybox, "sh", "-c", "busybox cpio -i && busybox stat -c '%A %n' a/b a/b/file && busybox readlink a/link && busybox cat a/link")
	cmd.Dir, cmd.Stdin = dir, &out
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	const want = "drwxr-xr-x a/b\n-rwxr-x--- a/b/file\nb/file\ntext"
	if !strings.HasSuffix(string(text), want) {
		t.Errorf("cpio unpacks\n%s\nwant\n%s", text, want)
	}
	if found, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(found) != 1 {
		t.Errorf("there are %v, %v", found, err)
	}
}

func TestProgram(t *testing.T) {
	files, err := Program(t.Context(), "nsenter")
	if err != nil {
		t.Fatal(err)
	}
	if files["/usr/bin/nsenter"] == "" || files["/lib64/ld-linux-x86-64.so.2"] == "" || len(files) < 3 {
		t.Errorf("its files are %v", files)
	}
	if _, err := Program(t.Context(), "no-such-program"); err == nil {
		t.Error("a program that is not there is found")
	}
}
