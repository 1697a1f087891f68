// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package results reads and writes what CNI plugins answer to ADD, in every version
// of the format from 0.1.0 to 1.1.0.
//
// Invariants: a Result that Parse gave can be written in every version (what an old
// version cannot say is left out, never invented); one that nobody edited is written
// in its own version with the bytes that the plugin wrote; no input panics.
//
// It knows nothing of processes, plugins and records. It is pure: values in, values
// out. Implements CNI SPEC 1.1 section 5 (result types) and spec/cni.md rules 2 and 8.
package results

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types020 "github.com/containernetworking/cni/pkg/types/020"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// Oldest is the version that a result or a configuration has when it names none.
const Oldest = "0.1.0"

// Versions lists the CNI versions whose results are known, oldest first.
func Versions() []string {
	return []string{Oldest, "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

// Known reports whether a version is one of Versions; "" counts as Oldest.
func Known(version string) bool {
	return version == "" || slices.Contains(Versions(), version)
}

// Result is what a plugin answered to ADD.
type Result struct {
	// Current is the result in the newest form. It is to be read only: EditDefaultRoutes
	// and SetDefaults are what changes it.
	Current *types100.Result
	// Version is the version in which the plugin wrote it.
	Version string

	raw []byte // as written, cniVersion included; nil once edited
}

// Parse reads a result. One that names no version has that of the configuration
// which its plugin was given. An object without anything in it is a result. The
// error names the field and quotes nothing of any length.
func Parse(b []byte, confVersion string) (*Result, error) {
	o, err := netconf.ParseObject(slices.Clone(b))
	if err != nil {
		return nil, fmt.Errorf("result %w", err)
	}
	version, err := versionOf(o, confVersion)
	if err != nil {
		return nil, err
	}
	raw := o.Bytes()
	old, err := create.Create(version, raw)
	if err != nil {
		return nil, fmt.Errorf("decode result of version %s: %w", version, err)
	}
	if err := check(old); err != nil {
		return nil, err
	}
	current, err := types100.NewResultFromResult(old)
	if err != nil {
		return nil, fmt.Errorf("convert result of version %s: %w", version, err)
	}
	if err := checkCurrent(current); err != nil {
		return nil, err
	}
	return &Result{Current: current, Version: version, raw: raw}, nil
}

// versionOf gives the version of a result, writing it into o when it is missing.
func versionOf(o *netconf.Object, confVersion string) (string, error) {
	var version string
	if raw, ok := o.Get("cniVersion"); ok {
		if err := json.Unmarshal(raw, &version); err != nil {
			return "", fmt.Errorf("result cniVersion is %s, a string is needed", netconf.Kind(raw))
		}
	}
	if version == "" {
		if version = confVersion; version == "" {
			version = Oldest
		}
		o.Set("cniVersion", quoted(version))
	}
	if !Known(version) {
		return "", fmt.Errorf("result cniVersion %s is none of %v", fault.Quote(version), Versions())
	}
	return version, nil
}

// check refuses null elements, on which the converters of the CNI types panic.
func check(r types.Result) error {
	switch r := r.(type) {
	case *types100.Result:
		return checkCurrent(r)
	case *types040.Result:
		if i := slices.Index(r.Interfaces, nil); i >= 0 {
			return fmt.Errorf("result interfaces[%d] is null", i)
		}
		if i := slices.Index(r.IPs, nil); i >= 0 {
			return fmt.Errorf("result ips[%d] is null", i)
		}
		if i := slices.Index(r.Routes, nil); i >= 0 {
			return fmt.Errorf("result routes[%d] is null", i)
		}
	}
	return nil // 0.1.0 and 0.2.0 have no lists of pointers
}

// checkCurrent refuses null elements and addresses that are missing: they decode,
// but what is written from them is no result any more.
func checkCurrent(r *types100.Result) error {
	for i, link := range r.Interfaces {
		if link == nil {
			return fmt.Errorf("result interfaces[%d] is null", i)
		}
	}
	for i, ip := range r.IPs {
		if ip == nil {
			return fmt.Errorf("result ips[%d] is null", i)
		}
		if ip.Address.IP == nil {
			return fmt.Errorf("result ips[%d].address is missing", i)
		}
	}
	for i, route := range r.Routes {
		if route == nil {
			return fmt.Errorf("result routes[%d] is null", i)
		}
		if route.Dst.IP == nil {
			return fmt.Errorf("result routes[%d].dst is missing", i)
		}
	}
	return nil
}

// Bytes writes the result in the version in which its plugin did, and, as long as nobody
// edited it, byte for byte as its plugin did.
func (r *Result) Bytes() ([]byte, error) { return r.Encode(r.Version) }

// Encode writes the result in a version; "" is Oldest.
func (r *Result) Encode(version string) ([]byte, error) {
	if version == "" {
		version = Oldest
	}
	if version == r.Version && r.raw != nil {
		return r.raw, nil
	}
	if !Known(version) {
		return nil, fmt.Errorf("encode result: cniVersion %s is none of %v", fault.Quote(version), Versions())
	}
	var out types.Result = &types020.Result{CNIVersion: version, DNS: r.Current.DNS}
	if !old(version) || len(r.Current.IPs) > 0 {
		var err error
		if out, err = r.Current.GetAsVersion(version); err != nil {
			return nil, fmt.Errorf("convert result to version %s: %w", version, err)
		}
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return b, nil
}

// old reports whether results of a version have the form of the time before interfaces
// were listed. The converters refuse to write that form without an address; Encode does
// not, because an attachment without addresses is one all the same.
func old(version string) bool { return version == Oldest || version == "0.2.0" }

// Empty is the valid result without anything in it that an auxiliary chain starts from.
func Empty(version string) []byte {
	if version == "" {
		version = Oldest
	}
	return fmt.Appendf(nil, `{"cniVersion":%s}`, quoted(version))
}

func quoted(s string) json.RawMessage {
	b, _ := json.Marshal(s) // a string cannot fail
	return b
}
