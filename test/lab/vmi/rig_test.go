// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftnet/weft/test/lab"
	"github.com/weftnet/weft/test/lab/box"
	"github.com/weftnet/weft/test/lab/guest"
	"github.com/weftnet/weft/test/lab/vm"
)

func TestMain(m *testing.M) {
	box.Init()
	lab.Main(m, 0)
}

const (
	// within bounds one thing that a guest does, which is emulated, on a machine that has other work.
	within = 2 * time.Minute
	// booting bounds its start.
	booting = 5 * time.Minute
)

// launcher starts a pod with libvirt, whose log is the test's when it fails.
func launcher(t *testing.T, uid string) *guest.Pod {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("a pod with libvirt needs root")
	}
	cache, err := lab.Cache()
	if err != nil {
		t.Fatal(err)
	}
	root, err := guest.Root(t.Context(), cache, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := guest.Boot(t.Context(), vm.Store{Dir: filepath.Join(cache, "vm"), Progress: os.Stderr}, root, dir); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("libvirt says:\n%s", text)
		}
		log.Close()
	})
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	p, err := guest.StartPod(ctx, root, dir, uid, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// start starts a guest in it, beside what else there is to do, and gives what waits for that.
func start(t *testing.T, p *guest.Pod, name string, nics ...guest.NIC) (started func() *guest.Guest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), booting)
	t.Cleanup(cancel)
	var g *guest.Guest
	done := make(chan error, 1)
	go func() {
		var err error
		g, err = p.Start(ctx, name, nics...)
		done <- err
	}()
	return func() *guest.Guest {
		t.Helper()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return g
	}
}

// programs are Weft's that were built: building what is there already takes a poll its time, too.
var programs sync.Map

// program is one of Weft's, built once.
func program(t *testing.T, name string) string {
	t.Helper()
	if path, ok := programs.Load(name); ok {
		return path.(string)
	}
	path := lab.Program(t, name)
	programs.Store(name, path)
	return path
}

// do runs a line of shell in a guest.
func do(t *testing.T, g *guest.Guest, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	out, err := g.Do(ctx, line)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// must fails the test with an error of something that is done to a guest.
func must(t *testing.T, what func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := what(ctx); err != nil {
		t.Fatal(err)
	}
}

// entry is an entry of status.interfaces.
type entry struct {
	Name          string   `json:"name"`
	MAC           string   `json:"mac"`
	IP            string   `json:"ipAddress"`
	IPs           []string `json:"ipAddresses"`
	InterfaceName string   `json:"interfaceName"`
	InfoSource    string   `json:"infoSource"`
	LinkState     string   `json:"linkState"`
}

func (e entry) String() string {
	return strings.Join([]string{e.Name, e.MAC, strings.Join(e.IPs, "+"), e.InterfaceName, e.InfoSource, e.LinkState}, " ")
}

// machine is what weft get vmis says of one.
type machine struct {
	Namespace  string  `json:"namespace"`
	Name       string  `json:"name"`
	Pod        string  `json:"pod"`
	State      string  `json:"state"`
	Agent      string  `json:"agent"`
	Fault      string  `json:"fault"`
	Interfaces []entry `json:"interfaces"`
	Warnings   []struct {
		Code string `json:"code"`
	} `json:"warnings"`
	Differs []string `json:"differs"`
}

func (m machine) entry(name string) (entry, bool) {
	for _, e := range m.Interfaces {
		if e.Name == name {
			return e, true
		}
	}
	return entry{}, false
}

func (m machine) warned(code string) bool {
	for _, w := range m.Warnings {
		if w.Code == code {
			return true
		}
	}
	return false
}

// getVMIs runs weft get vmis.
func getVMIs(t *testing.T, args ...string) ([]machine, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "weft"), append([]string{"get", "vmis", "-o", "json"}, args...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, errs.String())
	}
	var list struct {
		VMIs []machine `json:"vmis"`
	}
	return list.VMIs, json.Unmarshal(out, &list)
}

// eventually polls until a machine is as wanted; the test fails with what it was last.
func eventually(t *testing.T, what string, look func() (machine, error), wanted func(machine) bool) machine {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		m, err := look()
		if err == nil && wanted(m) {
			return m
		}
		select {
		case <-ctx.Done():
			text, _ := json.MarshalIndent(m, "", " ")
			t.Fatalf("%s: not within %s; last: %v\n%s", what, within, err, text)
		case <-time.After(500 * time.Millisecond): // a look takes the guest's processor away
		}
	}
}

var errNone = errors.New("there is no such machine")
