// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/results"
	"github.com/weftnet/weft/internal/host/brief"
)

// The CNI commands that run a chain.
const (
	cmdAdd    = "ADD"
	cmdDel    = "DEL"
	cmdCheck  = "CHECK"
	cmdStatus = "STATUS"
	cmdGC     = "GC"
)

// Call is one command on one network. STATUS and GC read Network, Path and Inherit alone.
type Call struct {
	Network netconf.Network
	// RuntimeConfig holds capability arguments; a plugin gets those that it declares.
	RuntimeConfig map[string]json.RawMessage
	ContainerID   string
	Netns         string // path; may be empty for DEL
	IfName        string
	Args          string // CNI_ARGS
	Path          string // CNI_PATH: directories of plugin binaries, colon-separated
	// PrevResult is a result of any version. DEL and CHECK: what ADD answered. ADD: what
	// the first plugin starts from, or nil.
	PrevResult []byte
	// Inherit are open files that every plugin gets as descriptors 3 and up.
	Inherit []*os.File
	// Started is called when a plugin has been started; may be nil.
	Started func(plugin int, g Group)
}

// Error is the failure of one plugin.
type Error struct {
	Plugin  string // its type
	Index   int    // its place in the chain
	Command string // ADD, DEL, …
	// Code is the CNI error code: the plugin's own, or one of fault's (Config, Result,
	// Delegate) when the plugin gave none.
	Code uint
	// Msg and Details are the plugin's own texts where it gave any, cut at 4 KiB.
	Msg, Details string
	Err          error // cause, if there is one
}

// Error is the text with the plugin that it came from. It may cite the plugin, hence
// hold any words.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s by plugin %s (plugins[%d]): %s", e.Command, fault.Quote(e.Plugin), e.Index, e.Msg)
	if e.Details != "" {
		text += "; " + e.Details
	}
	return text
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Runner runs chains. It is safe for concurrent use when its stderr is.
type Runner struct {
	stderr io.Writer
	env    []string
}

// New makes a Runner. Plugins' stderr goes to stderr, bounded; nil drops it. env is this
// process's environment as "name=value"; plugins see those variables of it that a CNI
// plugin may expect.
func New(stderr io.Writer, env []string) *Runner {
	if stderr == nil {
		stderr = io.Discard
	}
	return &Runner{stderr: stderr, env: allowed(env)}
}

