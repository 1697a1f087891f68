// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package confpub

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// What every published conf says.
const (
	Name    = "weft"
	Type    = "weft-cni"
	Version = "1.1.0"
)

// podAnnotations is the capability by which the runtime hands over the pod's annotations.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// Options say what is published and where.
type Options struct {
	ConfDir  string // the runtime's directory, by the path that the host knows it under
	ConfName string // the file in it, *.conflist
	// PrimaryConf is the one file to take the primary from; "" = found by content. For
	// Render it is the file that the conf was taken from.
	PrimaryConf string
	// Extra are further keys of architecture 4.1 for the published conf.
	Extra       map[string]json.RawMessage
	AgentSocket string
	StateDir    string // "" = the default
	BinDir      string // "" = the default
}

// path is the published file.
func (o Options) path() string { return filepath.Join(o.ConfDir, o.ConfName) }

// Validate tells every fault of the options, each with its key.
func (o Options) Validate() error {
	var faults []error
	bad := func(key, format string, args ...any) {
		faults = append(faults, fault.New(fault.Config, "", key, format, args...))
	}
	for _, p := range []struct{ key, value string }{
		{"confDir", o.ConfDir},
		{"agentSocket", o.AgentSocket},
		{"primaryConf", cmp.Or(o.PrimaryConf, "/")},
		{"stateDir", cmp.Or(o.StateDir, "/")},
		{"binDir", cmp.Or(o.BinDir, "/")},
	} {
		if !filepath.IsAbs(p.value) {
			bad(p.key, "%s is no absolute path", fault.Quote(p.value))
		}
	}
	if o.ConfName == "" || o.ConfName[0] == '.' || o.ConfName != path.Base(o.ConfName) || path.Ext(o.ConfName) != ".conflist" {
		bad("confName", "%s is no file name that ends in .conflist", fault.Quote(o.ConfName))
	}
	if o.PrimaryConf != "" && filepath.Clean(o.PrimaryConf) == o.path() {
		bad("primaryConf", "%s is the file that is published", fault.Quote(o.PrimaryConf))
	}
	for _, key := range slices.Sorted(maps.Keys(o.Extra)) {
		if err := cmp.Or(refuse(key), netconf.CheckJSON(o.Extra[key])); err != nil {
			bad(key, "%w", err)
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	_, err := o.warnings()
	return err
}

// warnings are what the hands will say of every conf with these options.
func (o Options) warnings() ([]fault.Warning, error) {
	b, err := Render(o, []byte(`{"cniVersion":"1.1.0","name":"check","type":"check"}`))
	if err != nil {
		return nil, err
	}
	_, warnings, err := read(b)
	return warnings, err
}

// refuse says why an extra key cannot be in a published conf.
func refuse(key string) error {
	const (
		set     = "is set by the agent itself, it cannot be given"
		runtime = "is written by the runtime, it cannot be given"
		without = "is for work without an agent, it cannot be given"
	)
	switch key {
	case "cniVersion", "name", "type", "capabilities", "delegates", "clusterNetwork", "agentSocket", "stateDir", "binDir", "primaryConf":
		return errors.New(set)
	case "runtimeConfig", "prevResult", "cni.dev/valid-attachments", "cni.dev/attachments":
		return errors.New(runtime)
	case "kubeconfig", "manifests":
		return errors.New(without)
	case "args", "ipam", "dns":
		return errors.New("has no effect")
	}
	if !slices.ContainsFunc(netconf.Keys(), func(k netconf.Key) bool { return k.Name == key }) {
		return errors.New("is no key of Weft's CNI configuration")
	}
	return nil
}

// Render makes the conf to be published, with primary as its default network. The error
// says what the hands would refuse.
func Render(o Options, primary []byte) ([]byte, error) {
	n, err := netconf.ParseNetwork(primary, "primary conf")
	if err != nil {
		return nil, err
	}
	plugin := []member{
		{"type", netconf.String(Type)},
		{"capabilities", capabilities(n)},
		{"agentSocket", netconf.String(o.AgentSocket)},
	}
	if o.StateDir != "" && o.StateDir != netconf.DefaultStateDir {
		plugin = append(plugin, member{"stateDir", netconf.String(o.StateDir)})
	}
	if o.BinDir != "" && o.BinDir != netconf.Defaults().BinDir {
		plugin = append(plugin, member{"binDir", netconf.String(o.BinDir)})
	}
	for _, key := range slices.Sorted(maps.Keys(o.Extra)) {
		plugin = append(plugin, member{key, o.Extra[key]})
	}
	if o.PrimaryConf != "" {
		plugin = append(plugin, member{"primaryConf", netconf.String(o.PrimaryConf)})
	}
	plugin = append(plugin, member{"delegates", slices.Concat([]byte("["), bytes.TrimSpace(primary), []byte("]"))})

	inner := object(plugin, "      ")
	out := object([]member{
		{"cniVersion", netconf.String(Version)},
		{"name", netconf.String(Name)},
		{"plugins", slices.Concat([]byte("[\n    "), inner, []byte("\n  ]"))},
	}, "  ")
	out = append(out, '\n')
	_, err = Read(out)
	return out, err
}

// capabilities are those of all plugins of the primary, and that of Weft's own.
func capabilities(n netconf.Network) json.RawMessage {
	all := map[string]bool{podAnnotations: true}
	for _, p := range n.Plugins {
		for name, on := range p.Capabilities {
			if on {
				all[name] = true
			}
		}
	}
	b, _ := json.Marshal(all) // names and booleans
	return b
}

// member is a key of a JSON object and its value, which is written as it stands.
type member struct {
	key   string
	value json.RawMessage
}

// object writes an object, one member a line.
func object(members []member, indent string) []byte {
	var b bytes.Buffer
	for i, m := range members {
		start := ",\n"
		if i == 0 {
			start = "{\n"
		}
		fmt.Fprintf(&b, "%s%s%s: %s", start, indent, netconf.String(m.key), m.value)
	}
	fmt.Fprintf(&b, "\n%s}", indent[2:])
	return b.Bytes()
}

// Published is what a conf that was published says.
type Published struct {
	PrimaryConf string // the file that the primary was taken from
	Primary     []byte // its conf, as it was then
}

// Read reads a conf that Render made. The error says what the hands would refuse, or that
// it is none of Render's.
func Read(b []byte) (Published, error) {
	p, _, err := read(b)
	return p, err
}

func read(b []byte) (p Published, warnings []fault.Warning, err error) {
	const object = "published conf"
	outer, err := netconf.ParseObject(b)
	if err != nil {
		return p, nil, fault.New(fault.Config, object, "", "%w", err)
	}
	raw, _ := outer.Get("plugins")
	plugins := objects(raw)
	if word(outer, "name") != Name || word(outer, "cniVersion") != Version || len(plugins) != 1 || word(plugins[0], "type") != Type {
		return p, nil, fault.New(fault.Config, object, "", "is not of this Weft's making")
	}
	o := plugins[0]
	raw, _ = o.Get("delegates")
	primaries, err := netconf.Elements(raw)
	if err != nil || len(primaries) != 1 {
		return p, nil, fault.New(fault.Config, object, "plugins[0].delegates", "does not hold one network")
	}
	// As the runtime hands it to the plugin.
	o.Set("name", netconf.String(Name))
	o.Set("cniVersion", netconf.String(Version))
	conf, warnings, err := netconf.Parse(o.Bytes())
	if err != nil {
		return p, warnings, err
	}
	return Published{PrimaryConf: conf.PrimaryConf, Primary: primaries[0]}, warnings, nil
}
