// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/weftnet/weft/internal/operator/metrics"
)

// Path is where the API server asks.
const Path = "/validate"

// Server makes the server of the webhook, which a manager starts on every replica.
func Server(host string, port int, pods bool, k *Keeper, m *metrics.Metrics, log *slog.Logger) ctrlwebhook.Server {
	s := ctrlwebhook.NewServer(ctrlwebhook.Options{Host: host, Port: port, TLSOpts: []func(*tls.Config){func(c *tls.Config) {
		c.MinVersion, c.GetCertificate = tls.VersionTLS12, k.certificate
	}}})
	s.Register(Path, &ctrlwebhook.Admission{Handler: handler{pods, m, log}})
	return s
}

// handler answers the API server.
type handler struct {
	pods bool
	m    *metrics.Metrics
	log  *slog.Logger
}

// maxAnswer bounds what a refusal says, in bytes, and how many warnings there are.
const (
	maxAnswer   = 4 << 10
	maxWarnings = 16
	maxWarning  = 250
)

// Handle answers one request.
func (h handler) Handle(ctx context.Context, req admission.Request) admission.Response {
	kind := req.Kind.Kind
	v, err := Judge(&req.AdmissionRequest, h.pods)
	switch {
	case err != nil:
		h.m.Reviewed(kind, "failed")
		return admission.Errored(http.StatusBadRequest, err)
	case len(v.Faults) > 0:
		h.m.Reviewed(kind, "denied")
		h.log.InfoContext(ctx, "refuse an object", "kind", kind, "namespace", req.Namespace, "name", req.Name, "dry_run", req.DryRun != nil && *req.DryRun, "faults", len(v.Faults))
		r := admission.Denied(bound(strings.Join(v.Faults, "; "), maxAnswer))
		r.Result.Code, r.Result.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
		return r
	}
	h.m.Reviewed(kind, "allowed")
	r := admission.Allowed("")
	for _, w := range v.Warnings[:min(len(v.Warnings), maxWarnings)] {
		r.Warnings = append(r.Warnings, bound(w, maxWarning))
	}
	return r
}

func bound(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
