// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package hostfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// tree writes files below a new directory. A value "-> x" makes a symbolic link,
// "fifo" a FIFO, "dir" a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if to, link := strings.CutPrefix(content, "-> "); link {
			err = errors.Join(err, os.Symlink(to, path))
		} else if content == "fifo" {
			err = errors.Join(err, syscall.Mkfifo(path, 0o600))
		} else if content == "dir" {
			err = errors.Join(err, os.Mkdir(path, 0o700))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(content), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func conf(name string) string { return fmt.Sprintf(`{"name":%q,"type":"pa"}`, name) }

func list(name, more string) string {
	return fmt.Sprintf(`{"name":%q,"plugins":[{"type":"pa"}]%s}`, name, more)
}

const big = plan.MaxConfBytes

// check compares an answer; DIR in want and warnings stands for dir. Each warning
// is "object | part of the text".
func check(t *testing.T, f plan.File, dir, path, data string, chained []string, warnings []string) {
	t.Helper()
	if f.Found != (path != "") || f.Path != strings.ReplaceAll(path, "DIR", dir) || string(f.Data) != data {
		t.Errorf("found %v, path %q, data %q; want path %q, data %q", f.Found, f.Path, f.Data, path, data)
	}
	var got []string
	for _, c := range f.Chained {
		got = append(got, string(c))
	}
	if !slices.Equal(got, chained) {
		t.Errorf("chained %q, want %q", got, chained)
	}
	if len(f.Warnings) != len(warnings) {
		t.Fatalf("warnings %q, want %q", f.Warnings, warnings)
	}
	for i, w := range f.Warnings {
		object, text, _ := strings.Cut(strings.ReplaceAll(warnings[i], "DIR", dir), " | ")
		if w.Object != object || !strings.Contains(w.Text, text) {
			t.Errorf("warning %d is %q: %q, want %q", i, w.Object, w.Text, warnings[i])
		}
	}
}

func TestConfDir(t *testing.T) {
	for name, c := range map[string]struct {
		files      map[string]string
		path, data string
		chained    []string
		warnings   []string
	}{
		"B20: a broken file that sorts earlier": {
			files: map[string]string{"01-broken.conf": "{bad", "10-a.conflist": list("neta", "")},
			path:  "DIR/10-a.conflist", data: list("neta", ""),
			warnings: []string{"file DIR/01-broken.conf | ; it is skipped"},
		},
		"the first of a name, of any of the three kinds": {
			files: map[string]string{"3.conf": conf("neta"), "2.json": conf("neta"), "1.conflist": conf("other"), "0.yaml": conf("neta")},
			path:  "DIR/2.json", data: conf("neta"),
		},
		"none of the name": {files: map[string]string{"1.conf": conf("netb")}},
		"the one that was meant is broken": { // plan says what is wrong with it
			files: map[string]string{"1.conf": `{"name":"neta","type":"../x"}`},
			path:  "DIR/1.conf", data: `{"name":"neta","type":"../x"}`,
		},
		"a link inside": {
			files: map[string]string{"1.conf": "-> real/a", "real/a": conf("neta")},
			path:  "DIR/1.conf", data: conf("neta"),
		},
		"a link that leads out": {
			files:    map[string]string{"1.conf": "-> /etc/passwd", "2.conf": "-> ../x"},
			warnings: []string{"file DIR/1.conf | path escapes from parent", "file DIR/2.conf | path escapes from parent"},
		},
		"a FIFO, a device, a directory, a dead link": {
			files: map[string]string{"1.conf": "fifo", "2.conf": "-> /dev/zero", "3.conf": "dir", "4.conf": "-> gone", "5.conf": conf("neta")},
			path:  "DIR/5.conf", data: conf("neta"),
			warnings: []string{
				"file DIR/1.conf | is no regular file", "file DIR/2.conf | path escapes from parent",
				"file DIR/3.conf | is no regular file", "file DIR/4.conf | no such file or directory",
			},
		},
		"too large, and as large as can be": {
			files: map[string]string{"1.conf": strings.Repeat(" ", big+1), "2.conf": conf("neta") + strings.Repeat(" ", big-len(conf("neta")))},
			path:  "DIR/2.conf", data: conf("neta") + strings.Repeat(" ", big-len(conf("neta"))),
			warnings: []string{"file DIR/1.conf | is too large (more than 2097152 bytes); it is skipped"},
		},
		"chained plugins, sorted": {
			files: map[string]string{
				"1.conflist": list("neta", ""), "neta/20.conf": `{"type":"pc"}`, "neta/10.conf": `{"type":"pb"}`,
				"neta/05.json": `{"type":"pd"}`, "netb/10.conf": `{"type":"pe"}`,
			},
			path: "DIR/1.conflist", data: list("neta", ""), chained: []string{`{"type":"pb"}`, `{"type":"pc"}`},
		},
		"only inlined plugins": {
			files: map[string]string{"1.conflist": list("neta", `,"loadOnlyInlinedPlugins":true`), "neta/10.conf": `{"type":"pb"}`},
			path:  "DIR/1.conflist", data: list("neta", `,"loadOnlyInlinedPlugins":true`),
		},
		"nothing but chained plugins": {
			files: map[string]string{"1.conflist": `{"name":"neta"}`, "neta/10.conf": `{"type":"pb"}`},
			path:  "DIR/1.conflist", data: `{"name":"neta"}`, chained: []string{`{"type":"pb"}`},
		},
		"no chain for a single plugin": {
			files: map[string]string{"1.conf": conf("neta"), "neta/10.conf": `{"type":"pb"}`},
			path:  "DIR/1.conf", data: conf("neta"),
		},
		"a broken chained plugin goes along": {
			files: map[string]string{"1.conflist": list("neta", ""), "neta/10.conf": `{bad`, "neta/20.conf": `{"type":"pb"}`},
			path:  "DIR/1.conflist", data: list("neta", ""), chained: []string{`{bad`, `{"type":"pb"}`},
			warnings: []string{"file DIR/1.conflist | chained plugin DIR/neta/10.conf: "},
		},
		"a chained plugin that cannot be read": {
			files:    map[string]string{"1.conflist": list("neta", ""), "neta/10.conf": "-> /etc/passwd"},
			warnings: []string{"file DIR/1.conflist | chained plugin DIR/neta/10.conf: path escapes from parent; it is skipped"},
		},
		"a chain that leads out": {
			files:    map[string]string{"1.conflist": list("neta", ""), "neta": "-> /etc"},
			warnings: []string{"file DIR/1.conflist | chained plugins in DIR/neta: path escapes from parent; it is skipped"},
		},
		"a file with the network's name": {
			files: map[string]string{"1.conflist": list("neta", ""), "neta": "x"},
			path:  "DIR/1.conflist", data: list("neta", ""),
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, c.files)
			f := Read(&netconf.Conf{ConfDir: dir}, "confDir/neta", "")
			if f.Need != "confDir/neta" {
				t.Errorf("answers %q", f.Need)
			}
			check(t, f, dir, c.path, c.data, c.chained, c.warnings)
		})
	}
	t.Run("no directory", func(t *testing.T) {
		check(t, Read(&netconf.Conf{ConfDir: "/none/of/it"}, "confDir/neta", ""), "", "", "", nil,
			[]string{"directory /none/of/it | no such file or directory"})
	})
	t.Run("a name that is a path stays a name", func(t *testing.T) {
		dir := tree(t, map[string]string{"1.conf": conf("neta"), "sub/x.conf": conf("x")})
		check(t, Read(&netconf.Conf{ConfDir: dir}, "confDir/sub/x.conf", ""), dir, "", "", nil, nil)
		check(t, Read(&netconf.Conf{ConfDir: dir}, "confDir/../../etc/passwd", ""), dir, "", "", nil, nil)
	})
}

