// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
)

// MaxBytes bounds one configuration (architecture 4.1).
const MaxBytes = 2 << 20

// MaxPlugins bounds the plugins of one list (architecture 4.1): a call must be able to run
// the whole chain before its deadline, or the network could never be deleted.
const MaxPlugins = 64

// ErrNoPlugins is the cause of ParseNetwork's fault for a configuration with neither
// "type" nor "plugins"; the Network that comes with it has everything else. Such a list
// lives from the plugins in its sub-directory (ParseFile).
var ErrNoPlugins = errors.New("neither type nor plugins")

// ParseNetwork reads a network's configuration in either form. object says what holds
// it, for the faults, which are *fault.Fault of code 7, joined. Name and CNIVersion are ""
// when they are not written. b must not change afterwards.
func ParseNetwork(b []byte, object string) (Network, error) {
	var p Parser
	return p.Network(b, object)
}

// Parser reads many networks in a row: it uses its memory again, its strings and its
// capabilities, which nobody may change. The zero value is ready.
type Parser struct {
	conf, inList, inner Object
	// by their JSON
	words        map[string]string
	capabilities map[string]map[string]bool
}

// Network is ParseNetwork.
func (p *Parser) Network(b []byte, object string) (Network, error) {
	one := parser{Parser: p, object: object}
	n := one.network(b)
	return n, errors.Join(one.faults...)
}

// word is Decode of a string that others are likely to repeat: the networks of one pod
// have much in common.
func (p *Parser) word(raw json.RawMessage) (string, error) {
	if known, ok := p.words[string(raw)]; ok {
		return known, nil
	}
	s, err := Decode[string](raw, "a string")
	if err == nil {
		if p.words == nil {
			p.words = map[string]string{}
		}
		p.words[string(raw)] = s
	}
	return s, err
}

// ParseFile is ParseNetwork for a file with the plugins of its sub-directory, which
// are appended to a list unless it has loadOnlyInlinedPlugins.
func ParseFile(b []byte, chained [][]byte, object string) (Network, error) {
	p := parser{Parser: &Parser{}, object: object}
	n := p.network(b)
	err := errors.Join(p.faults...)
	if !p.list || n.LoadOnlyInlinedPlugins || len(chained) == 0 || err != nil && !errors.Is(err, ErrNoPlugins) {
		return n, err
	}
	more, err := ParseChained(chained, object)
	n.Plugins = append(n.Plugins, more...)
	return n, err
}

// ParseChained reads plugin objects that stand in files of their own.
func ParseChained(chained [][]byte, object string) ([]Plugin, error) {
	p := parser{Parser: &Parser{}, object: object}
	plugins := make([]Plugin, 0, len(chained))
	for i, b := range chained {
		at := element{"chained plugins", i}
		if o := p.whole(b, at.key("")); o != nil {
			plugins = append(plugins, p.plugin(o, at))
		}
	}
	return plugins, errors.Join(p.faults...)
}

// parser collects the faults of one configuration.
type parser struct {
	*Parser
	object string
	list   bool // the form of what was read: plugins of a sub-directory may join a list
	faults []error
}

// MaxFaults is how many faults of one configuration are told: whoever writes one with a million is
// not to fill the memory of who reads it.
const MaxFaults = 50

func (p *parser) fault(field, format string, args ...any) {
	switch {
	case len(p.faults) > MaxFaults:
		return
	case len(p.faults) == MaxFaults:
		field, format, args = "", "has more faults than are told", nil
	}
	p.faults = append(p.faults, fault.New(fault.Config, p.object, field, format, args...))
}

// whole reads the bytes of one whole configuration.
func (p *parser) whole(b []byte, field string) *Object {
	if len(b) > MaxBytes {
		p.fault(field, "is larger than %d bytes", MaxBytes)
		return nil
	}
	err := CheckJSON(b)
	if err == nil {
		err = p.conf.Reset(bytes.TrimSpace(b))
	}
	if err != nil {
		p.fault(field, "%w", err)
		return nil
	}
	return &p.conf
}

