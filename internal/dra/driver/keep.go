// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/renameio/v2"
	"k8s.io/apimachinery/pkg/version"

	"github.com/weftnet/weft/api/v2alpha1"
)

// kept is the file of the last good spec.
func (d *Driver) kept() string { return filepath.Join(d.cfg.StateDir, "networkdriver.json") }

// load has the last good spec of an earlier process in force until the API says otherwise. A file
// that cannot be read is as good as none: the API has the configuration as well.
func (d *Driver) load() {
	data, err := os.ReadFile(d.kept())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	spec := &v2alpha1.CiliumNetworkDriverNodeConfigSpec{}
	if err == nil {
		err = json.Unmarshal(data, spec)
	}
	if err == nil {
		spec.SetDefaults()
		err = spec.ValidateFor(d.cfg.Node)
	}
	if err != nil {
		d.cfg.Log.Warn("last good configuration is lost", "file", d.kept(), "error", err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.force == nil && (!d.told || d.invalid != nil) {
		d.force = spec
	}
}

// deleted says that the API has no configuration, which is not the same as not knowing.
func (d *Driver) deleted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.told && d.news == nil
}

// keep writes the spec in force down.
func (d *Driver) keep(ctx context.Context) {
	spec := d.inForce()
	if spec == nil {
		if !d.deleted() {
			return
		}
		if err := os.Remove(d.kept()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.cfg.Log.WarnContext(ctx, "last good configuration is not forgotten", "error", err)
		}
		return
	}
	data, err := json.Marshal(spec)
	if err == nil {
		var before []byte
		if before, err = os.ReadFile(d.kept()); err == nil && bytes.Equal(before, data) {
			return
		}
		const mode = 0o600
		err = renameio.WriteFile(d.kept(), data, mode, renameio.WithTempDir(d.cfg.StateDir))
	}
	if err != nil {
		d.cfg.Log.WarnContext(ctx, "configuration is not kept: after a restart it is in force only if the API has it still", "error", err)
	}
}

// The first Kubernetes whose resource.k8s.io/v1 is there without being asked for.
const minMajor, minMinor = 1, 34

// supported waits for the API server's version, and says whether the driver can work with it. A
// node that had a configuration once does not wait: what was prepared must be given back whether
// the API server is there or not.
func (d *Driver) supported(ctx context.Context) bool {
	if _, err := os.Stat(d.kept()); err == nil {
		return true
	}
	var v *version.Info
	ok := insist(ctx, func() (err error) {
		v, err = d.cfg.Client.Discovery().ServerVersion()
		return err
	}, func(err error, pause time.Duration) {
		d.cfg.Log.Warn("version of the API server is not known yet", "error", err, "next", pause)
	})
	if !ok {
		return false
	}
	if !enough(v) {
		d.cfg.Log.Info("network driver is off: it needs Kubernetes 1.34", "version", v.GitVersion)
		return false
	}
	return true
}

// enough reads a version; what cannot be read is taken for a new one.
func enough(v *version.Info) bool {
	number := func(s string) (int, bool) {
		end := 0
		for end < len(s) && s[end] >= '0' && s[end] <= '9' {
			end++
		}
		n, err := strconv.Atoi(s[:end])
		return n, err == nil
	}
	major, ok := number(v.Major)
	minor, ok2 := number(v.Minor)
	return !ok || !ok2 || major > minMajor || major == minMajor && minor >= minMinor
}
