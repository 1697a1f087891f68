// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command weft-planner makes plans where no agent runs. weft-cni starts it, sends
// planner requests to its stdin and reads the answers from its stdout (architecture
// 4.2); it ends with its input. Nothing but answers goes to stdout.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/weftnet/weft/internal/cni/wire"
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
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run returns the exit code: 0 served until the end of stdin, 1 could not, 2 wrong usage.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("weft-planner", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	version := flags.Bool("version", false, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = io.WriteString(stdout, usage)
		return 0
	case err != nil || flags.NArg() > 0:
		if err == nil {
			err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
		}
		fmt.Fprintf(stderr, "weft-planner: %v; see weft-planner --help\n", err)
		return 2
	case *version:
		fmt.Fprintf(stdout, "weft-planner %s, planner protocol %s\n", buildVersion(), wire.KnownVersions())
		return 0
	}
	if err := wire.Serve(stdin, stdout, newAnswerer(ctx)); err != nil {
		fmt.Fprintf(stderr, "weft-planner: %v\n", err)
		return 1
	}
	return 0
}

func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
