// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"slices"
	"strings"
)

// defaultPath serves plugins that run other programs (iptables, nft, modprobe) when
// the runtime gave no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// oneThread has a plugin written in Go start with one thread for its code. A plugin does
// one thing after another, and a Go program is there a millisecond earlier with it.
const oneThread = "GOMAXPROCS=1"

// allowed picks from an environment what a CNI plugin may expect beside its own
// variables. The rest may hold secrets of the runtime's and is nobody's business.
func allowed(env []string) []string {
	var kept []string
	path, threads := false, false
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if !expected(name) {
			continue
		}
		if name == "PATH" {
			if value == "" {
				continue
			}
			path = true
		}
		threads = threads || name == "GOMAXPROCS"
		kept = append(kept, kv)
	}
	if !path {
		kept = append(kept, "PATH="+defaultPath)
	}
	if !threads {
		kept = append(kept, oneThread)
	}
	return kept
}

// expected says which variables plugins get to see.
func expected(name string) bool {
	switch name {
	case "CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH":
		return false // each call has its own
	case "PATH", "HOME", "TMPDIR", "TZ", "LANG", "LC_ALL", "GOMAXPROCS",
		// Plugins that talk to an API server.
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
		"SSL_CERT_FILE", "SSL_CERT_DIR",
		// firewall asks firewalld over D-Bus; iptables has its lock and modules moved in tests and on NixOS.
		"DBUS_SYSTEM_BUS_ADDRESS", "XTABLES_LOCKFILE", "XTABLES_LIBDIR",
		// libcni hands these to plugins that trace.
		"TRACEPARENT", "TRACESTATE", "BAGGAGE":
		return true
	}
	// CNI_NETNS_OVERRIDE and the like: the runtime means plugins to see them.
	return strings.HasPrefix(name, "CNI_")
}

// environ is the CNI part of a plugin's environment.
func (c *Call) environ(command string) []string {
	env := []string{"CNI_COMMAND=" + command, "CNI_PATH=" + c.Path}
	if command == cmdStatus || command == cmdGC {
		return env // they are about a network, not about an attachment
	}
	return slices.Concat(env, []string{
		"CNI_CONTAINERID=" + c.ContainerID, "CNI_NETNS=" + c.Netns, "CNI_IFNAME=" + c.IfName, "CNI_ARGS=" + c.Args,
	})
}