func TestPath(t *testing.T) {
	for name, c := range map[string]struct {
		files      map[string]string
		need       string // DIR is the tree
		cluster    string
		path, data string
		chained    []string
		warnings   []string
	}{
		"a list with its chain": {
			files: map[string]string{"1.conflist": list("cn", ""), "cn/10.conf": `{"type":"pb"}`},
			need:  "path/DIR/1.conflist", cluster: "DIR/1.conflist",
			path: "DIR/1.conflist", data: list("cn", ""), chained: []string{`{"type":"pb"}`},
		},
		"a link that the administrator named": {
			files: map[string]string{"1.conf": "-> DIR/elsewhere/a", "elsewhere/a": conf("cn")},
			need:  "path/DIR/1.conf", cluster: "DIR/1.conf",
			path: "DIR/1.conf", data: conf("cn"),
		},
		"a broken file": {
			files: map[string]string{"1.conf": "{bad"},
			need:  "path/DIR/1.conf", cluster: "DIR/1.conf", path: "DIR/1.conf", data: "{bad",
		},
		"a FIFO": {
			files: map[string]string{"1.conf": "fifo"},
			need:  "path/DIR/1.conf", cluster: "DIR/1.conf", warnings: []string{"file DIR/1.conf | is no regular file"},
		},
		"nothing there": {
			need: "path/DIR/1.conf", cluster: "DIR/1.conf", warnings: []string{"file DIR/1.conf | no such file or directory"},
		},
		"a directory: the first usable conf": {
			files: map[string]string{
				"d/1.conf": "{bad", "d/2.conflist": `{"name":"x","plugins":[]}`, "d/3.conf": `{"name":"y"}`,
				"d/4.conflist": list("z", ""), "d/z/1.conf": "{bad", "d/5.conflist": list("cn", ""), "d/cn/1.conf": `{"type":"pb"}`,
			},
			need: "path/DIR/d", cluster: "DIR/d/",
			path: "DIR/d/5.conflist", data: list("cn", ""), chained: []string{`{"type":"pb"}`},
			warnings: []string{
				"file DIR/d/1.conf | ; it is skipped", "file DIR/d/2.conflist | ; it is skipped", "file DIR/d/3.conf | ; it is skipped",
				"file DIR/d/4.conflist | chained plugin DIR/d/z/1.conf", "file DIR/d/4.conflist | ; it is skipped",
			},
		},
		"a path that the conf does not name": {
			files: map[string]string{"1.conf": conf("cn")},
			need:  "path/DIR/1.conf", cluster: "DIR/2.conf",
			warnings: []string{"file DIR/1.conf | the configuration names no such absolute path"},
		},
		"a detour to one that it does not name": {
			files: map[string]string{"1.conf": conf("cn")},
			need:  "path/DIR/d/../1.conf", cluster: "DIR/d",
			warnings: []string{"file DIR/d/../1.conf | the configuration names no such absolute path"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			for k, v := range c.files {
				c.files[k] = strings.ReplaceAll(v, "DIR", dir)
			}
			if err := os.Rename(tree(t, c.files), dir); err != nil {
				t.Fatal(err)
			}
			in := strings.NewReplacer("DIR", dir)
			for _, cf := range []*netconf.Conf{
				{ClusterNetwork: in.Replace(c.cluster)},
				{ClusterNetwork: "cn", DefaultNetworks: []string{"other", in.Replace(c.cluster)}},
			} {
				check(t, Read(cf, plan.Need(in.Replace(c.need)), ""), dir, c.path, c.data, c.chained, c.warnings)
			}
		})
	}
}

