// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command weft-planner makes plans out of a directory of manifests, where no agent runs. weft-cni starts it, sends
// planner requests to its stdin and reads the answers from its stdout; it implements the
// planner's side of architecture 4.2, and ends with its input. Nothing but answers goes to stdout.
package main

import (
	"context"
	"os"

	"github.com/weftnet/weft/internal/cni/planner/stdio"
	"github.com/weftnet/weft/internal/host/brief"
	_ "github.com/weftnet/weft/internal/host/brief/start" // before the other packages
)

const usage = `weft-planner makes the plans of weft-cni where no agent runs.

It is started by weft-cni, found through CNI_PATH or binDir, when the CNI
configuration has "manifests": a directory of YAML with Pods and
NetworkAttachmentDefinitions. An example of such a configuration:

  {
    "cniVersion": "1.1.0", "name": "weft", "type": "weft-cni",
    "manifests": "/etc/weft/manifests",
    "delegates": [{"cniVersion": "1.0.0", "name": "pods", "type": "bridge",
                   "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}]
  }

Requests are read from stdin and answered on stdout, each as four bytes of
length (big-endian) and that many bytes of JSON. An example, asked by hand:

  req='{"version":1,"requestID":"1","verb":"plan","plan":{"conf":"'$(base64 -w0 weft.conf)'",
    "sandbox":{"containerID":"c1","ifName":"eth0","netns":"/run/netns/c1",
               "args":"K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"}}}'
  printf "$(printf '\\x%02x' 0 0 $((${#req}/256)) $((${#req}%256)))%s" "$req" | weft-planner | tail -c +5

Flags:
  --help     show this text
  --version  show the version
`

func main() {
	brief.Process()
	p := stdio.Program{Name: "weft-planner", Usage: usage}
	os.Exit(p.Run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, newAnswerer()))
}
