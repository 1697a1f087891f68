// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package confpub

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// File is a file that may be the primary conf.
type File struct {
	Path    string
	Data    []byte
	Chained [][]byte // the plugins in the sub-directory that the conf's name leads to
	Err     error    // why it could not be read
}

// Choice is what Find found.
type Choice struct {
	Path    string   // the file that is the primary, "" = none
	Primary []byte   // its conf, with the chained plugins; nil when Fault says why there is none
	Fault   error    // why Path cannot be used, or why there is no Path
	Skipped []error  // broken files before Path
	Own     []string // files of Weft's or Multus' making
}

// Errors of a Choice and of a Status, wrapped.
var (
	ErrNone   = errors.New("no conf of a pod network is there")
	ErrGone   = errors.New("the primary conf is gone")
	ErrBroken = errors.New("the primary conf is broken")
	ErrNested = errors.New("the primary conf runs Weft or Multus itself")
)

// Find takes the first file, by the name within its directory, that is a conf with a
// plugin and of neither Weft's nor Multus' making. A broken file is passed over, unless
// it is current, the primary until now: then it stays the primary and is told to be broken.
func Find(files []File, current string) Choice {
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b File) int { return cmp.Compare(path.Base(a.Path), path.Base(b.Path)) })
	var c Choice
	for _, f := range files {
		primary, err := judge(f)
		switch {
		case errors.Is(err, errOwn):
			c.Own = append(c.Own, f.Path)
		case err == nil || errors.Is(err, ErrNested):
			c.Path, c.Primary, c.Fault = f.Path, primary, err
			return c
		case f.Path == current:
			c.Path, c.Fault = f.Path, fmt.Errorf("%w: %w", ErrBroken, err)
			return c
		default:
			c.Skipped = append(c.Skipped, err)
		}
	}
	c.Fault = ErrNone
	return c
}

// errOwn says that a file is of Weft's or Multus' making.
var errOwn = errors.New("is of Weft's or Multus' making")

// judge gives the conf of a file as the delegate that it is to be.
func judge(f File) ([]byte, error) {
	object := "file " + f.Path
	if f.Err != nil {
		return nil, fault.New(fault.Config, object, "", "%w", f.Err)
	}
	name, plugins := outline(f.Data)
	// Also one that is broken in some other place is no primary.
	if name == Name || len(plugins) > 0 && ours(word(plugins[0], "type")) {
		return nil, fmt.Errorf("%s %w", object, errOwn)
	}
	for _, raw := range f.Chained {
		if o, err := netconf.ParseObject(raw); err == nil {
			plugins = append(plugins, o)
		}
	}
	for i, p := range plugins {
		if kind := nested(p); kind != "" {
			return nil, fault.New(fault.Config, object, fmt.Sprintf("plugins[%d]", i), "type %s: %w", fault.Quote(kind), ErrNested)
		}
	}
	n, err := netconf.ParseFile(f.Data, f.Chained, object)
	if err != nil {
		return nil, err
	}
	if n.Name == "" {
		return nil, fault.New(fault.Config, object, "name", "is missing, the name of a network is needed")
	}
	return delegate(f, n)
}

// outline reads the name and the plugins of a conf, as far as they can be read: netconf
// gives a type that would call Weft again for a fault, and not for a type.
func outline(data []byte) (name string, plugins []*netconf.Object) {
	o, err := netconf.ParseObject(data)
	if err != nil {
		return "", nil
	}
	raw, list := o.Get("plugins")
	if !list || netconf.IsNull(raw) {
		return word(o, "name"), []*netconf.Object{o}
	}
	return word(o, "name"), objects(raw)
}

// objects gives the objects among a JSON array's elements; of what is no array, none.
func objects(raw json.RawMessage) []*netconf.Object {
	elements, _ := netconf.Elements(raw)
	var all []*netconf.Object
	for _, e := range elements {
		if o, err := netconf.Inner(e); err == nil {
			all = append(all, o)
		}
	}
	return all
}

// word is the string under a key, "" when there is none.
func word(o *netconf.Object, key string) string {
	raw, _ := o.Get(key)
	s, err := netconf.Decode[string](raw, "a string")
	if err != nil {
		return ""
	}
	return s
}

// ours says whether a plugin type is Weft's, or Multus', which Weft stands in for.
func ours(kind string) bool { return kind == Type || kind == "multus" || kind == "multus-shim" }

// nested is the type by which a plugin would run Weft or Multus, "" when it would not: its
// own, or that of what it delegates to in the two usual ways.
func nested(p *netconf.Object) string {
	if kind := word(p, "type"); ours(kind) {
		return kind
	}
	raw, _ := p.Get("delegates")
	inner := objects(raw)
	if raw, ok := p.Get("delegate"); ok {
		if o, err := netconf.Inner(raw); err == nil {
			inner = append(inner, o)
		}
	}
	for _, o := range inner {
		if kind := word(o, "type"); ours(kind) {
			return kind
		}
	}
	return ""
}

// delegate is the conf's bytes as they stand. Plugins of a sub-directory, for which nobody
// looks beside a delegate, join its list.
func delegate(f File, n netconf.Network) ([]byte, error) {
	data := bytes.TrimSpace(f.Data)
	o, err := netconf.ParseObject(data)
	if err != nil {
		return nil, fault.New(fault.Config, "file "+f.Path, "", "%w", err)
	}
	raw, list := o.Get("plugins")
	_, single := o.Get("type")
	if len(f.Chained) == 0 || n.LoadOnlyInlinedPlugins || single && (!list || netconf.IsNull(raw)) {
		return data, nil
	}
	plugins := make([]string, len(n.Plugins))
	for i, p := range n.Plugins {
		plugins[i] = string(bytes.TrimSpace(p.Conf))
	}
	o.Set("plugins", json.RawMessage("["+strings.Join(plugins, ",")+"]"))
	return o.Bytes(), nil
}