func (p *parser) network(b []byte) Network {
	var n Network
	o := p.whole(b, "")
	if o == nil {
		return n
	}
	n.Name = p.text(o, "name")
	if n.Name != "" {
		if err := NetworkName(n.Name); err != nil {
			p.fault("name", "%s %w", fault.Quote(n.Name), err)
		}
	}
	n.CNIVersion = p.version(o)
	plugins, list := o.Get("plugins")
	if _, typed := o.Get("type"); (!list || IsNull(plugins)) && typed {
		n.Plugins = []Plugin{p.plugin(o, element{})}
		return n
	}
	p.list = true
	n.DisableCheck = p.flag(o, "disableCheck")
	n.DisableGC = p.flag(o, "disableGC")
	n.LoadOnlyInlinedPlugins = p.flag(o, "loadOnlyInlinedPlugins")
	if !list || IsNull(plugins) {
		p.fault("", "has %w", ErrNoPlugins)
		return n
	}
	n.Plugins = p.plugins(plugins)
	return n
}

func (p *parser) plugins(raw json.RawMessage) []Plugin {
	if err := checkArray(raw); err != nil {
		p.fault("plugins", "%w", err)
		return nil
	}
	all := make([]Plugin, 0, 2)
	at := element{list: "plugins"}
	for i := skipSpace(raw, 1); raw[i] != ']'; at.i++ {
		end := skipValue(raw, i)
		if at.i < MaxPlugins { // what is beyond is refused below, and not looked at
			all = p.take(all, raw[i:end:end], at)
		}
		i = skipComma(raw, end)
	}
	switch {
	case at.i == 0:
		p.fault("plugins", "is empty, a list needs a plugin")
	case at.i > MaxPlugins:
		// The one that says it all, so that it is not left out after others.
		p.faults = []error{fault.New(fault.Config, p.object, "plugins", "holds %d plugins, at most %d are allowed", at.i, MaxPlugins)}
	}
	return all
}

// take reads one plugin of a list.
func (p *parser) take(all []Plugin, raw json.RawMessage, at element) []Plugin {
	if err := p.inList.Reset(raw); err != nil {
		p.fault(at.key(""), "%w", err)
		return all
	}
	return append(all, p.plugin(&p.inList, at))
}

// element is where a plugin stands in a list; the zero value is one without a list.
type element struct {
	list string
	i    int
}

// key is the field of a plugin's key, or with "" of the plugin.
func (e element) key(name string) string {
	if e.list == "" {
		return name
	}
	return join(e.list+"["+strconv.Itoa(e.i)+"]", name)
}

// plugin reads the keys of one plugin that matter to who runs it.
func (p *parser) plugin(o *Object, at element) Plugin {
	plugin := Plugin{Conf: o.Bytes()}
	raw, ok := o.Get("type")
	if !ok {
		p.fault(at.key("type"), "is missing, the name of a plugin is needed")
	} else if name, err := p.word(raw); err != nil || IsNull(raw) {
		p.fault(at.key("type"), "is %s, a string is needed", Kind(raw))
	} else if err := PluginType(name); err != nil {
		p.fault(at.key("type"), "%s %w", fault.Quote(name), err)
	} else if name == "weft-cni" || name == "multus" || name == "multus-shim" {
		p.fault(at.key("type"), "%s would call Weft again, without end", fault.Quote(name))
	} else {
		plugin.Type = name
	}
	if raw, ok := o.Get("capabilities"); ok {
		caps, ok := p.booleans(raw)
		if !ok {
			p.fault(at.key("capabilities"), "is %s, an object of booleans is needed", describe(raw))
		}
		plugin.Capabilities = caps
	}
	plugin.IPAM = p.ipam(o, at)
	p.args(o, at)
	return plugin
}

