// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command fuzz finds every fuzz target of the module and fuzzes each for a short time:
// "go test -fuzz" takes one target of one package a call, and most of a short one is spent
// on building and linking. So a package's program is built once for all its targets, and two
// packages go side by side.
//
// A short run counts what it covers of this module alone: whoever counts in every package that is
// imported, as "go test -fuzz" does and a long run here, compiles a thousand packages for it.
//
// Invariants: a target that is declared is run; a crash of any makes the command fail
// after the others have run. It must not know what is fuzzed. It owns the fuzzing part
// of the Makefile (architecture 5).
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	each := flag.Duration("time", 2*time.Second, "how long each target is fuzzed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, ".", *each, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// target is one fuzz function; dir is its package's folder, relative to the root.
type target struct{ dir, name string }

func run(ctx context.Context, root string, each time.Duration, out io.Writer) error {
	targets, err := find(root)
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return errors.New("no fuzz target below " + root)
	}
	work, err := os.MkdirTemp("", "fuzz")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	cache, err := goOutput(ctx, root, "env", "GOCACHE")
	if err != nil {
		return err
	}
	f := fuzzer{root: root, work: work, cache: filepath.Join(cache, "fuzz"), each: each, out: out}
	var group errgroup.Group
	group.SetLimit(sideBySide(each))
	for _, of := range packages(targets) {
		group.Go(func() error {
			f.fuzz(ctx, of)
			return nil // the others run all the same
		})
	}
	_ = group.Wait()
	return errors.Join(f.faults...)
}

// packages parts targets by their package.
func packages(targets []target) [][]target {
	var all [][]target
	at := map[string]int{}
	for _, t := range targets {
		i, known := at[t.dir]
		if !known {
			i = len(all)
			at[t.dir] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], t)
	}
	return all
}

// long is how long the targets of a long run are fuzzed at least.
const long = 10 * time.Second

// sideBySide is how many packages are worked at at once: a long run has all processors to itself.
func sideBySide(each time.Duration) int {
	if each >= long {
		return 1
	}
	return 2
}

// find lists the fuzz targets of one module, in file order.
func find(root string) ([]target, error) {
	var found []target
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(root, path, d.Name())
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		names, err := declared(path)
		for _, name := range names {
			dir, _ := filepath.Rel(root, filepath.Dir(path))
			found = append(found, target{"./" + filepath.ToSlash(dir), name})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find fuzz targets: %w", err)
	}
	return found, nil
}

// skipDir leaves out what the go command leaves out: hidden folders, testdata, other modules.
func skipDir(root, path, name string) error {
	if path == root {
		return nil
	}
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" {
		return fs.SkipDir
	}
	if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

// declared names the fuzz functions of one file: func FuzzX(f *testing.F).
func declared(path string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Fuzz") || f.Type.Params.NumFields() != 1 {
			continue
		}
		if star, ok := f.Type.Params.List[0].Type.(*ast.StarExpr); ok {
			if sel, ok := star.X.(*ast.SelectorExpr); ok && sel.Sel.Name == "F" {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names, nil
}

// fuzzer is one run. What go test would keep for a target between runs is kept where it would be.
type fuzzer struct {
	root, work, cache string
	each              time.Duration

	mu     sync.Mutex // of what follows
	out    io.Writer
	faults []error
}

// fuzz runs the targets of one package, one after the other.
func (f *fuzzer) fuzz(ctx context.Context, targets []target) {
	start := time.Now()
	program, path, err := f.build(ctx, targets[0].dir)
	if err != nil {
		f.tell(fmt.Errorf("build %s: %w", targets[0].dir, err), "")
		return
	}
	f.tell(nil, fmt.Sprintf("built %s (%.1fs)\n", targets[0].dir, time.Since(start).Seconds()))
	for _, t := range targets {
		start := time.Now()
		output, err := f.run(ctx, t, program, path)
		// On a busy machine the testing package may report its own deadline as a failure of the target
		// (golang.org/issue/75804, mended in Go 1.27). There is no failing input then: look again.
		for try := 0; try < 2 && err != nil && outOfTime(output); try++ {
			output, err = f.run(ctx, t, program, path)
		}
		if err != nil {
			err = fmt.Errorf("fuzz %s %s: %w\n%s", t.dir, t.name, err, output)
		}
		f.tell(err, fmt.Sprintf("fuzz %s %s (%.1fs)\n", t.dir, t.name, time.Since(start).Seconds()))
	}
}

func (f *fuzzer) tell(fault error, line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, fault)
	fmt.Fprint(f.out, line)
}

func outOfTime(output []byte) bool {
	return bytes.Contains(output, []byte("context deadline exceeded")) &&
		!bytes.Contains(output, []byte("Failing input written"))
}

// build makes the test program of a package, and gives the package's path.
func (f *fuzzer) build(ctx context.Context, dir string) (program, path string, err error) {
	names, err := goOutput(ctx, f.root, "list", "-mod=readonly", "-f", "{{.ImportPath}} {{.Module.Path}}", dir)
	if err != nil {
		return "", "", err
	}
	path, module, _ := strings.Cut(names, " ")
	counting := []string{"-fuzz=."}
	if f.each < long {
		counting = []string{"-gcflags=" + module + "/...=-d=libfuzzer"} // what -fuzz has the compiler do
	}
	program = filepath.Join(f.work, strings.ReplaceAll(path, "/", "-")+".test")
	_, err = goOutput(ctx, f.root, slices.Concat([]string{"test", "-mod=readonly", "-buildvcs=false", "-trimpath", "-vet=off"},
		counting, []string{"-c", "-o", program, dir})...)
	return program, path, err
}

func (f *fuzzer) run(ctx context.Context, t target, program, path string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, "-test.paniconexit0", "-test.run=^$", "-test.fuzz=^"+t.name+"$",
		"-test.fuzztime="+f.each.String(), "-test.fuzzminimizetime=5s", "-test.timeout="+(f.each+5*time.Minute).String(),
		"-test.fuzzcachedir="+filepath.Join(f.cache, filepath.FromSlash(path)))
	cmd.Dir = filepath.Join(f.root, t.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd.CombinedOutput()
}

// goOutput runs the go command and gives what it printed; what it complained of is the error's.
func goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s%s", args[0], err, out.String(), complaint.String())
	}
	return strings.TrimSpace(out.String()), nil
}
