// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfig writes a file for one user of one cluster.
func writeKubeconfig(path, server string, tls rest.TLSClientConfig) error {
	content, err := kubeconfig(server, tls)
	if err != nil {
		return err
	}
	return writeFile(path, content)
}

func kubeconfig(server string, tls rest.TLSClientConfig) ([]byte, error) {
	c := api.NewConfig()
	c.Clusters["lab"] = &api.Cluster{Server: server, CertificateAuthorityData: tls.CAData}
	c.AuthInfos["lab"] = &api.AuthInfo{ClientCertificateData: tls.CertData, ClientKeyData: tls.KeyData}
	c.Contexts["lab"] = &api.Context{Cluster: "lab", AuthInfo: "lab"}
	c.CurrentContext = "lab"
	return clientcmd.Write(*c)
}

// readyConfig is config for requests that are about no API.
func readyConfig(config *rest.Config) *rest.Config {
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	return config
}