// Add runs ADD of each plugin in order and returns what the last one answered. It stops at
// the first failure, an *Error, without undoing anything.
func (r *Runner) Add(ctx context.Context, c Call) (*results.Result, error) {
	if len(c.Network.Plugins) == 0 {
		return nil, &Error{Command: cmdAdd, Code: uint(fault.Config), Msg: "the network has no plugins"}
	}
	version := c.Network.CNIVersion
	prev, err := convert(c.PrevResult, version)
	if err != nil {
		return nil, fmt.Errorf("convert first prevResult: %w", err)
	}
	var out *results.Result
	for i := range c.Network.Plugins {
		stdout, err := r.plugin(ctx, &c, cmdAdd, i, keys{prevResult: prev, runtimeConfig: c.RuntimeConfig})
		if err != nil {
			return nil, err
		}
		if out, prev, err = c.judge(i, stdout); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// judge checks that a plugin answered ADD with a result, and converts it for the next.
func (c *Call) judge(i int, stdout []byte) (result *results.Result, prev []byte, err error) {
	bad := c.failure(cmdAdd, i, fault.Result)
	if e, ok := errorObject(stdout); ok {
		// Exit status 0 with an error on stdout: what was said counts.
		bad.Code, bad.Msg, bad.Details = e.Code, e.Msg, e.Details
		return nil, nil, bad
	}
	result, err = results.Parse(stdout, c.Network.CNIVersion)
	if err == nil {
		prev, err = result.Encode(c.Network.CNIVersion)
	}
	if err != nil {
		bad.Msg, bad.Err = "answered with no CNI result: "+err.Error(), err
		return nil, nil, bad
	}
	return result, prev, nil
}

// Del runs DEL of every plugin in reverse order. It never stops at a failure; its
// error joins an *Error for each plugin that failed. From CNI 0.4.0 on plugins get
// prevResult; one that cannot be read is left out, since undoing without it is
// better than not undoing. Addresses that a plugin forgets are released (release).
func (r *Runner) Del(ctx context.Context, c Call) error {
	k := keys{runtimeConfig: c.RuntimeConfig}
	if atLeast(c.Network.CNIVersion, 0, 4) {
		if prev, err := convert(c.PrevResult, c.Network.CNIVersion); err == nil {
			k.prevResult = prev
		}
	}
	var errs []error
	for i := range slices.Backward(c.Network.Plugins) {
		// i+1 plugins are left, this one included.
		errs = append(errs, r.shared(ctx, &c, cmdDel, i, i+1, k), r.release(ctx, &c, i, k))
	}
	return errors.Join(errs...)
}

// Check runs CHECK of each plugin in order and stops at the first failure. A network
// older than CNI 0.4.0 or with disableCheck has no CHECK: nil.
func (r *Runner) Check(ctx context.Context, c Call) error {
	if !atLeast(c.Network.CNIVersion, 0, 4) || c.Network.DisableCheck {
		return nil
	}
	prev, err := convert(c.PrevResult, c.Network.CNIVersion)
	if err != nil {
		return fmt.Errorf("convert prevResult: %w", err)
	}
	for i := range c.Network.Plugins {
		if _, err := r.plugin(ctx, &c, cmdCheck, i, keys{prevResult: prev, runtimeConfig: c.RuntimeConfig}); err != nil {
			return err
		}
	}
	return nil
}

// Status runs STATUS of each plugin in order and stops at the first failure. A network
// older than CNI 1.1.0 has no STATUS: nil.
func (r *Runner) Status(ctx context.Context, c Call) error {
	if !atLeast(c.Network.CNIVersion, 1, 1) {
		return nil
	}
	for i := range c.Network.Plugins {
		if _, err := r.plugin(ctx, &c, cmdStatus, i, keys{}); err != nil {
			return err
		}
	}
	return nil
}

// GC runs GC of every plugin with the attachments that are still in use. It never
// stops at a failure; its error joins an *Error for each plugin that failed. A network
// older than CNI 1.1.0 or with disableGC has no GC: nil.
func (r *Runner) GC(ctx context.Context, c Call, valid []netconf.ValidAttachment) error {
	if !atLeast(c.Network.CNIVersion, 1, 1) || c.Network.DisableGC {
		return nil
	}
	if valid == nil {
		valid = []netconf.ValidAttachment{} // "none is in use" is a list, not null
	}
	list, err := json.Marshal(valid)
	if err != nil {
		return fmt.Errorf("encode valid attachments: %w", err)
	}
	n := len(c.Network.Plugins)
	var errs []error
	for i := range c.Network.Plugins {
		errs = append(errs, r.shared(ctx, &c, cmdGC, i, n-i, keys{valid: list}))
	}
	return errors.Join(errs...)
}

// shared runs one plugin with its share of the time that is left for several.
func (r *Runner) shared(ctx context.Context, c *Call, command string, i, left int, k keys) error {
	_, err := r.plugin(Share(ctx, left, leastShare), c, command, i, k)
	return err
}

// leastShare is what a plugin needs on a busy machine. A chain so long that its plugins'
// shares are smaller makes progress all the same.
const leastShare = time.Second

// Share bounds the first of several works that are left, so that one that hangs leaves time
// for the others: an equal part of the time until ctx's deadline, or least when that is
// longer, but never more than half of the time.
func Share(ctx context.Context, left int, least time.Duration) context.Context {
	deadline, ok := ctx.Deadline()
	if !ok || left < 2 {
		return ctx
	}
	rest := time.Until(deadline)
	return brief.WithTimeout(ctx, max(rest/time.Duration(left), min(least, rest/2)))
}

// plugin runs one command of one plugin. The error is an *Error.
func (r *Runner) plugin(ctx context.Context, c *Call, command string, i int, k keys) ([]byte, error) {
	return r.execute(ctx, c, command, i, c.Network.Plugins[i].Type, k)
}

// execute runs the plugin of a type with the configuration of plugin i.
func (r *Runner) execute(ctx context.Context, c *Call, command string, i int, pluginType string, k keys) ([]byte, error) {
	bad := &Error{Plugin: pluginType, Index: i, Command: command, Code: uint(fault.Config)}
	conf, err := pluginConf(c.Network, i, k)
	if err != nil {
		bad.Msg, bad.Err = err.Error(), err
		return nil, bad
	}
	binary, err := Find(pluginType, c.Path)
	if err != nil {
		bad.Code, bad.Msg, bad.Err = uint(fault.Delegate), err.Error(), err
		return nil, bad
	}
	p := process{
		path: binary, env: append(slices.Clone(r.env), c.environ(command)...), stdin: conf,
		inherit: c.Inherit, stderr: r.stderr,
	}
	if c.Started != nil {
		p.started = func(g Group) { c.Started(i, g) }
	}
	stdout, err := p.run(ctx)
	if err != nil {
		return nil, p.failure(bad, stdout, err)
	}
	return stdout, nil
}

func (c *Call) failure(command string, i int, code fault.Code) *Error {
	return &Error{Plugin: c.Network.Plugins[i].Type, Index: i, Command: command, Code: uint(code)}
}
