// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package socket_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/host/socket"
)

func TestFolderOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		mode os.FileMode
		uid  int
		want string // in the error; "" is none
	}{
		"private":             {0o700, 0, ""},
		"readable":            {0o755, 0, ""},
		"of the group":        {0o775, 0, "others may write to folder"},
		"of all":              {0o777, 0, "(mode 0777)"},
		"of all, with sticky": {0o777 | os.ModeSticky, 0, "(mode 1777)"},
		"of another user":     {0o700, 4711, "belongs to user 4711"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, c.mode); err != nil {
				t.Fatal(err)
			}
			if c.uid != 0 {
				if err := os.Chown(dir, c.uid, -1); err != nil {
					t.Skip("only root can give a folder away: ", err)
				}
			}
			s, err := socket.Listen(filepath.Join(dir, "a.sock"), 0o600)
			if err == nil {
				s.Close()
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}
