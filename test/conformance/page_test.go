// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	. "github.com/weftnet/weft/test/conformance"
)

// row is a case and what came of it, or the begin of a section.
type row struct {
	section string
	kase
	outcomes map[Mode][]string // by step
}

const intro = `# Conformance

<!-- Written by make generate from a run of test/conformance: change the cases there. -->

What the real ` + "`weft-cni` and its planners" + ` do in each case, as ` + "`go test ./test/conformance`" + ` saw it: every line of an outcome
was printed, called, requested or written in that run, and is compared again in every later one. Each case ends with a DEL, not
shown, that has to undo everything in reverse, ask no API server and leave nothing.

The fixture is, unless a case says otherwise:

    configuration         {"cniVersion":"1.0.0","name":"m","type":"weft-cni","delegates":[{"cniVersion":"1.0.0","name":"defnet","type":"pa"}]}
    NAD default/neta      {"cniVersion":"1.0.0","type":"pb"}
    NAD other/netb        {"cniVersion":"1.0.0","type":"pc"}
    pod                   default/pod-a, UID uid-1, container cid1, CNI_IFNAME eth0

` + "`pa`, `pb`" + ` and so on record their calls and answer an empty result. "networks" is the annotation ` + "`k8s.v1.cni.cncf.io/networks`" + `,
"default-network" is ` + "`v1.multus-cni.io/default-network`" + `. Configurations name the members that are set over the fixture's. Where both
sources of pods, a directory of manifests and an API server (by kubeconfig), come to the same but for what is told to the API
server, one outcome stands here. Compared is Multus v4.3 at its revision 95a0932; "–" is where it was not looked at.

`

const agentPart = `## Cases that need the node's agent

They are tested where the agent is (part 3 of the work, on a real node).

| case | what it is about |
|---|---|
| B28, thick | arguments of the runtime reach delegates when an agent plans (here: without one) |
| B33 | the kubelet's pod-resources socket answers ResourceExhausted twice, then data: it is asked again, the pod has its devices (Multus fails) |
| B58 | what the agent does at its start for a DEL that came while it was away: nothing is owed, since DEL never needs it (here) |
| B64 | the primary configuration is overwritten with half a file |
| B65 | the primary configuration is removed |
| B66 | SIGTERM of the agent while an ADD runs |
| B67, /healthz | health answers while 100 ADDs run (here: the limit on delegates) |
| B68 | a configuration of Multus' that sorts first is never taken for the primary |
`

func render(rows []row) string {
	var b strings.Builder
	b.WriteString(intro)
	for i, r := range rows {
		if r.section != "" {
			if i > 0 {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "## %s\n\n| case | input | outcome | Multus |\n|---|---|---|---|\n", r.section)
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", cell(r.title()), cell(strings.Join(r.input(), "\n")), cell(r.outcome()), cell(r.compared()))
	}
	b.WriteString("\n" + agentPart)
	return b.String()
}

// compared says how Multus differs; of the faults of an API server not all were seen with it.
func (k kase) compared() string {
	if k.number == "API" {
		return or(k.multus, "–")
	}
	return or(k.multus, "the same")
}

// cell puts a text into one cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", "<br>").Replace(strings.TrimSpace(text))
}

// input is what a case sets over the fixture.
func (k kase) input() []string {
	var all []string
	line := func(what, text string) {
		if text == "" {
			all = append(all, what+" is empty")
			return
		}
		all = append(all, what+" `"+text+"`")
	}
	if k.conf != "" {
		line("configuration", "{"+k.conf+"}")
	}
	for _, name := range slices.Sorted(maps.Keys(k.nads)) {
		what := "NAD " + name
		if resource, ok := k.resources[name]; ok {
			what += ", resourceName " + resource
		}
		line(what+", spec.config", k.nads[name])
	}
	for _, path := range slices.Sorted(maps.Keys(k.files)) {
		line("file $DIR/"+path, k.files[path])
	}
	if k.objects != "" {
		line("objects", oneLine(k.objects))
	}
	switch {
	case k.noPod:
		all = append(all, "no pod")
	case k.name != "" || k.namespace != "":
		line("pod", k.podNamespace()+"/"+k.podName())
	}
	if k.networks != nil {
		line("networks", *k.networks)
	}
	if k.def != nil {
		line("default-network", *k.def)
	}
	for _, name := range slices.Sorted(maps.Keys(k.notes)) {
		line("annotation "+name, k.notes[name])
	}
	if k.pod != "" {
		line("pod has", k.pod)
	}
	if k.routes {
		all = append(all, "eth0 has 10.1.0.2/24 and fd01::2/64 and both default routes, net1 has 10.2.0.2/24 and fd02::2/64")
	}
	return append(all, k.calls()...)
}

// calls are the calls of a case, where there is more to say than ADD.
func (k kase) calls() []string {
	var all []string
	for i, s := range k.steps {
		text := s.verb
		if s.do != "" {
			text = s.do + ", then " + text
		}
		for _, e := range s.env {
			text += " with `" + e + "`"
		}
		if len(k.steps) > 1 {
			text = fmt.Sprintf("%d. %s", i+1, text)
		}
		if text != "ADD" {
			all = append(all, text)
		}
	}
	return all
}

// oneLine is YAML documents as one line of JSON.
func oneLine(text string) string {
	var all []string
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o map[string]any
		if err := d.Decode(&o); err != nil {
			return strings.Join(all, " ") // the end: that it can be read, the API server has said
		}
		b, _ := json.Marshal(o) // came out of YAML: strings, numbers, lists and maps
		all = append(all, string(b))
	}
}

// outcome is what came of the steps: once when both modes agree but for the API.
func (r row) outcome() string {
	var all []string
	for i := range r.steps {
		prefix := ""
		if len(r.steps) > 1 {
			prefix = fmt.Sprintf("%d. ", i+1)
		}
		manifests, kube := r.at(Manifests, i), r.at(Kubeconfig, i)
		switch {
		case manifests == "" || kube == "":
			all = append(all, prefix+manifests+kube)
		case strings.HasPrefix(kube, manifests):
			all = append(all, prefix+kube)
		default:
			all = append(all, prefix+"manifests: "+manifests+"API server: "+kube)
		}
	}
	return strings.Join(all, "")
}

func (r row) at(mode Mode, i int) string {
	if i >= len(r.outcomes[mode]) {
		return ""
	}
	return r.outcomes[mode][i]
}
