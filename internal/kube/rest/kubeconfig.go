// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
)

// maxKubeconfig bounds a kubeconfig and each file that it names, in bytes.
const maxKubeconfig = 1 << 20

// Config is how to reach one API server, and as whom.
type Config struct {
	Server    *url.URL
	TLS       *tls.Config // nil for http
	Token     Secret      // bearer token
	TokenFile string      // read for every request; has precedence over Token
}

// Secret is a text that is never printed.
type Secret string

// String hides the secret from every format verb that prints strings.
func (s Secret) String() string { return "(secret)" }

// GoString hides it from %#v.
func (s Secret) GoString() string { return s.String() }

// Load reads the current context of a kubeconfig: a server, its CA, and as credentials
// a token, a token file or a client certificate. Any other key that changes who is
// asked, or as whom, is refused by its name. Files that it names are relative to
// it. The error joins everything that is wrong.
func Load(path string) (*Config, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(data, filepath.Dir(path))
}

// Parse is Load for the bytes of a kubeconfig of directory dir.
func Parse(data []byte, dir string) (*Config, error) {
	var file kubeconfig
	if err := yaml.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("decode kubeconfig: %w", err)
	}
	l := &loader{dir: dir}
	cluster, user := l.current(file)
	cfg := &Config{}
	if len(l.faults) == 0 {
		l.cluster(cfg, cluster)
		l.user(cfg, user)
	}
	if err := errors.Join(l.faults...); err != nil {
		return nil, err
	}
	return cfg, nil
}

// kubeconfig has the parts of the file that lead to the current context. Those of
// other contexts are not looked at.
type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster string `yaml:"cluster"`
			User    string `yaml:"user"`
		} `yaml:"context"`
	} `yaml:"contexts"`
	Clusters []struct {
		Name    string               `yaml:"name"`
		Cluster map[string]yaml.Node `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string               `yaml:"name"`
		User map[string]yaml.Node `yaml:"user"`
	} `yaml:"users"`
}

// loader gathers what is wrong with one kubeconfig.
type loader struct {
	dir    string
	faults []error
}

func (l *loader) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Errorf(format, args...))
}

// section is the object of one cluster or user.
type section struct {
	*loader
	name string // `cluster "x"`
	keys map[string]yaml.Node
}

// current finds the cluster and the user of the current context.
func (l *loader) current(file kubeconfig) (cluster, user section) {
	if file.Current == "" {
		l.fault("current-context is missing")
		return
	}
	for _, c := range file.Contexts {
		if c.Name != file.Current {
			continue
		}
		cluster = section{loader: l, name: fmt.Sprintf("cluster %.64q", c.Context.Cluster)}
		user = section{loader: l, name: fmt.Sprintf("user %.64q", c.Context.User)}
		clusterFound, userFound := false, c.Context.User == "" // a server may ask for no credentials
		for _, e := range file.Clusters {
			if e.Name == c.Context.Cluster && !clusterFound {
				cluster.keys, clusterFound = e.Cluster, true
			}
		}
		for _, e := range file.Users {
			if e.Name == c.Context.User && !userFound {
				user.keys, userFound = e.User, true
			}
		}
		if !clusterFound {
			l.fault("current-context %.64q names %s, which the file lacks", file.Current, cluster.name)
		}
		if !userFound {
			l.fault("current-context %.64q names %s, which the file lacks", file.Current, user.name)
		}
		return
	}
	l.fault("current-context is %.64q, and the file has no such context", file.Current)
	return
}

// take removes a key and gives its text; an empty value is as none.
func (s section) take(key string) string {
	node, ok := s.keys[key]
	if !ok {
		return ""
	}
	delete(s.keys, key)
	var text string
	if err := node.Decode(&text); err != nil || node.Kind != yaml.ScalarNode {
		s.fault("%s: %s is not text", s.name, key)
	}
	return text
}

// bytes takes the pair of keys <key>-data (base64, has precedence) and <key> (a file).
func (s section) bytes(key string) []byte {
	data, path := s.take(key+"-data"), s.take(key)
	switch {
	case data != "":
		b, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(data), ""))
		if err != nil {
			s.fault("%s: %s-data is not base64: %w", s.name, key, err)
			return nil
		}
		return b
	case path != "":
		b, err := readFile(s.path(path))
		if err != nil {
			s.fault("%s: %s: %w", s.name, key, err)
			return nil
		}
		return b
	}
	return nil
}

func (l *loader) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(l.dir, p)
}

// rest refuses what was not taken, but for keys that change nothing.
func (s section) rest(harmless ...string) {
	for _, key := range harmless {
		delete(s.keys, key)
	}
	for _, key := range sortedKeys(s.keys) {
		if n := s.keys[key]; n.Kind == yaml.ScalarNode && (n.Value == "" || n.Tag == "!!null" || n.Value == "false") {
			continue
		}
		s.fault("%s: %.64q is not supported (supported are a token, a token file, a client certificate and a CA)", s.name, key)
	}
}

func (l *loader) cluster(cfg *Config, s section) {
	server := s.take("server")
	u, err := url.Parse(server)
	switch {
	case server == "":
		s.fault("%s: server is missing", s.name)
		return
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		s.fault("%s: server %.100q is no URL such as https://10.0.0.1:6443", s.name, server)
		return
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		s.fault("%s: server has more than scheme, host and path", s.name)
		return
	}
	cfg.Server = u
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.take("tls-server-name")}
	tlsConfig.InsecureSkipVerify = s.take("insecure-skip-tls-verify") == "true" // asked for by whoever wrote the file
	if ca := s.bytes("certificate-authority"); ca != nil {
		tlsConfig.RootCAs = x509.NewCertPool()
		if !tlsConfig.RootCAs.AppendCertsFromPEM(ca) {
			s.fault("%s: certificate-authority holds no PEM certificate", s.name)
		}
		if tlsConfig.InsecureSkipVerify {
			s.fault("%s: insecure-skip-tls-verify contradicts certificate-authority", s.name)
		}
	}
	if u.Scheme == "https" {
		cfg.TLS = tlsConfig
	}
	s.rest("disable-compression", "extensions")
}

func (l *loader) user(cfg *Config, s section) {
	cfg.Token = Secret(s.take("token"))
	if path := s.take("tokenFile"); path != "" {
		cfg.TokenFile = l.path(path)
	}
	cert, key := s.bytes("client-certificate"), s.bytes("client-key")
	switch {
	case (cert == nil) != (key == nil):
		if len(l.faults) == 0 {
			s.fault("%s: client-certificate and client-key go together", s.name)
		}
	case cert != nil && cfg.TLS != nil:
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			s.fault("%s: client-certificate: %w", s.name, err)
		}
		cfg.TLS.Certificates = []tls.Certificate{pair}
	}
	s.rest("extensions")
}

// readFile reads a file of bounded size. It waits for no FIFO.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err // names operation and path
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: is no regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKubeconfig+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxKubeconfig {
		return nil, fmt.Errorf("read %s: is larger than %d bytes", path, maxKubeconfig)
	}
	return b, nil
}
