// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// Webhook serves a handler that the API server can reach: at the address that it gives, with a
// certificate of the authority that it gives. The caller ends it.
func (cp *ControlPlane) Webhook(handler http.Handler) (url string, authority []byte, end func() error, err error) {
	pair, err := cp.authority.issue(subject{name: "webhook", hosts: []string{managementIP}})
	if err != nil {
		return "", nil, nil, err
	}
	certificate, err := tls.X509KeyPair(pair.cert, pair.key)
	if err != nil {
		return "", nil, nil, err
	}
	listener, err := cp.box.Listen(net.JoinHostPort(managementIP, "0"))
	if err != nil {
		return "", nil, nil, err
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13},
	}
	go server.ServeTLS(listener, "", "") //nolint:errcheck // it ends by end
	return "https://" + listener.Addr().String(), cp.authority.pem, server.Close, nil
}
