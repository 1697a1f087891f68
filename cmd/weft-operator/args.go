// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"github.com/weftnet/weft/internal/operator"
)

const usage = `weft-operator writes each node's configuration of the network driver from the cluster
configurations that select it, and, as an admission webhook, refuses networks and configurations
that would not work. Any number of replicas may run; one of them leads.

  weft-operator [flags]           run until SIGTERM

Examples:
  weft-operator --enable-network-driver
  weft-operator --enable-network-driver --webhook --webhook-pods
  weft-operator --kubeconfig ~/.kube/config --enable-network-driver --metrics-address 127.0.0.1:9480

Flags:
  --enable-network-driver  cluster configurations make node configurations; without it none is
                           looked at (also: --enable-cilium-network-driver)
  --kubeconfig FILE        instead of the pod's service account
  --namespace NAME         of the lease, the webhook's Secret and its Service
                           (POD_NAMESPACE, else kube-system)
  --metrics-address ADDR   of /metrics, /healthz and /readyz; "" = none (:9479)
  --pprof                  serve /debug/pprof there as well
  --api-rate N             requests to the API server a second, with bursts of twice as many (100)
  --leader-election=BOOL   false: this is the only replica (true)
  --lease TIME             a leader that was not heard of for so long is none (15s)
  --look TIME              how often it is asked whether nodes are CiliumNodes (30s)

  --webhook                judge NetworkAttachmentDefinitions, node and cluster configurations
  --webhook-pods           judge the network annotations of pods as well
  --webhook-address ADDR   (:9443)
  --webhook-service NAME   of the Service that leads to it (weft-operator)
  --webhook-secret NAME    of the Secret that holds its certificate (weft-operator-certificate)
  --webhook-configuration NAME
                           of the ValidatingWebhookConfiguration that is told the authority
                           (weft-operator)
  --certificate-life TIME  how long a certificate is valid; a new one is made after two thirds of
                           that (2160h)

  --log-level LEVEL        debug, info, warn or error (info)
  --log-format FORMAT      json or text (json)
  --help                   show this text
  --version                show the version

Exit codes: 0 fine, 1 something failed (such as a lead that was lost), 2 wrong usage; then every
fault was told and nothing was touched.
`

// errHelp: the usage was asked for.
var errHelp = errors.New("help")

// options are what the command line says.
type options struct {
	config  operator.Config
	level   slog.Level
	format  string
	version bool
}

// flagsOf are the flags, which write into o.
func flagsOf(o *options) *flag.FlagSet {
	c := &o.config
	flags := flag.NewFlagSet("weft-operator", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	for _, name := range []string{"enable-network-driver", "enable-cilium-network-driver"} {
		flags.BoolVar(&c.NetworkDriver, name, false, "")
	}
	flags.StringVar(&c.Kubeconfig, "kubeconfig", "", "")
	flags.StringVar(&c.Namespace, "namespace", c.Namespace, "")
	flags.StringVar(&c.MetricsAddress, "metrics-address", c.MetricsAddress, "")
	flags.BoolVar(&c.PProf, "pprof", false, "")
	flags.IntVar(&c.APIRate, "api-rate", c.APIRate, "")
	flags.BoolVar(&c.LeaderElection, "leader-election", c.LeaderElection, "")
	flags.DurationVar(&c.Lease, "lease", c.Lease, "")
	flags.DurationVar(&c.Look, "look", c.Look, "")
	w := &c.Webhook
	flags.BoolVar(&w.Enabled, "webhook", false, "")
	flags.BoolVar(&w.Pods, "webhook-pods", false, "")
	flags.StringVar(&w.Address, "webhook-address", w.Address, "")
	flags.StringVar(&w.Service, "webhook-service", w.Service, "")
	flags.StringVar(&w.Secret, "webhook-secret", w.Secret, "")
	flags.StringVar(&w.Configuration, "webhook-configuration", w.Configuration, "")
	flags.DurationVar(&w.CertificateLife, "certificate-life", w.CertificateLife, "")
	flags.TextVar(&o.level, "log-level", slog.LevelInfo, "")
	flags.StringVar(&o.format, "log-format", "json", "")
	flags.BoolVar(&o.version, "version", false, "")
	return flags
}

func parse(args []string, namespace string) (options, error) {
	o := options{config: operator.Defaults()}
	if namespace != "" {
		o.config.Namespace = namespace
	}
	flags := flagsOf(&o)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			err = errHelp
		}
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.format != "json" && o.format != "text" {
		return o, fmt.Errorf("flag --log-format: %q is neither json nor text", o.format)
	}
	return o, nil
}
