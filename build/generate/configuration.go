// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/weftnet/weft/internal/cni/netconf"
)

const configurationIntro = `# CNI configuration

<!-- Written by make generate from internal/cni/netconf: edit the table there. -->

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

// configuration is docs/configuration.md. A default in parentheses is written in words,
// every other one is a value.
func configuration() []byte {
	var b strings.Builder
	b.WriteString(configurationIntro)
	for _, k := range netconf.Keys() {
		value := "–"
		switch {
		case strings.HasPrefix(k.Default, "("):
			value = cell(strings.Trim(k.Default, "()"))
		case k.Default != "":
			value = "`" + cell(k.Default) + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", cell(k.Name), value, cell(k.Meaning))
	}
	return []byte(b.String())
}

// cell escapes what would end a table's cell.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text)
}
