// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package weft

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weftnet/weft"

// pkg is the part of "go list -json" that the laws are about.
type pkg struct {
	Dir, ImportPath, Name, Doc         string
	Imports                            []string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

// room is the package's path below the module: "internal/cni/plan".
func (p pkg) room() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

// packages lists the module's own packages.
func packages(t *testing.T) []pkg {
	t.Helper()
	out := goCommand(t, "list", "-json=Dir,ImportPath,Name,Doc,Imports,GoFiles,TestGoFiles,XTestGoFiles", "./...")
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// goCommand runs the go command as the binaries are built: without cgo.
func goCommand(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out
}

// below says whether path is the package or folder root, or lies below it.
func below(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

func belowAny(path string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return below(path, r) })
}

// TestPackageDocs: a package says what it owns, in one place, and which part of the design it implements.
func TestPackageDocs(t *testing.T) {
	design := regexp.MustCompile(`architecture \d|spec/|CNI SPEC`)
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue // tests only: nothing can import it
		}
		var docs []string
		for _, name := range p.GoFiles {
			f := parse(t, filepath.Join(p.Dir, name), parser.PackageClauseOnly|parser.ParseComments)
			if f.Doc != nil {
				docs = append(docs, f.Doc.Text())
			}
		}
		if len(docs) != 1 {
			t.Errorf("%s has %d package comments, want 1", p.room(), len(docs))
			continue
		}
		start := "Package " + p.Name + " "
		if p.Name == "main" {
			start = "Command " + filepath.Base(p.ImportPath) + " "
		}
		if !strings.HasPrefix(docs[0], start) {
			t.Errorf("%s: the package comment does not start with %q", p.room(), start)
		}
		if floor(p.room()) >= 0 && !design.MatchString(docs[0]) {
			t.Errorf("%s: the package comment does not say which part of the design it implements", p.room())
		}
		if strings.Count(docs[0], "\n") < 3 {
			t.Errorf("%s: the package comment is too short to say what it owns and what it must not know", p.room())
		}
	}
}

func parse(t *testing.T, path string, mode parser.Mode) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, mode)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// core are the rooms that compute: they take values and return values.
var core = []string{
	"internal/cni/fault", "internal/cni/netconf", "internal/cni/selection",
	"internal/cni/plan", "internal/cni/netstatus", "internal/cni/results",
	"internal/dra/pool",
}

// vocabulary are rooms of types that a room of the core may name, though they do not belong to it:
// the network driver's words are those of Kubernetes' API.
var vocabulary = []string{"api/v2alpha1", "internal/dra/device"}

// TestCoreImports: the core touches no operating system, network, log, cluster or host.
func TestCoreImports(t *testing.T) {
	forbidden := []string{
		"os", "net", "syscall", "log", "io/fs", "path/filepath", "math/rand", "golang.org/x/sys",
		"github.com/vishvananda", "k8s.io", "sigs.k8s.io",
	}
	seen := 0
	for _, p := range packages(t) {
		if !slices.Contains(core, p.room()) {
			continue
		}
		seen++
		for _, imp := range p.Imports {
			if belowAny(imp, forbidden...) && imp != "net/netip" {
				t.Errorf("%s imports %s: the core takes values and returns values", p.room(), imp)
			}
			room, ours := strings.CutPrefix(imp, module+"/")
			if ours && !slices.Contains(core, room) && !slices.Contains(vocabulary, room) {
				t.Errorf("%s imports %s, which is not of the core", p.room(), room)
			}
		}
		for _, name := range p.GoFiles {
			for _, call := range []string{"Now", "Since", "Until", "After", "NewTimer", "Sleep"} {
				if selects(parse(t, filepath.Join(p.Dir, name), 0), "time", call) {
					t.Errorf("%s/%s uses time.%s: the core does not know what time it is", p.room(), name, call)
				}
			}
		}
	}
	if seen != len(core) {
		t.Errorf("found %d of the %d rooms of the core", seen, len(core))
	}
}

// selects says whether the file mentions pkg.name.
func selects(f *ast.File, pkg, name string) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == name {
			if id, ok := s.X.(*ast.Ident); ok && id.Name == pkg {
				found = true
			}
		}
		return !found
	})
	return found
}

// floors are the house's, from the bottom: a room imports its own floor or lower ones.
var floors = [][]string{
	{"api", "vmistatus", "internal/kube", "internal/host"},
	{"internal/cni", "internal/dra", "internal/vm"},
	{"internal/agent", "internal/operator", "internal/inspect", "internal/sandbox"},
	{"cmd"},
}

// wings share a floor and never import each other.
var wings = floors[1]

func floor(room string) int {
	return slices.IndexFunc(floors, func(rooms []string) bool { return belowAny(room, rooms...) })
}

func TestEveryArrowPointsDown(t *testing.T) {
	for _, p := range packages(t) {
		from := floor(p.room())
		if from < 0 {
			if strings.HasPrefix(p.room(), "internal/") {
				t.Errorf("%s stands on no floor of the house", p.room())
			}
			continue // the root, build, test: they may look at anything
		}
		for _, imp := range p.Imports {
			room, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			to := floor(room)
			if to < 0 {
				t.Errorf("%s imports %s, which is no part of the house", p.room(), room)
			}
			if to > from {
				t.Errorf("%s imports %s: the arrow points up", p.room(), room)
			}
			for _, a := range wings {
				for _, b := range wings {
					if a != b && below(p.room(), a) && below(room, b) {
						t.Errorf("%s imports %s: wings meet in the rooms above them", p.room(), room)
					}
				}
			}
		}
	}
}

