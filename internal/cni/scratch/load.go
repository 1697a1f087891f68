// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/selection"
	"github.com/weftnet/weft/internal/host/brief"
)

const (
	resultsDir = "results"
	cacheKind  = "cniCacheV1"
	// maxBytes bounds one file: 256 networks of 2 MiB are more than Multus ever holds.
	maxBytes = 64 << 20
)

// Attachment is one attachment that Multus made, or began to make.
type Attachment struct {
	plan.Attachment
	// Result is the chain's answer to ADD, as JSON; nil when it is not known. It is the
	// prevResult of a DEL.
	Result []byte
}

// cached is a file of results/.
type cached struct {
	Kind        string                     `json:"kind"`
	ContainerID string                     `json:"containerId"`
	Config      []byte                     `json:"config"` // in JSON: base64
	IfName      string                     `json:"ifName"`
	Args        [][2]string                `json:"cniArgs"`
	Capability  map[string]json.RawMessage `json:"capabilityArgs"`
	Result      json.RawMessage            `json:"result"`
}

// Load gives the attachments of a container, in the order in which they were made. ifName is
// the interface of its pod network, which the scratch file does not hold. No file, and no
// cniDir, is no attachment. Without a scratch file they are what the result files say:
// Multus forgets a scratch file also when a DEL failed, libcni what it undid alone.
//
// A result file gives an attachment's Result, RuntimeConfig and Args. Without a good one,
// RuntimeConfig is what the scratch file remembers, and Args is "": that of the call.
//
// The error names what could not be used; the attachments that come with it are good. Of a
// scratch file that is no JSON array they are what the result files say.
func Load(cniDir, containerID, ifName string) ([]Attachment, error) {
	root, err := open(cniDir, containerID)
	if root == nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // opened for reading
	data, err := read(root, containerID)
	if errors.Is(err, fs.ErrNotExist) {
		return fromResults(root, containerID, ifName)
	}
	if err != nil {
		return nil, fmt.Errorf("read scratch file: %w", err)
	}
	entries, err := Parse(data)
	if err != nil && !json.Valid(data) {
		found, more := fromResults(root, containerID, ifName)
		return found, errors.Join(err, more)
	}
	errs := []error{err}
	var found []Attachment
	for _, e := range entries {
		a, err := e.attachment(ifName)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if c, ok := readCached(root, resultName(&a, containerID)); ok {
			a.apply(&c)
		}
		found = append(found, a)
	}
	return found, errors.Join(errs...)
}

// List gives the container IDs that have a scratch file, sorted. No cniDir is none.
func List(cniDir string) ([]string, error) {
	entries, err := os.ReadDir(cniDir)
	if errors.Is(err, fs.ErrNotExist) || cniDir == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list scratch files: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.Type().IsRegular() && checkID(e.Name()) == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Remove takes away what Multus remembers of a container: its result files first, so that a
// crash leaves the scratch file, and everything is undone once more.
func Remove(cniDir, containerID string) error {
	root, err := open(cniDir, containerID)
	if root == nil {
		return err
	}
	defer root.Close() //nolint:errcheck // opened for reading
	names, err := resultNames(root, containerID)
	errs := []error{err}
	for _, name := range append(names, containerID) {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove scratch file: %w", err))
		}
	}
	return errors.Join(errs...)
}

// open gives cniDir as a root that no name or link leaves; nil when there is none.
func open(cniDir, containerID string) (*os.Root, error) {
	if err := checkID(containerID); err != nil {
		return nil, fmt.Errorf("read scratch file: container ID %w", err)
	}
	if cniDir == "" {
		return nil, nil
	}
	root, err := os.OpenRoot(cniDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read scratch file: %w", err)
	}
	return root, nil
}

// checkID says whether a name is a container ID. CNI's rule for them is that for networks.
func checkID(id string) error { return netconf.NetworkName(id) }

func read(root *os.Root, name string) ([]byte, error) {
	f, err := brief.OpenIn(root, name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO does not hold it up
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxBytes {
		return nil, fmt.Errorf("%s is no regular file of at most %d bytes", name, maxBytes)
	}
	return io.ReadAll(io.LimitReader(f, maxBytes))
}

func resultName(a *Attachment, containerID string) string {
	return path.Join(resultsDir, a.Conf.Name+"-"+containerID+"-"+a.IfName)
}

// readCached reads one result file. libcni tears it when it is killed while writing, so
// that a bad one is as good as none.
func readCached(root *os.Root, name string) (cached, bool) {
	data, err := read(root, name)
	if err != nil {
		return cached{}, false
	}
	return decodeCached(data)
}

func decodeCached(data []byte) (cached, bool) {
	var c cached
	if err := json.Unmarshal(data, &c); err != nil {
		return cached{}, false
	}
	if c.Kind == "" && len(c.Result) == 0 && isObject(data) {
		return cached{Result: data}, true // before libcni 0.8 the file was the result itself
	}
	return c, c.Kind == cacheKind
}

func isObject(raw []byte) bool {
	var fields map[string]json.RawMessage
	return json.Unmarshal(raw, &fields) == nil && fields != nil
}

// apply takes over what a result file knows better. One from before libcni 0.8 knows the
// result only.
func (a *Attachment) apply(c *cached) {
	if isObject(c.Result) {
		a.Result = c.Result
	}
	if c.Kind == "" {
		return
	}
	a.RuntimeConfig = c.Capability
	pairs := make([]string, 0, len(c.Args))
	for _, pair := range c.Args {
		pairs = append(pairs, pair[0]+"="+pair[1])
	}
	a.Args = strings.Join(pairs, ";")
}

// resultNames lists the result files of a container. Their names do not say where the
// network's name ends; container IDs are unique enough to be looked for inside.
func resultNames(root *os.Root, containerID string) ([]string, error) {
	dir, err := brief.OpenIn(root, resultsDir, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list result files: %w", err)
	}
	defer dir.Close() //nolint:errcheck // opened for reading
	all, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list result files: %w", err)
	}
	var names []string
	for _, name := range all {
		if !strings.Contains(name, "-"+containerID+"-") {
			continue
		}
		name = path.Join(resultsDir, name)
		if c, ok := readCached(root, name); ok && c.Kind != "" && c.ContainerID != containerID {
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// fromResults rebuilds what a torn scratch file held: the pod network first, the others by
// interface name, shorter names first, so that net10 follows net9.
func fromResults(root *os.Root, containerID, ifName string) ([]Attachment, error) {
	names, err := resultNames(root, containerID)
	errs := []error{err}
	var found []Attachment
	for _, name := range names {
		c, ok := readCached(root, name)
		if !ok || c.Kind == "" || selection.InterfaceName(c.IfName) != nil {
			continue
		}
		network, err := netconf.ParseNetwork(c.Config, "result file "+name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		a := Attachment{Attachment: plan.Attachment{
			Network: network.Name, IfName: c.IfName, Default: c.IfName == ifName, Conf: network,
		}}
		a.apply(&c)
		found = append(found, a)
	}
	slices.SortStableFunc(found, func(a, b Attachment) int {
		switch {
		case a.Default != b.Default && a.Default:
			return -1
		case a.Default != b.Default:
			return 1
		}
		return cmp.Or(cmp.Compare(len(a.IfName), len(b.IfName)), strings.Compare(a.IfName, b.IfName))
	})
	return found, errors.Join(errs...)
}
