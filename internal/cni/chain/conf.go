// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/results"
)

// keys are what a command adds to a plugin's configuration; nil = nothing.
type keys struct {
	prevResult    json.RawMessage
	runtimeConfig map[string]json.RawMessage
	valid         json.RawMessage
}

// pluginConf makes what plugin i reads on stdin.
func pluginConf(n netconf.Network, i int, k keys) ([]byte, error) {
	plugin := n.Plugins[i]
	o, err := netconf.ParseObject(slices.Clone(plugin.Conf))
	if err != nil {
		return nil, fmt.Errorf("configuration %w", err)
	}
	if n.Name != "" {
		o.Set("name", quoted(n.Name))
	}
	if n.CNIVersion != "" {
		o.Set("cniVersion", quoted(n.CNIVersion))
	}
	if k.prevResult != nil {
		o.Set("prevResult", k.prevResult)
	}
	if args := declared(plugin, k.runtimeConfig); args != nil {
		o.Set("runtimeConfig", args)
	}
	if k.valid != nil {
		o.Set("cni.dev/valid-attachments", k.valid)
		// The CNI SPEC called the key by this name for a while, and plugins read it.
		o.Set("cni.dev/attachments", k.valid)
	}
	return o.Bytes(), nil
}

// declared picks the capability arguments that a plugin declares, sorted, with their
// bytes unchanged; nil when there is none.
func declared(p netconf.Plugin, args map[string]json.RawMessage) json.RawMessage {
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if !p.Capabilities[name] {
			continue
		}
		b = append(b, ',')
		b = append(append(append(b, quoted(name)...), ':'), args[name]...)
	}
	if b == nil {
		return nil
	}
	b[0] = '{'
	return append(b, '}')
}

func quoted(s string) json.RawMessage {
	b, _ := json.Marshal(s) // a string cannot fail
	return b
}

// convert writes a result in a version; nil stays nil.
func convert(result []byte, version string) (json.RawMessage, error) {
	if result == nil {
		return nil, nil
	}
	r, err := results.Parse(result, version)
	if err != nil {
		return nil, err
	}
	return r.Encode(version)
}

// atLeast reports whether a CNI version is major.minor or newer. What is no version
// is older than any.
func atLeast(version string, major, minor int) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	a, err := strconv.Atoi(first)
	if err != nil {
		return false
	}
	b, err := strconv.Atoi(second)
	if err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}

// Find looks a plugin up in a list of directories (colon-separated, as CNI_PATH). The
// type is a bare file name, the plugin an executable regular file or a link to one.
func Find(pluginType, path string) (string, error) {
	if pluginType == "" || pluginType == "." || pluginType == ".." || strings.ContainsAny(pluginType, "/\x00") {
		return "", fmt.Errorf("type %s is not a bare file name", fault.Quote(pluginType))
	}
	unusable := ""
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			continue
		}
		file := filepath.Join(dir, pluginType)
		info, err := os.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid):
		case err != nil:
			unusable = err.Error()
		case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
			unusable = file + " is not an executable file"
		default:
			return file, nil
		}
	}
	if unusable != "" {
		return "", fmt.Errorf("find plugin %s: %s", fault.Quote(pluginType), unusable)
	}
	return "", fmt.Errorf("find plugin %s: no such file in %s: %w", fault.Quote(pluginType), fault.Quote(path), fs.ErrNotExist)
}
