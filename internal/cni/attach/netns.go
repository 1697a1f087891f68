// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/brief"
)

// netns tells one network namespace from another.
type netns struct {
	id     string // device and inode of its file; "" when there is none
	unique uint64 // the kernel's number of it; 0 where that does not tell
}

func netnsAt(path string) netns {
	if path == "" {
		return netns{}
	}
	info, err := os.Stat(path)
	if err != nil {
		return netns{}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return netns{}
	}
	return netns{id: fmt.Sprintf("%d:%d", st.Dev, st.Ino), unique: uniqueNetns(path, st)}
}

// uniqueNetns is the kernel's number of the namespace that was just looked at.
func uniqueNetns(path string, looked *syscall.Stat_t) uint64 {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(path, &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		return 0 // opening what is no namespace may do something
	}
	f, err := brief.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0
	}
	defer f.Close() //nolint:errcheck // it is read from
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil || st.Dev != looked.Dev || st.Ino != looked.Ino {
		return 0
	}
	var unique uint64
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), unix.NS_GET_ID, uintptr(unsafe.Pointer(&unique))); errno != 0 {
		return 0 // a kernel before 6.18
	}
	return unique
}

// is says whether it is the namespace that a record is about, as far as can be told.
func (n netns) is(b *record.Body) bool {
	return n.id != "" && n.id == b.NetnsID &&
		(n.unique == 0 || b.NetnsUnique == 0 || n.unique == b.NetnsUnique)
}
