// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Command weft-planner-kube makes plans out of an API server where no agent runs.
// weft-cni starts it for a configuration with a kubeconfig, as it starts weft-planner
// for one with manifests (architecture 2, 4.2). It is a program of its own because
// HTTP and TLS cost a process's start more than reading manifests takes.
package main

import (
	"context"
	"os"

	"github.com/weftnet/weft/internal/cni/cluster"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/planner/report"
	"github.com/weftnet/weft/internal/cni/planner/stdio"
	"github.com/weftnet/weft/internal/cni/wire"
)

const usage = `weft-planner-kube makes the plans of weft-cni out of an API server, where no agent runs.

It is started by weft-cni, found through CNI_PATH or binDir, when the CNI configuration
has a "kubeconfig" and no agent listens. An example of such a configuration:

  {
    "cniVersion": "1.1.0", "name": "weft", "type": "weft-cni",
    "kubeconfig": "/etc/cni/net.d/weft.d/weft.kubeconfig",
    "delegates": [{"cniVersion": "1.0.0", "name": "pods", "type": "bridge",
                   "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}]
  }

The kubeconfig's current context may have: server, certificate-authority(-data),
tls-server-name, insecure-skip-tls-verify; token, tokenFile,
client-certificate(-data) with client-key(-data). Anything else is refused by its name.
Needed permissions: get pods, patch pods/status, create events,
get network-attachment-definitions.k8s.cni.cncf.io; for networks that draw devices
from claims, get resourceclaims and list resourceslices of resource.k8s.io.

Requests are read from stdin and answered on stdout, as weft-planner --help shows.

Flags:
  --help     show this text
  --version  show the version
`

func main() {
	s := &sources{byFile: map[string]*cluster.Source{}}
	p := stdio.Program{Name: "weft-planner-kube", Usage: usage}
	code := p.Run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, s.answer)
	s.close()
	os.Exit(code)
}

// sources are the API servers of this process. The requests of one process are those of
// one ADD: they share one source, so that each object is read once.
type sources struct{ byFile map[string]*cluster.Source }

func (s *sources) answer(ctx context.Context, req wire.Request) wire.Response {
	open := func(conf *netconf.Conf) (planner.Source, error) { return s.open(ctx, conf) }
	return planner.Handle(ctx, req, open, report.Answer)
}

func (s *sources) open(ctx context.Context, conf *netconf.Conf) (planner.Source, error) {
	if conf.Kubeconfig == "" {
		return nil, fault.New(fault.Config, "configuration "+conf.Name, "kubeconfig", "is missing, and weft-planner-kube has no other source of pods")
	}
	if src, ok := s.byFile[conf.Kubeconfig]; ok {
		return src, nil
	}
	src, err := cluster.Open(ctx, conf.Kubeconfig, conf.KubeletDir)
	if err != nil {
		return nil, err
	}
	s.byFile[conf.Kubeconfig] = src
	return src, nil
}

func (s *sources) close() {
	for _, src := range s.byFile {
		src.Close()
	}
}
