// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/host/replace"
)

// Plugin is the name of the plugin's file.
const Plugin = "weft-cni"

// Options say where things are on the node. Empty ones are the defaults.
type Options struct {
	ConfDir  string // /etc/cni/net.d
	ConfName string // 00-weft.conflist
	BinDir   string // /opt/cni/bin
	StateDir string // /var/lib/weft
	// Source is the weft-cni to install; "" = the one beside the running executable.
	Source string
	// AgentSocket is where an agent would answer; "" = where the published conf says.
	AgentSocket string
	// Force has Uninstall undo the records that are left.
	Force bool
}

func (o Options) filled() (Options, error) {
	def := netconf.Defaults()
	var faults []error
	for _, p := range []struct {
		key, def string
		value    *string
	}{
		{"confDir", "/etc/cni/net.d", &o.ConfDir},
		{"binDir", def.BinDir, &o.BinDir},
		{"stateDir", def.StateDir, &o.StateDir},
	} {
		if *p.value == "" {
			*p.value = p.def
		}
		if !filepath.IsAbs(*p.value) {
			faults = append(faults, fmt.Errorf("%s: %q is not absolute", p.key, *p.value))
		}
	}
	if o.ConfName == "" {
		o.ConfName = "00-weft.conflist"
	}
	if o.ConfName != path.Base(o.ConfName) {
		faults = append(faults, fmt.Errorf("confName: %q is no file name", o.ConfName))
	}
	return o, errors.Join(faults...)
}

// plugin is the installed weft-cni.
func (o Options) plugin() string { return filepath.Join(o.BinDir, Plugin) }

// source is the weft-cni to install.
func (o Options) source() (string, error) {
	if o.Source != "" {
		return o.Source, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find %s beside the running executable: %w", Plugin, err)
	}
	return filepath.Join(filepath.Dir(self), Plugin), nil
}

// Install puts weft-cni into binDir, unless it is there already, and clears what an
// earlier Install that was killed left.
func Install(ctx context.Context, o Options) (changed bool, err error) {
	if o, err = o.filled(); err != nil {
		return false, err
	}
	source, err := o.source()
	if err != nil {
		return false, err
	}
	content, err := read(source)
	if err != nil {
		return false, fmt.Errorf("read the plugin to install: %w", err)
	}
	if len(content) == 0 {
		return false, fmt.Errorf("read the plugin to install: %s is empty", source)
	}
	if info, err := os.Stat(o.BinDir); err != nil {
		return false, fmt.Errorf("binDir: %w; the host's plugin directory must be there, and be mounted here under the same name", err)
	} else if !info.IsDir() {
		return false, fmt.Errorf("binDir: %s is no directory", o.BinDir)
	}
	if _, err := replace.Leftovers(o.plugin()); err != nil {
		return false, hint(err)
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if info, err := os.Lstat(o.plugin()); err == nil && info.Mode() == pluginMode {
		if there, err := read(o.plugin()); err == nil && bytes.Equal(there, content) {
			return false, nil
		}
	}
	return true, hint(replace.File(o.plugin(), pluginMode, bytes.NewReader(content)))
}

const pluginMode fs.FileMode = 0o755

// read reads a regular file.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	return io.ReadAll(f)
}

// hint says what to do about the usual reasons.
func hint(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("binDir: %w; it must be mounted for writing, or binDir be one that the runtime looks in and that can be written", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("binDir: %w; only root may write there", err)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("binDir: %w; the old plugin is still in its place", err)
	}
	return fmt.Errorf("binDir: %w", err)
}
