// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weftnet/weft/internal/operator/metrics"
)

// KeeperConfig says where the certificate is, and for whom.
type KeeperConfig struct {
	Conn *rest.Config
	// Elected is closed once this process is the leader, which it stays until Start's ctx ends.
	Elected                                   <-chan struct{}
	Namespace, Service, Secret, Configuration string // names
	Life                                      time.Duration
	Metrics                                   *metrics.Metrics
	Log                                       *slog.Logger
}

// Keeper keeps the certificate: every replica uses what the Secret holds, and the leader replaces
// it in time.
type Keeper struct {
	cfg    KeeperConfig
	client client.Client
	every  time.Duration // it looks
	names  []string
	pair   atomic.Pointer[pair]
}

// NewKeeper makes a keeper; nothing is sent yet.
func NewKeeper(cfg KeeperConfig) (*Keeper, error) {
	scheme := runtime.NewScheme()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	mapper.Add(admissionv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration"), meta.RESTScopeRoot)
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, admissionv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make API client: %w", err)
		}
	}
	c, err := client.New(cfg.Conn, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	host := cfg.Service + "." + cfg.Namespace
	return &Keeper{
		cfg: cfg, client: c, names: []string{host + ".svc", host, host + ".svc.cluster.local"},
		every: min(max(cfg.Life/30, 100*time.Millisecond), time.Minute),
	}, nil
}

// NeedLeaderElection says no: every replica needs the certificate.
func (k *Keeper) NeedLeaderElection() bool { return false }

// Behind says why there is no certificate that clients take; nil when there is.
func (k *Keeper) Behind() error {
	if p := k.pair.Load(); p == nil || !p.valid(time.Now()) {
		return fmt.Errorf("admission webhook: %w", errNone)
	}
	return nil
}

// certificate is asked for by the server at each connection.
func (k *Keeper) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p := k.pair.Load()
	if p == nil {
		return nil, errNone
	}
	return &p.tls, nil
}

// Start works until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	for {
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Log.WarnContext(ctx, "certificate of the admission webhook; it is tried again", "error", err)
		}
		if !k.wait(ctx, k.leads()) {
			return nil
		}
	}
}

// wait waits for the next look, which the lead brings forward.
func (k *Keeper) wait(ctx context.Context, leads bool) bool {
	t := time.NewTimer(k.every)
	defer t.Stop()
	elected := k.cfg.Elected
	if leads {
		elected = nil
	}
	select {
	case <-t.C:
	case <-elected:
	case <-ctx.Done():
		return false
	}
	return true
}

func (k *Keeper) leads() bool {
	select {
	case <-k.cfg.Elected:
		return true
	default:
		return false
	}
}

// look takes what the Secret holds, and, as the leader, sees to it that it is right.
func (k *Keeper) look(ctx context.Context) error {
	secret := &corev1.Secret{}
	err := k.client.Get(ctx, client.ObjectKey{Namespace: k.cfg.Namespace, Name: k.cfg.Secret}, secret)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read Secret: %w", err)
	}
	now := time.Now()
	current, fault := readPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], k.names)
	if fault == nil && current.valid(now) {
		k.use(current)
	}
	switch {
	case !k.leads():
		return nil
	case fault != nil || current.due(now, k.cfg.Life):
		return k.renew(ctx, secret, fault == nil && current.valid(now))
	}
	return k.announce(ctx, bundle(now, secret.Data[corev1.ServiceAccountRootCAKey], current.cert))
}

// use serves a pair from now on.
func (k *Keeper) use(p *pair) {
	if old := k.pair.Load(); old == nil || !bytes.Equal(old.cert, p.cert) {
		k.cfg.Log.Info("certificate of the admission webhook", "until", p.tls.Leaf.NotAfter)
	}
	k.pair.Store(p)
	k.cfg.Metrics.Certified(p.tls.Leaf.NotAfter)
}

// renew makes a new pair. While the one of before is good, the API server is told first, and then
// has until the next look to hear of it.
func (k *Keeper) renew(ctx context.Context, secret *corev1.Secret, good bool) error {
	now := time.Now()
	p, err := newPair(now, k.cfg.Life, k.names)
	if err != nil {
		return err
	}
	all := bundle(now, bytes.Join([][]byte{secret.Data[corev1.TLSCertKey], secret.Data[corev1.ServiceAccountRootCAKey]}, nil), p.cert)
	if good {
		if err := k.announce(ctx, all); err != nil {
			return err
		}
		if !k.wait(ctx, true) {
			return nil
		}
	}
	secret.Namespace, secret.Name = k.cfg.Namespace, k.cfg.Secret
	if secret.Type == "" {
		secret.Type = corev1.SecretTypeTLS
	}
	secret.Data = map[string][]byte{corev1.TLSCertKey: p.cert, corev1.TLSPrivateKeyKey: p.key, corev1.ServiceAccountRootCAKey: all}
	if secret.UID == "" {
		secret.ObjectMeta = metav1.ObjectMeta{
			Namespace: k.cfg.Namespace, Name: k.cfg.Secret,
			Labels: map[string]string{"app.kubernetes.io/name": "weft", "app.kubernetes.io/component": "operator"},
		}
		err = k.client.Create(ctx, secret)
	} else {
		err = k.client.Update(ctx, secret) // of the version that was read
	}
	if err != nil {
		return fmt.Errorf("write Secret: %w", err)
	}
	k.use(p)
	return k.announce(ctx, all)
}

// announce has the API server trust the authorities of a bundle, for each webhook of the
// configuration, and those alone.
func (k *Keeper) announce(ctx context.Context, roots []byte) error {
	c := &admissionv1.ValidatingWebhookConfiguration{}
	if err := k.client.Get(ctx, client.ObjectKey{Name: k.cfg.Configuration}, c); err != nil {
		return fmt.Errorf("read ValidatingWebhookConfiguration: %w", err)
	}
	stale := false
	for i := range c.Webhooks {
		stale = stale || !bytes.Equal(c.Webhooks[i].ClientConfig.CABundle, roots)
		c.Webhooks[i].ClientConfig.CABundle = roots
	}
	if !stale {
		return nil
	}
	if err := k.client.Update(ctx, c); err != nil {
		return fmt.Errorf("write ValidatingWebhookConfiguration: %w", err)
	}
	return nil
}
