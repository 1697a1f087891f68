// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"path/filepath"
)

// Local is a libvirt of this machine.
type Local struct {
	// Name is the URI that libvirt itself is asked for.
	Name    string
	sockets []string
}

// ParseLocal reads a URI of libvirt's: qemu:///system, qemu:///session (whose socket is below
// runtimeDir), qemu+unix:///system?socket=PATH. Others lead to other machines and are refused.
func ParseLocal(uri, runtimeDir string) (Local, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return Local{}, fmt.Errorf("libvirt URI %q: %w", uri, errors.Unwrap(err))
	}
	if u.Scheme != "qemu" && u.Scheme != "qemu+unix" || u.Host != "" || u.Path != "/system" && u.Path != "/session" {
		return Local{}, fmt.Errorf("libvirt URI %q is none of qemu:///system, qemu:///session, qemu+unix:///system?socket=PATH", uri)
	}
	l := Local{Name: "qemu://" + u.Path}
	for key := range u.Query() {
		if key != "socket" {
			return Local{}, fmt.Errorf("libvirt URI %q: the parameter %q is not known, only socket is", uri, key)
		}
	}
	switch path := u.Query().Get("socket"); {
	case path != "":
		l.sockets = []string{path}
	case u.Path == "/system":
		l.sockets = []string{"/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"}
	case runtimeDir == "":
		return Local{}, fmt.Errorf("libvirt URI %q: the socket of a session is below XDG_RUNTIME_DIR, which is not set", uri)
	default:
		l.sockets = []string{filepath.Join(runtimeDir, "libvirt/virtqemud-sock"), filepath.Join(runtimeDir, "libvirt/libvirt-sock")}
	}
	return l, nil
}

// Dial connects to the first of its sockets that is there.
func (l Local) Dial(ctx context.Context) (conn net.Conn, err error) {
	var d net.Dialer
	for _, path := range l.sockets {
		conn, err = d.DialContext(ctx, "unix", path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return conn, err
}
