// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command fuzz finds every fuzz target of the module and fuzzes each for a short time:
// "go test -fuzz" takes one target of one package a call, and most of a short one is spent
// on building and starting, so that two go side by side.
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
	var (
		mu     sync.Mutex // of what follows
		faults []error
		group  errgroup.Group
	)
	group.SetLimit(sideBySide(each))
	for _, t := range targets {
		group.Go(func() error {
			start := time.Now()
			err := fuzz(ctx, root, t, each)
			mu.Lock()
			defer mu.Unlock()
			faults = append(faults, err)
			fmt.Fprintf(out, "fuzz %s %s (%.1fs)\n", t.dir, t.name, time.Since(start).Seconds())
			return nil // the others run all the same
		})
	}
	_ = group.Wait()
	return errors.Join(faults...)
}

// sideBySide is how many targets run at once: a long run has all processors to itself.
func sideBySide(each time.Duration) int {
	const long = 10 * time.Second
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

func fuzz(ctx context.Context, root string, t target, each time.Duration) error {
	output, err := goFuzz(ctx, root, t, each)
	// On a busy machine the go command may report its own deadline as a failure of the target
	// (golang.org/issue/75804, mended in Go 1.27). There is no failing input then: look again.
	for try := 0; try < 2 && err != nil && outOfTime(output); try++ {
		output, err = goFuzz(ctx, root, t, each)
	}
	if err != nil {
		return fmt.Errorf("fuzz %s %s: %w\n%s", t.dir, t.name, err, output)
	}
	return nil
}

func outOfTime(output []byte) bool {
	return bytes.Contains(output, []byte("context deadline exceeded")) &&
		!bytes.Contains(output, []byte("Failing input written"))
}

func goFuzz(ctx context.Context, root string, t target, each time.Duration) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-mod=readonly", "-buildvcs=false",
		"-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(),
		"-fuzzminimizetime", "5s", "-timeout", (each + 5*time.Minute).String(), t.dir)
	cmd.Dir = root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd.CombinedOutput()
}
