// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/selection"
)

// resolved is a network that was looked up, ready but for what an attachment adds.
type resolved struct {
	network  netconf.Network
	label    string // as network-status shows it
	nad      NADRef // zero for a network that is no NAD
	resource string
	file     string // path of the file that it came from, "" otherwise
	ok       bool
	shared   bool       // the plugins are somebody's already: the input's, or a slot's
	why      []decision // with Explain
}

// resolve makes the list of slots in their order: the default network, the
// configuration's others, the pod's, the auxiliary chain. What cannot be looked up
// yet is asked for, all of it at once.
func (p *planner) resolve() {
	most := len(p.asked) + len(p.conf.Delegates) + len(p.conf.DefaultNetworks) + 2
	p.slots, p.made = make([]slot, 0, most), make([]Attachment, 0, most)
	var cluster *resolved
	if p.conf.ClusterNetwork != "" {
		cluster = p.lookUp("clusterNetwork", p.conf.ClusterNetwork)
	}
	p.resolveDefault(cluster)
	p.resolveOthers()
	for i := range p.asked {
		e := &p.asked[i]
		from := place(NetworksAnnotation, e.Index)
		p.add(from, p.element(from, e), e)
		s := &p.slots[len(p.slots)-1]
		s.Selected, s.Asked = true, e.Interface
	}
	p.resolveAuxiliary(cluster)
	for i := range p.slots { // whether or not they moved
		p.slots[i].Attachment = &p.made[i]
	}
	if more := len(p.slots) - 1; more > MaxNetworks {
		p.fault("", "has %d networks besides the pod network, at most %d are allowed", more, MaxNetworks)
	}
	if p.in.Devices == nil {
		p.out.NeedDevices = slices.ContainsFunc(p.slots, func(s slot) bool { return s.resource != "" })
	}
}

func (p *planner) resolveDefault(cluster *resolved) {
	switch {
	case p.def != nil:
		from := place(DefaultNetworkAnnotation, 0)
		p.add(from, p.element(from, p.def), p.def)
	case cluster != nil:
		p.add("clusterNetwork", cluster, nil)
	case len(p.conf.Delegates) > 0:
		p.add("delegates[0]", p.delegate(0), nil)
	default:
		p.confFault("", "names no default network: neither clusterNetwork nor delegates is set")
	}
}

func (p *planner) resolveOthers() {
	if p.conf.ClusterNetwork == "" {
		for i := 1; i < len(p.conf.Delegates); i++ {
			p.add(fmt.Sprintf("delegates[%d]", i), p.delegate(i), nil)
		}
	}
	if !p.conf.NamesCluster() {
		return
	}
	if p.in.Pod != nil && slices.Contains(p.conf.SystemNamespaces, p.in.Pod.Namespace) {
		p.explainSystemNamespace()
		return
	}
	for i, name := range p.conf.DefaultNetworks {
		field := fmt.Sprintf("defaultNetworks[%d]", i)
		p.add(field, p.lookUp(field, name), nil)
	}
}

// resolveAuxiliary appends the plugins beside the cluster network's file, if there are any.
func (p *planner) resolveAuxiliary(cluster *resolved) {
	name := p.conf.AuxiliaryCNIChainName
	if name == "" {
		return
	}
	const field = "auxiliaryCNIChainName"
	switch {
	case cluster == nil && p.conf.PrimaryConf != "": // the delegate was taken from that file
	case cluster == nil || cluster.ok && cluster.file == "":
		p.confFault(field, "is the name of a directory beside the cluster network's file, and clusterNetwork names no file")
		return
	case !cluster.ok:
		return
	}
	file, ok := p.file(Need("chain/" + name))
	if !ok || len(file.Chained) == 0 {
		return
	}
	plugins, err := netconf.ParseChained(file.Chained, "auxiliary chain "+name)
	p.absorb("", err)
	r := &resolved{network: netconf.Network{Name: name, CNIVersion: p.conf.CNIVersion, Plugins: plugins}, label: name, ok: true}
	p.add(field, r, nil)
	p.slots[len(p.slots)-1].Auxiliary = true
}

// add appends a slot, also one that is not resolved: it counts for the numbers.
func (p *planner) add(from string, r *resolved, e *selection.Element) {
	conf := r.network
	if r.shared { // they may be edited
		conf.Plugins = slices.Clone(conf.Plugins)
	}
	r.shared = true
	p.made = append(p.made, Attachment{Network: r.label, Conf: conf, Default: len(p.slots) == 0})
	p.slots = append(p.slots, slot{
		Attachment: &p.made[len(p.made)-1],
		from:       from, request: e, ok: r.ok, resource: r.resource,
	})
	p.explainNetwork(&p.slots[len(p.slots)-1], r)
}

// element looks up what an annotation names.
func (p *planner) element(from string, e *selection.Element) *resolved {
	if e.Broken {
		return &resolved{}
	}
	return p.nad(from, ref(e))
}

func (p *planner) delegate(i int) *resolved {
	r := &resolved{network: p.conf.Delegates[i], ok: true, shared: true}
	p.complete(r, p.conf.Name, p.confObject(), fmt.Sprintf("delegates[%d].", i))
	r.label = r.network.Name
	return r
}

