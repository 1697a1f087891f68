// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package attach is the hands: the verbs of weft-cni (ADD, DEL, CHECK, STATUS, GC,
// VERSION). It reads the runtime's request and the host's files, gets a plan
// (from weft-planner, from the agent, or by itself for a pod that asks for nothing
// extra), journals it, runs the delegates and prints the result.
//
// Invariants:
//   - The intent of an ADD is on disk before the first delegate runs; every delegate
//     that may have run is named by the record until its DEL succeeded.
//   - ADD is all or nothing. A failure undoes in reverse and answers the delegate's
//     own code and text.
//   - DEL, CHECK and GC need neither API server nor agent nor planner.
//   - Calls on one sandbox and interface wait for each other. A delegate that outlived
//     its killed weft-cni keeps the record locked and is ended before anything else is done.
//   - No input panics: a panic becomes a CNI error (code 100) at the edge.
//
// Crash windows, by what the next call finds:
//   - an empty, unlocked record: nothing was planned; it is removed;
//   - an intent without phases: nothing was attempted; it is forgotten;
//   - "attempting" without "done": the attachment counts as attempted and is undone;
//   - everything done but the answer lost: ADD repeats the answer, DEL undoes;
//   - "undoing" without "undone": DEL runs the delegate again (DEL is idempotent by CNI's rule);
//   - everything undone but the file still there: it is forgotten.
//
// It must not know Kubernetes: pods and NADs reach it only inside a plan. The edge
// does not use cni/pkg/skel: that checks the namespace only after ADD has run, and
// answers an error without undoing.
//
// Implements: CNI SPEC 1.1 (0.1.0 to 1.1.0); spec/cni.md rules 2, 4-8; architecture 4.1-4.3.
package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/selection"
	"github.com/weftnet/weft/internal/host/journal"
)

const (
	maxErrorText = 4 << 10
	// maxStdin bounds the conf: a conf may hold a cached prevResult besides its 2 MiB.
	maxStdin = 32 << 20
)

// Process is what the edge needs of the process it runs in.
type Process struct {
	Args    []string // without the program's name
	Version func() string
	Getenv  func(string) string
	Environ []string
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
}

// request is one call of the runtime.
type request struct {
	command string
	sandbox plan.Sandbox
	stdin   []byte
}

// variable is one CNI_* variable: which commands need it, and what it must look like.
type variable struct {
	name     string
	needed   string // commands, separated by blanks
	validate func(string) error
}

func variables() []variable {
	return []variable{
		{"CNI_CONTAINERID", "ADD DEL CHECK", netconf.NetworkName}, // CNI has one rule for both,
		{"CNI_NETNS", "ADD CHECK", nil},
		{"CNI_IFNAME", "ADD DEL CHECK", selection.InterfaceName},
		{"CNI_ARGS", "", nil},
		{"CNI_PATH", "ADD CHECK GC STATUS", nil}, // DEL finds plugins where the record says
	}
}

const about = `weft-cni: gives pods their extra network interfaces (CNI plugin)

The container runtime runs it; CNI_COMMAND and the other CNI_* variables and a
configuration on stdin say what to do. Without CNI_COMMAND this text is shown,
with --version the version.

Example, by hand:
  CNI_COMMAND=VERSION weft-cni < /dev/null`

// Main runs one CNI call and returns the exit status.
func Main(p Process) int {
	if len(p.Args) == 1 && p.Args[0] == applyCommand {
		return finish(p, applyCommand, obey)
	}
	command := p.Getenv("CNI_COMMAND")
	if command == "" {
		return introduce(p)
	}
	return finish(p, command, serve) // whatever arguments a runtime gives
}

// introduce answers a person, who gives no CNI_COMMAND. It returns the exit status.
func introduce(p Process) int {
	out, arg := p.Stderr, ""
	if len(p.Args) > 0 {
		out, arg = p.Stdout, p.Args[0]
	}
	switch {
	case len(p.Args) > 1 || !slices.Contains([]string{"", "-h", "-help", "--help", "-version", "--version"}, arg):
		_, _ = fmt.Fprintf(p.Stderr, "weft-cni: unexpected argument %s; see weft-cni --help\n", fault.Quote(p.Args[len(p.Args)-1]))
		return 2
	case strings.HasSuffix(arg, "-version"):
		_, _ = fmt.Fprintf(out, "weft-cni %s\n", p.Version())
	default:
		_, _ = fmt.Fprintf(out, "%s\n\nCNI versions: %s\n", about, strings.Join(version.All.SupportedVersions(), ", "))
	}
	return 0
}