// ipam reads the name of the plugin that hands out addresses: it is looked up as the
// plugin itself is. What else a plugin may make of its "ipam" is its own business.
func (p *parser) ipam(o *Object, at element) string {
	raw, ok := o.Get("ipam")
	if !ok || p.inner.Reset(raw) != nil {
		return ""
	}
	if raw, ok = p.inner.Get("type"); !ok {
		return ""
	}
	name, err := p.word(raw)
	if err != nil || name == "" {
		return ""
	}
	if err := PluginType(name); err != nil {
		p.fault(at.key("ipam.type"), "%s %w", fault.Quote(name), err)
	}
	return name
}

// booleans reads an object of them; null is none, and inside it false.
func (p *Parser) booleans(raw json.RawMessage) (all map[string]bool, ok bool) {
	if IsNull(raw) {
		return nil, true
	}
	if known, ok := p.capabilities[string(raw)]; ok {
		return known, true
	}
	if p.inner.Reset(raw) != nil {
		return nil, false
	}
	all = make(map[string]bool, len(p.inner.members))
	for _, m := range p.inner.members {
		name, _ := p.word(m.key)
		switch string(m.value) {
		case "true":
			all[name] = true
		case "false", "null":
			all[name] = false
		default:
			return nil, false
		}
	}
	if p.capabilities == nil {
		p.capabilities = map[string]map[string]bool{}
	}
	p.capabilities[string(raw)] = all
	return all, true
}

// args checks the two objects that a pod's cni-args are merged into.
func (p *parser) args(o *Object, at element) {
	raw, ok := o.Get("args")
	if !ok || IsNull(raw) {
		return
	}
	if err := p.inner.Reset(raw); err != nil {
		p.fault(at.key("args"), "%w", err)
		return
	}
	if raw, ok := p.inner.Get("cni"); ok && !IsNull(raw) {
		if err := CheckObject(raw); err != nil {
			p.fault(at.key("args.cni"), "%w", err)
		}
	}
}

func (p *parser) text(o *Object, key string) string {
	raw, ok := o.Get(key)
	if !ok {
		return ""
	}
	s, err := p.word(raw)
	if err != nil {
		p.fault(key, "%w", err)
	}
	return s
}

// flag reads a boolean, which libcni also takes as the word in quotes.
func (p *parser) flag(o *Object, key string) bool {
	raw, ok := o.Get(key)
	if !ok || IsNull(raw) {
		return false
	}
	word := strings.ToLower(string(raw))
	switch strings.Trim(word, `"`) {
	case "true":
		return true
	case "false":
		return false
	}
	p.fault(key, "is %s, true or false is needed", describe(raw))
	return false
}

// version is cniVersion, or the newest of cniVersions that is known here.
func (p *parser) version(o *Object) string {
	v := p.text(o, "cniVersion")
	if v != "" && !KnownVersion(v) {
		p.fault("cniVersion", "%s is none of %s", fault.Quote(v), strings.Join(Versions(), ", "))
	}
	raw, ok := o.Get("cniVersions")
	if !ok || IsNull(raw) {
		return v
	}
	offered, err := Decode[[]string](raw, "an array of strings")
	if err != nil {
		p.fault("cniVersions", "%w", err)
	}
	offered = append(offered, v)
	for _, known := range slices.Backward(Versions()) {
		if slices.Contains(offered, known) {
			return known
		}
	}
	if v == "" && len(offered) > 1 {
		p.fault("cniVersions", "names none of %s", strings.Join(Versions(), ", "))
	}
	return v
}

// Versions are the CNI versions that Weft speaks, oldest first.
func Versions() []string {
	return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

// KnownVersion says whether v is one of Versions.
func KnownVersion(v string) bool { return slices.Contains(Versions(), v) }

// Declares says whether a plugin of the network declares the capability.
func (n *Network) Declares(capability string) bool {
	for _, p := range n.Plugins {
		if p.Capabilities[capability] {
			return true
		}
	}
	return false
}