// lookUp finds a network that the configuration names: a NAD in multusNamespace, else
// the configuration of that name in confDir; a value with a slash is a path.
func (p *planner) lookUp(field, value string) *resolved {
	if strings.Contains(value, "/") {
		if value[0] != '/' {
			p.confFault(field, "%s is a path that is not absolute", fault.Quote(value))
			return &resolved{}
		}
		return p.fromFile(field, Need("path/"+value), fmt.Sprintf("names a path with no usable configuration, %s", fault.Quote(value)))
	}
	absent := fmt.Sprintf("names %s, which is neither a NetworkAttachmentDefinition in namespace %s nor a configuration in %s",
		fault.Quote(value), fault.Quote(p.conf.MultusNamespace), fault.Quote(p.conf.ConfDir))
	at := NADRef{Namespace: p.conf.MultusNamespace, Name: value}
	if (p.in.Pod != nil || p.in.LookUp) && selection.ObjectName(value) == nil {
		nad, known := p.in.NADs[at]
		if !known || nad.Found {
			return p.nad(field, at)
		}
	}
	return p.fromFile(field, Need("confDir/"+value), absent)
}

// fromFile reads a network out of a file of the host, with the plugins of its sub-directory.
func (p *planner) fromFile(field string, need Need, absent string) *resolved {
	file, ok := p.file(need)
	if !ok {
		return &resolved{}
	}
	if !file.Found {
		p.confFault(field, "%s", absent+told(file))
		return &resolved{}
	}
	object := "file " + file.Path
	network, err := netconf.ParseFile(file.Data, file.Chained, object)
	r := &resolved{network: network, file: file.Path, ok: p.absorb("", err)}
	if r.ok {
		p.complete(r, "", object, "")
	}
	r.label = r.network.Name
	return r
}

// told repeats the first warning of a file that gave nothing: it is the likely cause.
func told(file File) string {
	if len(file.Warnings) == 0 {
		return ""
	}
	w := file.Warnings[0]
	return fmt.Sprintf(" (%s: %s)", w.Object, w.Text)
}

// nad looks a NAD up and decodes it, once in a plan.
func (p *planner) nad(from string, at NADRef) *resolved {
	if r, ok := p.nads[at]; ok {
		if !r.ok && r.nad.Name == "" { // does not exist: say so for each place that names it
			p.noNAD(from, at)
		}
		return r
	}
	r := &resolved{}
	p.nads[at] = r
	nad, known := p.in.NADs[at]
	switch {
	case !known:
		p.out.NeedNADs = append(p.out.NeedNADs, at)
		r.nad = at
		return r
	case !nad.Found:
		p.noNAD(from, at)
		return r
	}
	r.nad, r.resource, r.label = at, strings.TrimSpace(nad.ResourceName), at.Namespace+"/"+at.Name
	p.decodeNAD(r, nad)
	return r
}

func (p *planner) noNAD(from string, at NADRef) {
	text := fmt.Sprintf("names the NetworkAttachmentDefinition %s, which does not exist", fault.Quote(at.Namespace+"/"+at.Name))
	if strings.HasPrefix(from, "annotation ") {
		p.fault(from, "%s", text)
	} else {
		p.confFault(from, "%s", text)
	}
}

func (p *planner) decodeNAD(r *resolved, nad NAD) {
	object := "NetworkAttachmentDefinition " + r.label
	if strings.TrimSpace(nad.Config) != "" {
		network, err := p.parser.Network([]byte(nad.Config), object)
		r.network = network
		if r.ok = p.absorb("spec.config", err); r.ok {
			p.complete(r, r.nad.Name, object, "spec.config ")
		}
		return
	}
	file, ok := p.file(Need("confDir/" + r.nad.Name))
	if !ok {
		return
	}
	if !file.Found {
		p.faults = append(p.faults, fault.New(fault.Config, object, "spec.config", "is empty, and no configuration in %s has that name%s",
			fault.Quote(p.conf.ConfDir), told(file)))
		return
	}
	object = "file " + file.Path
	network, err := p.parser.Network(file.Data, object)
	r.network = network
	if r.ok = p.absorb("", err); r.ok {
		p.complete(r, r.nad.Name, object, "")
	}
}

// complete gives a network what it may leave out. prefix leads to its keys in the object.
func (p *planner) complete(r *resolved, name, object, prefix string) {
	n := &r.network
	p.explainConf(r, name, object, prefix)
	if n.Name == "" {
		n.Name = name
	}
	if n.Name == "" {
		p.faults = append(p.faults, fault.New(fault.Config, object, prefix+"name", "is missing, a network needs a name"))
	}
	if n.CNIVersion == "" {
		n.CNIVersion = p.conf.CNIVersion
	}
}

// file gives the answer to a need, or asks for it. Its warnings become the plan's, once.
func (p *planner) file(need Need) (File, bool) {
	file, ok := p.in.Files[need]
	if !ok {
		if !slices.Contains(p.out.NeedFiles, need) {
			p.out.NeedFiles = append(p.out.NeedFiles, need)
		}
		return file, false
	}
	for _, w := range file.Warnings {
		if !slices.Contains(p.warnings, w) {
			p.warnings = append(p.warnings, w)
		}
	}
	return file, true
}

// absorb takes over the faults of a configuration, under the field that holds it.
func (p *planner) absorb(field string, err error) bool {
	for _, f := range fault.All(err) {
		inner := *f
		inner.Field = strings.TrimSpace(field + " " + f.Field)
		p.faults = append(p.faults, &inner)
	}
	return err == nil
}

func ref(e *selection.Element) NADRef { return NADRef{Namespace: e.Namespace, Name: e.Name} }

// place names an element of an annotation.
func place(annotation string, i int) string {
	return "annotation " + annotation + "[" + strconv.Itoa(i) + "]"
}
