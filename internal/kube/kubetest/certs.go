// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// certs are a CA, the server's configuration and a client's certificate.
type certs struct {
	ca                    []byte // PEM, as the two below
	clientCert, clientKey []byte
	server                *tls.Config
}

func newCerts(tb testing.TB, askClients bool) *certs {
	tb.Helper()
	caTemplate := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubetest CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey := newKey(tb)
	caDER, err := x509.CreateCertificate(rand.Reader, caTemplate, caTemplate, caKey.Public(), caKey)
	if err != nil {
		tb.Fatal(err)
	}
	ca, err := x509.ParseCertificate(caDER)
	if err != nil {
		tb.Fatal(err)
	}
	issue := func(serial int64, name string, usage x509.ExtKeyUsage) (cert, key []byte) {
		k := newKey(tb)
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: caTemplate.NotBefore, NotAfter: caTemplate.NotAfter,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
			DNSNames: []string{"kubernetes.default.svc"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		}, ca, k.Public(), caKey)
		if err != nil {
			tb.Fatal(err)
		}
		keyDER, err := x509.MarshalECPrivateKey(k)
		if err != nil {
			tb.Fatal(err)
		}
		return pemBlock("CERTIFICATE", der), pemBlock("EC PRIVATE KEY", keyDER)
	}
	c := &certs{ca: pemBlock("CERTIFICATE", caDER)}
	serverCert, serverKey := issue(2, "kubetest", x509.ExtKeyUsageServerAuth)
	c.clientCert, c.clientKey = issue(3, "system:weft:node-a", x509.ExtKeyUsageClientAuth)
	pair, err := tls.X509KeyPair(serverCert, serverKey)
	if err != nil {
		tb.Fatal(err)
	}
	c.server = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if askClients {
		pool := x509.NewCertPool()
		pool.AddCert(ca)
		c.server.ClientCAs, c.server.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	return c
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func (c *certs) caData() string { return base64.StdEncoding.EncodeToString(c.ca) }

func (c *certs) clientData() (cert, key string) {
	return base64.StdEncoding.EncodeToString(c.clientCert), base64.StdEncoding.EncodeToString(c.clientKey)
}
