// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/weftnet/weft/internal/agent/config"
	"github.com/weftnet/weft/internal/cni/netconf"
)

const configurationIntro = `# Configuration

<!-- Written by make generate from internal/cni/netconf and internal/agent/config: edit the tables there. -->

## CNI configuration

The keys of a configuration whose ` + "`type` is `weft-cni`" + `. Keys that Multus has keep their names and meanings. A value of the
wrong type is an error that names the key (code 7); an unknown key is a warning.

    {
      "cniVersion": "1.1.0",
      "name": "weft",
      "type": "weft-cni",
      "clusterNetwork": "/etc/cni/net.d/10-primary.conflist",
      "capabilities": {"portMappings": true, "io.kubernetes.cri.pod-annotations": true},
      "manifests": "/etc/weft/manifests"
    }

| key | default | meaning |
|---|---|---|
`

const agentIntro = `
## The agent

The keys of the YAML file that ` + "`weft-agent --config`" + ` reads. A key that is not known, a value of the wrong type and a
value that cannot work are faults, each told with its line and key; the agent then does nothing at all and exits with 2.
` + "`weft-agent check-config --config agent.yaml`" + ` tells them without starting. A key with a dot stands in a section:

    log:
      level: debug

The flags ` + "`--node-name`, `--kubeconfig` and `--enable-network-driver`" + ` come before the file.

| key | default | meaning |
|---|---|---|
`

const agentConf = `
Besides these the section ` + "`cni`" + ` takes keys of the CNI configuration above, which are put into the configuration that the
agent publishes: %s.
`

// configuration is docs/configuration.md.
func configuration() []byte {
	var b strings.Builder
	b.WriteString(configurationIntro)
	for _, k := range netconf.Keys() {
		row(&b, k.Name, k.Default, k.Meaning)
	}
	b.WriteString(agentIntro)
	for _, k := range config.Keys() {
		row(&b, k.Name, k.Default, k.Meaning)
	}
	fmt.Fprintf(&b, agentConf, "`"+strings.Join(config.ConfKeys(), "`, `")+"`")
	return []byte(b.String())
}

// row writes one key. A default in parentheses is written in words, every other one is a
// value.
func row(b *strings.Builder, name, value, meaning string) {
	switch {
	case strings.HasPrefix(value, "("):
		value = cell(strings.Trim(value, "()"))
	case value != "":
		value = "`" + cell(value) + "`"
	default:
		value = "–"
	}
	fmt.Fprintf(b, "| `%s` | %s | %s |\n", cell(name), value, cell(meaning))
}

// cell escapes what would end a table's cell.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text)
}