func TestChain(t *testing.T) {
	dir := tree(t, map[string]string{
		"aux/20.conf": `{"type":"pc"}`, "aux/10.conf": `{"type":"pb"}`, "aux/15.conf": "{bad", "aux/16.conf": "fifo",
		"aux/30.json": `{"type":"pd"}`, "empty": "dir", "out": "-> /etc",
	})
	cluster := filepath.Join(dir, "1.conflist")
	for name, c := range map[string]struct {
		need, cluster, path string
		chained, warnings   []string
	}{
		"sorted, without the broken ones": {
			"chain/aux", cluster, "DIR/aux",
			[]string{`{"type":"pb"}`, `{"type":"pc"}`},
			[]string{
				`auxiliary chain "aux" | chained plugin DIR/aux/15.conf`,
				`auxiliary chain "aux" | chained plugin DIR/aux/16.conf: is no regular file; it is left out`,
			},
		},
		"no cluster file": {"chain/aux", "", "", nil, []string{`auxiliary chain "aux" | no directory beside it`}},
		"a path as name":  {"chain/../aux", cluster, "", nil, []string{`auxiliary chain "../aux" | cannot be that of a directory`}},
		"leads out":       {"chain/out", cluster, "", nil, []string{`auxiliary chain "out" | path escapes from parent`}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, Read(&netconf.Conf{}, plan.Need(c.need), c.cluster), dir, c.path, "", c.chained, c.warnings)
		})
	}
	check(t, Read(&netconf.Conf{PrimaryConf: cluster}, "chain/aux", ""), dir, "DIR/aux", "",
		[]string{`{"type":"pb"}`, `{"type":"pc"}`}, []string{`auxiliary chain "aux" | 15.conf`, `auxiliary chain "aux" | 16.conf`})
	for _, need := range []plan.Need{"chain/empty", "chain/none"} {
		if f := Read(&netconf.Conf{}, need, cluster); f.Found || len(f.Chained) > 0 || len(f.Warnings) > 0 {
			t.Errorf("%s gives %+v", need, f)
		}
	}
}