// finish carries a command out and prints the answer.
func finish(p Process, command string, serve func(context.Context, Process, string) ([]byte, error)) int {
	// No signal is caught: SIGTERM ends this process as SIGKILL would, which the journal is
	// made for, and catching one costs threads in every call.
	out, err := guarded(context.Background(), p, command, serve)
	if err == nil {
		if _, err = p.Stdout.Write(out); err == nil {
			return 0
		}
	}
	answer := cniError(command, err)
	b, _ := json.MarshalIndent(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{version.Current(), answer}, "", "    ")
	_, _ = p.Stdout.Write(append(b, '\n'))
	return 1
}

// guarded makes a panic an error.
func guarded(ctx context.Context, p Process, command string, serve func(context.Context, Process, string) ([]byte, error)) (out []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			_, _ = fmt.Fprintf(p.Stderr, "weft-cni: panic: %v\n%s", r, debug.Stack())
			out, err = nil, fault.New(fault.Internal, "weft-cni", "", "internal fault in %s: %v", command, r)
		}
	}()
	return serve(ctx, p, command)
}

func serve(ctx context.Context, p Process, command string) (out []byte, err error) {
	if command == "VERSION" {
		return json.Marshal(version.All)
	}
	req, err := read(p, command)
	if err != nil {
		return nil, err
	}
	h := newHands(p, req)
	defer h.close()
	verbs := map[string]func(context.Context) ([]byte, error){
		"ADD":    h.add,
		"DEL":    h.del,
		"CHECK":  h.check,
		"STATUS": h.status,
		"GC":     h.gc,
	}
	verb, ok := verbs[command]
	if !ok {
		return nil, fault.New(fault.Environment, "CNI_COMMAND", "", "unknown command %s", fault.Quote(command))
	}
	out, err = verb(ctx)
	if err != nil {
		h.log.error(err.Error())
	}
	return out, err
}

// read takes the request from the environment and stdin.
func read(p Process, command string) (request, error) {
	req := request{command: command}
	into := map[string]*string{
		"CNI_CONTAINERID": &req.sandbox.ContainerID,
		"CNI_NETNS":       &req.sandbox.Netns,
		"CNI_IFNAME":      &req.sandbox.IfName,
		"CNI_ARGS":        &req.sandbox.Args,
		"CNI_PATH":        &req.sandbox.Path,
	}
	for _, v := range variables() {
		value := p.Getenv(v.name)
		needed := strings.Contains(" "+v.needed+" ", " "+command+" ")
		switch {
		case value == "" && needed:
			return req, fault.New(fault.Environment, v.name, "", "not set, but %s needs it", command)
		case value != "" && needed && v.validate != nil:
			if err := v.validate(value); err != nil {
				return req, fault.New(fault.Environment, v.name, "", "%s %w", fault.Quote(value), err)
			}
		}
		*into[v.name] = value
	}
	// What has no record cannot be made, and is not known. DEL of it has less to do.
	if sb := req.sandbox; command == "ADD" || command == "CHECK" {
		if most := journal.MaxKey - len(recordKey("", sb.IfName)); len(sb.ContainerID) > most {
			return req, fault.New(fault.Environment, "CNI_CONTAINERID", "", "%s is longer than the %d bytes that a record's name has for it beside CNI_IFNAME",
				fault.Quote(sb.ContainerID), most)
		}
	}
	b, err := io.ReadAll(io.LimitReader(p.Stdin, maxStdin+1))
	if err != nil {
		return req, fault.New(fault.Environment, "stdin", "", "read configuration: %v", err)
	}
	if len(b) > maxStdin {
		return req, fault.New(fault.Config, "configuration", "", "longer than %d bytes", maxStdin)
	}
	req.stdin = b
	return req, nil
}

// cniError maps any error to the CNI error that is printed. The code is that of
// the first cause that has one; the text tells all of them.
func cniError(command string, err error) *types.Error {
	out := &types.Error{Code: uint(fault.Internal)}
	text := strings.ReplaceAll(err.Error(), "\n", "; ") // joined errors
	delegate, isDelegate := errors.AsType[*chain.Error](err)
	f, isFault := errors.AsType[*fault.Fault](err)
	switch {
	case isDelegate:
		out.Code, out.Details = delegate.Code, delegate.Details
	case isFault:
		out.Code = uint(f.Code)
	case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN):
		out.Code = uint(fault.TryLater) // the node has too little of something
	}
	out.Msg, out.Details = safeText(command, text), safeText(command, out.Details)
	return out
}

// safeText bounds a text. containerd takes a DEL error that says "not found" for
// success, whoever wrote it; a delegate's words are changed so that it is retried.
func safeText(command, text string) string {
	text = fault.Bound(text, maxErrorText)
	if command == "DEL" {
		return fault.Hyphenate(text)
	}
	return text
}