// TestOnlyTheStateRoomKnowsStateDB: every other room asks internal/dra/state, and programs that
// are not the agent do not carry a database.
func TestOnlyTheStateRoomKnowsStateDB(t *testing.T) {
	const statedb = "github.com/cilium/statedb"
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			if below(imp, statedb) && p.room() != "internal/dra/state" {
				t.Errorf("%s imports %s", p.room(), imp)
			}
		}
	}
	for _, name := range []string{"weft", "weft-cni", "weft-planner", "weft-planner-kube"} {
		for dep := range strings.FieldsSeq(string(goCommand(t, "list", "-deps", "./cmd/"+name))) {
			if below(dep, statedb) {
				t.Errorf("%s links %s", name, dep)
			}
		}
	}
}

// TestOnlyTheKernelRoomKnowsNetlink: every other room asks internal/host/kernel.
func TestOnlyTheKernelRoomKnowsNetlink(t *testing.T) {
	for _, p := range packages(t) {
		if p.room() == "internal/host/kernel" {
			continue
		}
		for _, imp := range p.Imports {
			if below(imp, "github.com/vishvananda") {
				t.Errorf("%s imports %s", p.room(), imp)
			}
		}
	}
}

// TestLinkedPackages: what the plugin and the planner must not carry into every pod's start.
func TestLinkedPackages(t *testing.T) {
	for _, name := range []string{"weft-cni", "weft-planner", "weft-planner-kube"} {
		for dep := range strings.FieldsSeq(string(goCommand(t, "list", "-deps", "./cmd/"+name))) {
			if name == "weft-planner-kube" && below(dep, "net/http") {
				continue // the one that asks an API server, and a program of its own for that
			}
			if belowAny(dep, "net/http", "k8s.io", "github.com/spf13", "google.golang.org",
				"github.com/containernetworking/cni/libcni", "github.com/containernetworking/cni/pkg/invoke") {
				t.Errorf("%s links %s", name, dep)
			}
		}
	}
}

// TestBinarySize: the stripped plugin stays within 5 MiB.
func TestBinarySize(t *testing.T) {
	const limit = 5 << 20
	out := filepath.Join(t.TempDir(), "weft-cni")
	goCommand(t, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, "./cmd/weft-cni")
	info, err := os.Stat(out)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > limit {
		t.Errorf("weft-cni has %d bytes, the limit is %d", info.Size(), limit)
	}
}

// TestGeneratedFilesAreFresh: "make generate" would change nothing.
func TestGeneratedFilesAreFresh(t *testing.T) {
	goCommand(t, "run", "./build/generate", "-check")
}

// TestMainsAreThin: a main reads flags and hands over.
func TestMainsAreThin(t *testing.T) {
	mains, err := filepath.Glob("cmd/*/main.go")
	if err != nil || len(mains) == 0 {
		t.Fatalf("found no main: %v", err)
	}
	for _, path := range mains {
		if n := lines(t, path); n > 100 {
			t.Errorf("%s has %d lines, the limit is 100", path, n)
		}
	}
}

func lines(t *testing.T, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("\n"))
}

// TestGoFiles: every file carries its licence and has a readable length.
func TestGoFiles(t *testing.T) {
	const header = "// Copyright The Weft Authors.\n// SPDX-License-Identifier: Apache-2.0\n"
	for path, text := range sources(t, ".go") {
		if generated := ast.IsGenerated(parse(t, path, parser.PackageClauseOnly|parser.ParseComments)); generated {
			continue
		}
		if !strings.HasPrefix(text, header) {
			t.Errorf("%s does not start with the licence header", path)
		}
		if n := strings.Count(text, "\n"); n > 600 {
			t.Errorf("%s has %d lines, the limit is 600", path, n)
		}
	}
}

// TestErrorsAreNotReadAsText: what kind of error it is, is decided by type or value.
func TestErrorsAreNotReadAsText(t *testing.T) {
	for path := range sources(t, ".go") {
		if strings.HasSuffix(path, "_test.go") {
			continue // a test may look at what a person would read
		}
		ast.Inspect(parse(t, path, 0), func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !isIdent(f.X, "strings") || !slices.Contains([]string{"Contains", "HasPrefix", "HasSuffix", "Index", "EqualFold"}, f.Sel.Name) {
				return true
			}
			if slices.ContainsFunc(call.Args, isErrorText) {
				t.Errorf("%s decides on an error's text with strings.%s", path, f.Sel.Name)
			}
			return true
		})
	}
}

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// isErrorText matches x.Error().
func isErrorText(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) != 0 {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == "Error"
}

// TestNoMachinePaths: nothing in the tree names a place of the machine that it was written on.
func TestNoMachinePaths(t *testing.T) {
	var here []string
	add := func(path string) {
		// A short path such as /src would be found in words that have nothing to do with it.
		if strings.Count(path, "/") >= 2 {
			here = append(here, path)
		}
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	add(wd)
	if home, err := os.UserHomeDir(); err == nil {
		add(home)
		add(home + "/go")
	}
	for _, name := range []string{"GOMODCACHE", "GOCACHE"} {
		add(strings.TrimSpace(string(goCommand(t, "env", name))))
	}
	people := regexp.MustCompile(`/(home|Users)/[a-z]`)
	for path, text := range sources(t, "") {
		for _, place := range here {
			if strings.Contains(text, place) {
				t.Errorf("%s names %s", path, place)
			}
		}
		if found := people.FindString(text); found != "" && path != "repo_test.go" {
			t.Errorf("%s names somebody's home: %s", path, strconv.Quote(found))
		}
	}
}

// sources gives the text of every file of the tree whose name ends in suffix; what was built is left out.
func sources(t *testing.T, suffix string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", ".cache", "bin"}, path) {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || !strings.HasSuffix(path, suffix) {
			return nil
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("found no file that ends in %q", suffix)
	}
	return files
}
