// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// pair is a certificate that is its own authority, and its key.
type pair struct {
	tls       tls.Certificate
	cert, key []byte // PEM
}

// early: a certificate is valid before it is made, for clocks that are behind.
func early(life time.Duration) time.Duration { return min(life/10, time.Hour) }

// newPair makes a pair for DNS names that is valid for life from now on.
func newPair(now time.Time, life time.Duration, names []string) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "weft-operator"}, DNSNames: names,
		NotBefore: now.Add(-early(life)), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return readPair(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), names)
}

// readPair reads a pair for names.
func readPair(cert, key []byte, names []string) (*pair, error) {
	p := &pair{cert: cert, key: key}
	var err error
	if p.tls, err = tls.X509KeyPair(cert, key); err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	for _, name := range names {
		if err := p.tls.Leaf.VerifyHostname(name); err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
	}
	return p, nil
}

// due says whether a pair is to be replaced: two thirds of its life are over, or it has another
// life than pairs should have.
func (p *pair) due(now time.Time, life time.Duration) bool {
	left := p.tls.Leaf.NotAfter.Sub(now)
	return left < life/3 || left > life+early(life)
}

// valid says whether clients take it.
func (p *pair) valid(now time.Time) bool {
	return !now.Before(p.tls.Leaf.NotBefore) && now.Before(p.tls.Leaf.NotAfter)
}

// maxRoots bounds a bundle.
const maxRoots = 8

// bundle are the authorities that clients have to know: those of before that are valid yet, and of
// those the newest, behind the ones that come first.
func bundle(now time.Time, before []byte, first ...[]byte) []byte {
	var all [][]byte
	for _, text := range append(first, before) {
		for rest := text; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			one := pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})
			cert, err := x509.ParseCertificate(block.Bytes)
			if err == nil && now.Before(cert.NotAfter) && len(all) < maxRoots && !contains(all, one) {
				all = append(all, one)
			}
		}
	}
	return bytes.Join(all, nil)
}

func contains(all [][]byte, one []byte) bool {
	for _, other := range all {
		if bytes.Equal(one, other) {
			return true
		}
	}
	return false
}

var errNone = errors.New("there is no certificate yet") //nolint:gochecknoglobals // a sentinel
