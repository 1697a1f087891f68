// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package confpub

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// confMode keeps what the primary's conf may hold to root.
const confMode fs.FileMode = 0o600

// seen is what one look at the disk found.
type seen struct {
	own     []byte // the published file, nil = none that can be read
	mode    fs.FileMode
	earlier string // the file that the runtime takes before the published one, "" = none
	files   []File
	err     error // why the directory cannot be read
}

// look reads the published file and all that may be the primary.
func (o Options) look() seen {
	var s seen
	root, err := os.OpenRoot(o.ConfDir)
	if err != nil {
		s.err = err
		if o.PrimaryConf != "" {
			s.files = candidates(o.PrimaryConf)
		}
		return s
	}
	defer root.Close()
	if info, err := root.Lstat(o.ConfName); err == nil {
		s.mode = info.Mode()
		// What cannot be read is none that the runtime could use, and is replaced.
		s.own, _ = hostfiles.ReadRegular(root, o.ConfName, 2*netconf.MaxBytes)
	}
	names, err := confNames(root)
	s.err = err
	var paths []string
	for _, name := range names {
		if name < o.ConfName && s.earlier == "" {
			s.earlier = name
		}
		if name != o.ConfName {
			paths = append(paths, filepath.Join(o.ConfDir, name))
		}
	}
	if o.PrimaryConf != "" {
		paths = []string{o.PrimaryConf}
	}
	s.files = candidates(paths...)
	return s
}

// confNames lists what libcni takes for confs, in its order.
func confNames(root *os.Root) ([]string, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	var names []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, err
}

// candidates reads files with the plugins of their sub-directories. One that is not there
// is left out.
func candidates(paths ...string) []File {
	var all []File
	for _, path := range paths {
		path = filepath.Clean(path)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		got := hostfiles.Read(&netconf.Conf{ClusterNetwork: path}, plan.Need("path/"+path), "")
		f := File{Path: path, Data: got.Data, Chained: got.Chained}
		switch n := len(got.Warnings); {
		case got.Found && got.Path == path:
		case got.Found:
			f.Err = errors.New("is a directory")
		case n > 0:
			f.Err = errors.New(got.Warnings[n-1].Text)
		default:
			f.Err = errors.New("cannot be read")
		}
		all = append(all, f)
	}
	return all
}
