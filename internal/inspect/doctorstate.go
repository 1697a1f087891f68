// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// Free space below which the journal is at risk: a record has some KiB, and no ADD goes
// without one.
const (
	littleSpace = 100 << 20
	noSpace     = 1 << 20
	littleNodes = 1000
)

// checkState looks at the state directory: who may change it, and whether there is room.
func (d *doctor) checkState() {
	const check = "state"
	at := d.root.path(d.StateDir)
	if _, err := os.Lstat(at); errors.Is(err, fs.ErrNotExist) {
		d.info(check, "%s is not there yet; the first ADD makes it", d.StateDir)
		return
	}
	good := true
	for _, sub := range []string{"", "attachments", "lanes", "quarantine", "sweep"} {
		path, forbidden := filepath.Join(d.StateDir, sub), fs.FileMode(0o077)
		if sub == "" { // where the kubelet makes it, for the agent's pod, others may look into it
			forbidden = 0o022
		}
		if text := private(filepath.Join(at, sub), forbidden); text != "" {
			good = false
			d.add(ResultFault, check, path+" "+text, "make it a directory of root's with mode 0700 and see who changed it: who can write there can make Weft run anything")
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		d.notSeen("the free space of %s: %v", d.StateDir, err)
		return
	}
	free := st.Bavail * uint64(st.Bsize)
	space := fmt.Sprintf("%s has %s MiB free", d.StateDir, strconv.FormatUint(free>>20, 10))
	const do = "make room: without a record there is no ADD"
	switch {
	case free < noSpace:
		d.add(ResultFault, check, space, do)
	case free < littleSpace:
		d.add(ResultWarn, check, space, do)
	case st.Files > 0 && st.Ffree < littleNodes:
		d.add(ResultWarn, check, fmt.Sprintf("the file system of %s has %d inodes left", d.StateDir, st.Ffree), do)
	case good:
		d.ok(check, "%s is root's alone to change, and %s", d.StateDir, strings.TrimPrefix(space, d.StateDir+" "))
	}
}

// private says what is wrong with a directory that is its owner's, root's or this user's, and
// gives nobody the forbidden bits of its mode; "" also when it is not there.
func private(path string, forbidden fs.FileMode) string {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil:
		return "cannot be looked at: " + cause(err).Error()
	case !info.IsDir():
		return "is no directory"
	case info.Mode().Perm()&forbidden != 0:
		return fmt.Sprintf("is open to others (mode %#o)", info.Mode().Perm())
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err == nil && st.Uid != 0 && st.Uid != uint32(os.Geteuid()) {
		return fmt.Sprintf("belongs to user %d", st.Uid)
	}
	return ""
}

// tally counts records by what is the matter with them, and names a few.
type tally struct {
	all, fine                             int
	underWay, stuck, dead, corrupt, newer []string
}

// stuckAfter is when an ADD or DEL that is under way is taken for broken off: no call of a
// runtime lasts longer.
const stuckAfter = 5 * time.Minute

// checkRecords counts the records, without their locks.
func (d *doctor) checkRecords() {
	const check = "records"
	dir := filepath.Join(d.root.path(d.StateDir), "attachments")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return
	}
	store, err := journal.Open(dir, record.Kind) // makes nothing: it is there
	if err != nil {
		d.notSeen("the records: %v", err)
		return
	}
	defer store.Close()
	keys, err := store.Keys()
	if err != nil {
		d.notSeen("the records: %v", err)
		return
	}
	var t tally
	for _, key := range keys {
		d.count(&t, store, key)
	}
	tell := func(result string, keys []string, text, do string) {
		if len(keys) > 0 {
			d.add(result, check, fmt.Sprintf("%s %s: %s", count(len(keys), "record"), text, some(keys)), do)
		}
	}
	tell(ResultInfo, t.underWay, "half-done: an ADD or DEL is under way", "")
	tell(ResultWarn, t.stuck, "half-done for more than 5 minutes", "the runtime's next DEL undoes it; weft get pods says what failed")
	tell(ResultWarn, t.dead, "of a sandbox that is gone", "later calls undo it, a few at a time; if it stays, see what its plugins answer: weft get pods")
	tell(ResultFault, t.corrupt, "that cannot be read", "the next call for it moves it to quarantine, and undoes what the configuration knows")
	tell(ResultWarn, t.newer, "of a newer version of Weft", "install that version again, or delete those pods with it")
	quarantined := 0
	if entries, err := journal.List(filepath.Join(d.root.path(d.StateDir), "quarantine")); err == nil {
		quarantined = len(entries)
	}
	if quarantined > 0 {
		d.add(ResultWarn, check, fmt.Sprintf("%s in %s", count(quarantined, "record"), filepath.Join(d.StateDir, "quarantine")), "see the reason beside each; they are removed after 7 days")
	}
	d.ok(check, "%s, %d of sandboxes that are attached", count(t.all, "record"), t.fine)
}

