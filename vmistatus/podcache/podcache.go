// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podcache reads KubeVirt's pod interface cache: <root>/<VMI UID>/<network>, one JSON file
// for each network of a machine's pod.
//
// It owns the layout and the three outcomes of a read: there is no file (fs.ErrNotExist), there
// is one that cannot be read (any other error), it was read, perhaps without addresses.
//
// Invariants: a read never leaves the root, whatever symbolic links lie below it and whatever a
// UID or network is called; it takes only regular files and never more than 256 KiB of one; it
// never waits for a writer. It must not know what the addresses are used for, nor keep what it
// read: vmistatus.NetStat does.
//
// Implements: architecture 3, 4.7; spec/vmi-status.md 1.6, rule 6.
package podcache

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/vmistatus"
)

// DefaultRoot is where KubeVirt keeps the files on a node.
const DefaultRoot = "/var/run/kubevirt-private/network-info-cache"

const maxFile = 256 << 10

// Dir reads and writes the files below a root.
type Dir struct{ root string }

// New is the cache below root; an empty one is DefaultRoot. The root need not exist yet.
func New(root string) Dir {
	if root == "" {
		root = DefaultRoot
	}
	return Dir{root}
}

// file is what is used of a file; the rest of it is KubeVirt's.
type file struct {
	Iface        json.RawMessage `json:"iface,omitempty"`
	PodIP        string          `json:"podIP,omitempty"`
	PodIPs       []string        `json:"podIPs,omitempty"`
	NetworkState int             `json:"networkState,omitempty"`
}

// Read is what was stored of a network of a machine's pod.
func (d Dir) Read(vmi types.UID, network string) (vmistatus.PodRead, error) {
	b, err := d.read(string(vmi), network)
	if err != nil {
		return vmistatus.PodRead{}, fmt.Errorf("read pod interface cache: %w", err)
	}
	r, err := Parse(b)
	if err != nil {
		return r, fmt.Errorf("read pod interface cache: %s/%s: %w", vmi, network, err)
	}
	return r, nil
}

// Parse reads the text of one file.
func Parse(text []byte) (vmistatus.PodRead, error) {
	if len(text) > maxFile {
		return vmistatus.PodRead{}, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	var f *file
	if err := json.Unmarshal(text, &f); err != nil {
		return vmistatus.PodRead{}, err
	}
	if f == nil {
		return vmistatus.PodRead{}, errors.New("it is null")
	}
	return vmistatus.PodRead{PodIP: f.PodIP, PodIPs: f.PodIPs}, nil
}

func (d Dir) read(vmi, network string) ([]byte, error) {
	root, err := os.OpenRoot(d.root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	path, err := below(vmi, network)
	if err != nil {
		return nil, err
	}
	// Not to wait for a writer of what may be a pipe.
	f, err := root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("no regular file")}
	}
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// Write stores what is known of a network; what KubeVirt keeps beside it in the file is lost.
func (d Dir) Write(vmi types.UID, network string, r vmistatus.PodRead) error {
	path, err := below(string(vmi), network)
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(file{PodIP: r.PodIP, PodIPs: r.PodIPs}, "", "  ")
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(d.root)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := root.WriteFile(temp, b, 0o604); err != nil {
		return err
	}
	return root.Rename(temp, path)
}

// Remove forgets a network; one that is not there is none.
func (d Dir) Remove(vmi types.UID, network string) error {
	path, err := below(string(vmi), network)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(d.root)
	if err != nil {
		return absent(err)
	}
	defer root.Close()
	return absent(root.Remove(path))
}

func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// below is the path of a file below the root.
func below(vmi, network string) (string, error) {
	for _, name := range []string{vmi, network} {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			return "", fmt.Errorf("%q is no name of a file", name)
		}
	}
	return filepath.Join(vmi, network), nil
}
