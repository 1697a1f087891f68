// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weftnet/weft/internal/cni/chain"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
)

// hostRoot is where a host's files are mounted; "" = this machine's own.
type hostRoot string

// maxLinks bounds the symbolic links of one path, as the kernel does.
const maxLinks = 40

// path gives the place of a path of the host. Links are followed as the host would follow
// them: an absolute one leads to the host's root, and none leads out of it.
func (r hostRoot) path(path string) string {
	if r == "" {
		return path
	}
	done, rest := "/", parts(path)
	for links := 0; len(rest) > 0; {
		next := filepath.Join(done, rest[0]) // ".." of the root is the root
		rest = rest[1:]
		target, err := os.Readlink(filepath.Join(string(r), next))
		if err != nil {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return filepath.Join(string(r), next) // whoever opens it is told the same
		}
		if filepath.IsAbs(target) {
			done = "/"
		}
		rest = append(parts(target), rest...)
	}
	return filepath.Join(string(r), done)
}

// parts are the names of a path; ".." stays, since what it means depends on links.
func parts(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
}

// here says that the host is this machine.
func (r hostRoot) here() bool { return r == "" }

// program finds a plugin in directories of the host (separated by colons), as weft-cni
// does, and gives its place.
func (r hostRoot) program(name, dirs string) (string, error) {
	if r.here() || netconf.PluginType(name) != nil {
		return chain.Find(name, dirs)
	}
	for _, dir := range filepath.SplitList(dirs) {
		at := r.path(filepath.Join(dir, name))
		if found, err := chain.Find(filepath.Base(at), filepath.Dir(at)); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("find plugin %s: no such executable file in %s below %s", fault.Quote(name), fault.Quote(dirs), string(r))
}
