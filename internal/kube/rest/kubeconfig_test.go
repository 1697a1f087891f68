// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package rest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/kube/kubetest"
	"github.com/weftnet/weft/internal/kube/rest"
)

const head = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"

func file(cluster, user string) string {
	return head + "clusters: [{name: k, cluster: {" + cluster + "}}]\nusers: [{name: u, user: {" + user + "}}]\n"
}

const server = "server: 'https://10.0.0.1:6443'"

func TestParse(t *testing.T) {
	dir := t.TempDir()
	cfg, err := rest.Parse([]byte(file(
		"server: 'https://10.0.0.1:6443/k8s/clusters/c-1', tls-server-name: kube, extensions: [{name: x}], disable-compression: true",
		"token: t0p, tokenFile: sub/token, username: '', exec: null")), dir)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Server.String() != "https://10.0.0.1:6443/k8s/clusters/c-1" || cfg.TLS.ServerName != "kube" || cfg.TLS.InsecureSkipVerify {
		t.Errorf("cluster is %+v", cfg)
	}
	if cfg.Token != "t0p" || cfg.TokenFile != filepath.Join(dir, "sub/token") {
		t.Errorf("token file is %q", cfg.TokenFile)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", cfg, cfg, cfg, cfg.Token); strings.Contains(text, "t0p") {
		t.Errorf("prints the token: %s", text)
	}
}

// TestParseOthersAreNotLookedAt: what stands in other contexts is nobody's business.
func TestParseOthersAreNotLookedAt(t *testing.T) {
	text := strings.Replace(file(server, "token: x"), "users: [", "users: [{name: admin, user: {exec: {command: aws}}}, ", 1)
	text = strings.Replace(text, "clusters: [", "clusters: [{name: far, cluster: {proxy-url: 'http://p'}}, ", 1)
	cfg, err := rest.Parse([]byte(text), "/")
	if err != nil || cfg.Token != "x" {
		t.Errorf("config %v, %v", cfg, err)
	}
}

