// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

type httpClient = http.Client

// Config is what the command line says.
type Config struct {
	Kubeconfig     string // path; "" = the service account of the pod that this runs in
	Namespace      string // of the lease, and of the webhook's Secret and Service
	NetworkDriver  bool
	MetricsAddress string // of metrics and health; "" = none
	PProf          bool
	APIRate        int // requests a second, with bursts of twice as many
	LeaderElection bool
	Lease          time.Duration // a leader that was not heard of for so long is none
	Look           time.Duration // whether nodes are CiliumNodes is asked this often
	Webhook        Webhook
}

// Webhook is what the admission webhook works with.
type Webhook struct {
	Enabled bool
	Pods    bool   // judge pods' annotations as well
	Address string // HOST:PORT
	// Service, Secret and Configuration are names: of the Service in front of it, of the Secret that
	// holds its certificate, and of the ValidatingWebhookConfiguration.
	Service, Secret, Configuration string
	CertificateLife                time.Duration
}

// Defaults are those of a Config.
func Defaults() Config {
	return Config{
		Namespace: "kube-system", MetricsAddress: ":9479", APIRate: 100, LeaderElection: true, Lease: 15 * time.Second, Look: 30 * time.Second,
		Webhook: Webhook{
			Address: ":9443", Service: "weft-operator", Secret: "weft-operator-certificate", Configuration: "weft-operator",
			CertificateLife: 90 * 24 * time.Hour,
		},
	}
}

// Limits of a Config.
const (
	minLease = 2 * time.Second
	minLife  = 3 * time.Second
	minLook  = 100 * time.Millisecond
	maxRate  = 10000
)

// validate finds every fault at once.
func (c Config) validate() error {
	var faults []error
	fault := func(field, text string, args ...any) {
		faults = append(faults, fmt.Errorf(field+": "+text, args...))
	}
	names := map[string]string{"namespace": c.Namespace}
	if c.Webhook.Enabled {
		names["webhook-service"], names["webhook-secret"] = c.Webhook.Service, c.Webhook.Secret
		names["webhook-configuration"] = c.Webhook.Configuration
		if _, _, err := port(c.Webhook.Address); err != nil {
			fault("webhook-address", "%w", err)
		}
		if c.Webhook.CertificateLife < minLife {
			fault("certificate-life", "%s is less than %s", c.Webhook.CertificateLife, minLife)
		}
	} else if c.Webhook.Pods {
		fault("webhook-pods", "needs --webhook")
	}
	for _, field := range []string{"namespace", "webhook-service", "webhook-secret", "webhook-configuration"} {
		if name, ok := names[field]; ok && len(validation.IsDNS1123Subdomain(name)) > 0 {
			fault(field, "%q is no name of a Kubernetes object", name)
		}
	}
	if c.APIRate < 1 || c.APIRate > maxRate {
		fault("api-rate", "%d is not from 1 to %d", c.APIRate, maxRate)
	}
	if c.Lease < minLease {
		fault("lease", "%s is less than %s", c.Lease, minLease)
	}
	if c.Look < minLook {
		fault("look", "%s is less than %s", c.Look, minLook)
	}
	return errors.Join(faults...)
}
