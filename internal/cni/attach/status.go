// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"path/filepath"

	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/hostfiles"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
)

// checkPrimary says that the file which the published conf's delegates were taken from is
// missing or broken: the pod network is being changed or taken away, although the
// delegates still work as they were.
func (h *hands) checkPrimary() error {
	path := h.conf.PrimaryConf
	if path == "" {
		return nil
	}
	object := "primaryConf " + path
	read := hostfiles.Read(&netconf.Conf{ClusterNetwork: path}, plan.Need("path/"+path), "")
	switch {
	case !read.Found && len(read.Warnings) > 0:
		return fault.New(fault.Unavailable, object, "", "%s", read.Warnings[len(read.Warnings)-1].Text)
	case !read.Found || read.Path != filepath.Clean(path):
		return fault.New(fault.Unavailable, object, "", "is no file")
	}
	if _, err := netconf.ParseFile(read.Data, read.Chained, object); err != nil {
		return &fault.Fault{Code: fault.Unavailable, Text: err.Error(), Err: err}
	}
	return nil
}
