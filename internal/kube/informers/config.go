// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
)

const (
	typeJSON     = "application/json"
	typeProtobuf = "application/vnd.kubernetes.protobuf"
)

// connection reads how to reach the API server.
func connection(cfg Config, contact *contact) (*clientrest.Config, error) {
	var faults []error
	if cfg.NodeName == "" {
		faults = append(faults, errors.New("nodeName: is missing"))
	}
	conn, err := load(cfg.Kubeconfig)
	if err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	conn.UserAgent = cfg.UserAgent
	if conn.UserAgent == "" {
		conn.UserAgent = "weft-agent"
	}
	conn.QPS = -1 // the server has its own fairness; a limit here would only delay pods
	if file := conn.BearerTokenFile; file != "" {
		// As client-go does it, but that an answer of 401 has the file read at once.
		conn.BearerToken, conn.BearerTokenFile = "", ""
		conn.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(file)))
	}
	conn.Wrap(func(next http.RoundTripper) http.RoundTripper { return &counter{next, contact} })
	return conn, nil
}

func load(kubeconfig string) (*clientrest.Config, error) {
	if kubeconfig == "" {
		conn, err := clientrest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("kubeconfig: is missing, and the service account of a pod is not to be had: %w", err)
		}
		return conn, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	conn, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: read %s: %w", kubeconfig, err)
	}
	return conn, nil
}

// connect makes the clients; they share their connections.
func (c *Cluster) connect(conn *clientrest.Config) error {
	var err error
	if c.http, err = clientrest.HTTPClientFor(conn); err != nil {
		return err
	}
	scheme := newScheme()
	codecs := serializer.NewCodecFactory(scheme)
	client := func(path string, gv schema.GroupVersion, accept, content string) (*clientrest.RESTClient, error) {
		cfg := clientrest.CopyConfig(conn)
		cfg.APIPath, cfg.GroupVersion = path, &gv
		cfg.NegotiatedSerializer = codecs.WithoutConversion()
		cfg.AcceptContentTypes, cfg.ContentType = accept, content
		return clientrest.RESTClientForConfigAndClient(cfg, c.http)
	}
	if c.core, err = client("/api", coreV1, typeProtobuf+","+typeJSON, typeProtobuf); err != nil {
		return err
	}
	if c.nad, err = client("/apis", nadV1, typeJSON, typeJSON); err != nil {
		return err
	}
	c.plain, err = client("/apis", resourceV1, typeJSON, typeJSON)
	return err
}