func TestParseRefuses(t *testing.T) {
	unsupported := " is not supported (supported are a token, a token file, a client certificate and a CA)"
	for name, c := range map[string]struct{ text, want string }{
		"exec":             {file(server, "exec: {command: aws}"), `user "u": "exec"` + unsupported},
		"auth-provider":    {file(server, "auth-provider: {name: gcp}"), `user "u": "auth-provider"` + unsupported},
		"password":         {file(server, "username: a, password: b"), "user \"u\": \"password\"" + unsupported + "\nuser \"u\": \"username\"" + unsupported},
		"impersonation":    {file(server, "token: x, as: root, as-groups: [a]"), "user \"u\": \"as\"" + unsupported + "\nuser \"u\": \"as-groups\"" + unsupported},
		"proxy":            {file(server+", proxy-url: 'http://p'", ""), `cluster "k": "proxy-url"` + unsupported},
		"unknown":          {file(server+", colour: red", ""), `cluster "k": "colour"` + unsupported},
		"no server":        {file("", ""), `cluster "k": server is missing`},
		"server":           {file("server: 10.0.0.1", ""), `cluster "k": server "10.0.0.1" is no URL such as https://10.0.0.1:6443`},
		"scheme":           {file("server: 'ftp://x'", ""), `cluster "k": server "ftp://x" is no URL such as https://10.0.0.1:6443`},
		"password in it":   {file("server: 'https://a:b@x'", ""), `cluster "k": server has more than scheme, host and path`},
		"half a pair":      {file(server, "client-key-data: eA=="), `user "u": client-certificate and client-key go together`},
		"certificate":      {file(server, "client-certificate-data: eA==, client-key-data: eA=="), `user "u": client-certificate: tls: failed to find any PEM data in certificate input`},
		"base64":           {file(server+", certificate-authority-data: '!'", ""), `cluster "k": certificate-authority-data is not base64: illegal base64 data at input byte 0`},
		"CA":               {file(server+", certificate-authority-data: eA==", ""), `cluster "k": certificate-authority holds no PEM certificate`},
		"CA file":          {file(server+", certificate-authority: none.pem", ""), `cluster "k": certificate-authority: open /d/none.pem: no such file or directory`},
		"a list for text":  {file(server, "token: [a]"), `user "u": token is not text`},
		"no context":       {strings.Replace(file(server, ""), "current-context: c\n", "", 1), "current-context is missing"},
		"unknown context":  {strings.Replace(file(server, ""), "current-context: c\n", "current-context: z\n", 1), `current-context is "z", and the file has no such context`},
		"unknown user":     {strings.Replace(file(server, ""), "user: u}", "user: w}", 1), `current-context "c" names user "w", which the file lacks`},
		"unknown cluster":  {strings.Replace(file(server, ""), "cluster: k,", "cluster: w,", 1), `current-context "c" names cluster "w", which the file lacks`},
		"insecure and CA":  {file(server+", insecure-skip-tls-verify: true, certificate-authority-data: eA==", ""), "cluster \"k\": certificate-authority holds no PEM certificate\ncluster \"k\": insecure-skip-tls-verify contradicts certificate-authority"},
		"no YAML":          {"{", "decode kubeconfig: yaml: line 1: did not find expected node content"},
		"something other":  {"a: b", "current-context is missing"},
		"nothing":          {"", "current-context is missing"},
		"a list of things": {"- a", "decode kubeconfig: yaml: construct errors:\n  line 1: cannot construct !!seq into rest.kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := rest.Parse([]byte(c.text), "/d")
			if err == nil || cfg != nil {
				t.Fatalf("config %v, want %s", cfg, c.want)
			}
			if name == "no YAML" || name == "a list of things" { // the library words the rest
				c.want, _, _ = strings.Cut(c.want, "yaml: ")
				if !strings.HasPrefix(err.Error(), c.want) {
					t.Errorf("error %q, want %q…", err, c.want)
				}
				return
			}
			if err.Error() != c.want {
				t.Errorf("error %q\n want %q", err, c.want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	s := kubetest.New(t, kubetest.WithClientCertificates())
	cfg, err := rest.Load(s.Kubeconfig(nil))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Server.String() != s.URL() || len(cfg.TLS.Certificates) != 1 || cfg.TLS.RootCAs == nil {
		t.Errorf("config %+v", cfg)
	}
	if _, err := rest.Load("/none/of"); err == nil || err.Error() != "open /none/of: no such file or directory" {
		t.Errorf("error %v", err)
	}
	big := filepath.Join(t.TempDir(), "k")
	if err := os.WriteFile(big, make([]byte, 1<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rest.Load(big); err == nil || !strings.HasSuffix(err.Error(), "is larger than 1048576 bytes") {
		t.Errorf("error %v", err)
	}
}

// FuzzParse: any bytes give a config that names a server, or an error; and no file
// outside is needed for either.
func FuzzParse(f *testing.F) {
	f.Add([]byte(file(server, "token: x")))
	f.Add([]byte(file("server: 'http://[::1]:8080/a/../b', insecure-skip-tls-verify: true", "tokenFile: /dev/null")))
	f.Add([]byte(file(server, "exec: {command: x}, as: y")))
	f.Add([]byte(head + "clusters: [{name: k, cluster: &a {server: *a}}]"))
	f.Add([]byte("current-context: c\ncontexts: [null]\nclusters: 7"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Contains(string(data), "certificate-authority:") || strings.Contains(string(data), "client-") {
			t.Skip("may name files of the machine")
		}
		cfg, err := rest.Parse(data, "/d")
		switch {
		case err != nil:
			if cfg != nil || err.Error() == "" {
				t.Errorf("config %v beside %v", cfg, err)
			}
		case cfg.Server == nil || cfg.Server.Host == "" || cfg.Server.User != nil:
			t.Errorf("server is %v", cfg.Server)
		case (cfg.TLS != nil) != (cfg.Server.Scheme == "https"):
			t.Errorf("TLS %v for %v", cfg.TLS, cfg.Server)
		case cfg.TokenFile != "" && !filepath.IsAbs(cfg.TokenFile):
			t.Errorf("token file is %q", cfg.TokenFile)
		}
	})
}