func (d *doctor) count(t *tally, store *journal.Store, key journal.Key) {
	st, err := store.Read(key)
	name := string(key)
	switch _, corrupt := errors.AsType[*journal.CorruptError](err); {
	case errors.Is(err, fs.ErrNotExist):
		return // undone meanwhile
	case errors.Is(err, journal.ErrNewer):
		t.all++
		t.newer = append(t.newer, name)
		return
	case corrupt:
		t.all++
		t.corrupt = append(t.corrupt, name)
		return
	case err != nil || st.Empty:
		return
	}
	t.all++
	s, err := record.Decode(st, "")
	if err != nil {
		t.corrupt = append(t.corrupt, name)
		return
	}
	if pod := s.Body.Plan.PodName; pod != "" {
		name = s.Body.Plan.PodNamespace + "/" + pod
	}
	switch {
	case d.root.here() && gone(s):
		t.dead = append(t.dead, name)
	case !s.Finished && d.Now.Sub(lastChange(st)) > stuckAfter:
		t.stuck = append(t.stuck, name)
	case !s.Finished:
		t.underWay = append(t.underWay, name)
	default:
		t.fine++
	}
}

// gone says that a record's sandbox is: another boot, or no namespace where it was.
func gone(s *record.Sandbox) bool {
	if boot := journal.BootID(); boot != "" && s.Boot != "" && s.Boot != boot {
		return true
	}
	if s.Body.Sandbox.Netns == "" {
		return false
	}
	_, err := os.Stat(s.Body.Sandbox.Netns)
	return errors.Is(err, fs.ErrNotExist)
}

func lastChange(st journal.State) time.Time {
	at := time.Time{}
	for _, in := range st.Intents {
		at = in.Time
	}
	for _, p := range st.Phases {
		if p.Time.After(at) {
			at = p.Time
		}
	}
	return at
}

// checkMounts looks whether namespaces that the runtime makes later reach a container that
// mounts their directory.
func (d *doctor) checkMounts() {
	if !d.root.here() {
		return
	}
	const check, dir = "mounts", "/run/netns"
	if _, err := os.Stat(dir); err != nil {
		d.info(check, "%s cannot be seen: %v", dir, cause(err))
		return
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		d.notSeen("mounts: %v", cause(err))
		return
	}
	point, shared := propagation(string(b), dir)
	if shared {
		d.ok(check, "%s (mounted at %s) is shared: containers see new namespaces", dir, point)
		return
	}
	d.add(ResultWarn, check, fmt.Sprintf("%s (mounted at %s) is not shared: a container that mounts it does not see namespaces made later", dir, point),
		"mount --make-rshared "+point)
}

// propagation finds the mount that holds path in a text of /proc/PID/mountinfo, and says
// whether it is in a peer group.
func propagation(mountinfo, path string) (point string, shared bool) {
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 7 {
			continue
		}
		at := unescape(fields[4])
		if at != "/" && path != at && !strings.HasPrefix(path, at+"/") || len(at) < len(point) {
			continue
		}
		point, shared = at, false // the later of two at one place is on top
		for _, option := range fields[6:] {
			if option == "-" {
				break
			}
			shared = shared || strings.HasPrefix(option, "shared:")
		}
	}
	return point, shared
}

// unescape reads the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