func TestUnknownNeed(t *testing.T) {
	for _, need := range []plan.Need{"", "x", "file//etc/passwd"} {
		f := Read(&netconf.Conf{ClusterNetwork: "/etc/passwd"}, need, "")
		check(t, f, "", "", "", nil, []string{fmt.Sprintf("need %q | cannot read", string(need))})
	}
}

func TestManyFiles(t *testing.T) {
	files := map[string]string{}
	for i := range maxFiles + 1 {
		files[fmt.Sprintf("%05d.conf", i)] = conf("other")
	}
	files["99999.conf"] = conf("neta")
	dir := tree(t, files)
	check(t, Read(&netconf.Conf{ConfDir: dir}, "confDir/neta", ""), dir, "", "", nil,
		[]string{fmt.Sprintf("directory DIR | only the first %d of %d files are looked at", maxFiles, maxFiles+2)})
}

func TestReadRegularErrors(t *testing.T) {
	dir := tree(t, map[string]string{"a": "12345", "f": "fifo", "sub/in": "in"})
	for link, to := range map[string]string{"in": "sub/in", "again": "in", "out": filepath.Join(tree(t, map[string]string{"o": "o"}), "o"), "loop": "loop", "fifo": "f"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	own, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for way, read := range map[string]func(string, int64) ([]byte, error){
		"root": func(name string, limit int64) ([]byte, error) { return ReadRegular(root, name, limit) },
		"dir":  own.ReadRegular,
	} {
		for name, want := range map[string]string{"a": "12345", "in": "in", "again": "in"} {
			if b, err := read(name, 5); err != nil || string(b) != want {
				t.Errorf("%s, %s: %q, %v", way, name, b, err)
			}
		}
		for name, want := range map[string]error{
			"a": ErrTooLarge, "f": ErrNotRegular, "fifo": ErrNotRegular, "none": fs.ErrNotExist, "sub": ErrNotRegular, "loop": syscall.ELOOP, ".": ErrNotRegular,
		} {
			if _, err := read(name, 4); !errors.Is(err, want) {
				t.Errorf("%s, %s: %v, want %v", way, name, err, want)
			}
		}
		if b, err := read("out", 5); err == nil {
			t.Errorf("%s: a link leads out of the directory: %q", way, b)
		}
		if b, err := read("../"+filepath.Base(dir)+"/a", 5); err == nil {
			t.Errorf("%s: a name leads out of the directory: %q", way, b)
		}
	}
	if _, err := OpenDir(filepath.Join(dir, "a")); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a file is opened as a directory: %v", err)
	}
	if names, err := own.Names(); err != nil || len(names) != 8 {
		t.Errorf("names %v, %v", names, err)
	}
}
