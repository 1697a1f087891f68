// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/host/journal"
)

// Left is a record that is left.
type Left struct {
	Key     journal.Key
	Sandbox plan.Sandbox // as far as the record can be read
	Err     error        // why it cannot be read
}

// String names the pod, and the record.
func (l Left) String() string {
	args := l.Sandbox.ArgPairs()
	switch {
	case l.Err != nil:
		return fmt.Sprintf("%s (%v)", l.Key, l.Err)
	case args["K8S_POD_NAME"] == "":
		return string(l.Key)
	}
	return fmt.Sprintf("%s/%s (%s)", args["K8S_POD_NAMESPACE"], args["K8S_POD_NAME"], l.Key)
}

// LeftError says that records are left, so that Weft stays on the node.
type LeftError struct {
	Records []Left
	Devices []journal.Key // prepared devices, which only their pods' end gives back
}

// mostNamed bounds the records that an error names.
const mostNamed = 20

func (e *LeftError) Error() string {
	var b strings.Builder
	if n := len(e.Records); n > 0 {
		fmt.Fprintf(&b, "%d %s still attached by Weft:", n, plural(n, "sandbox is", "sandboxes are"))
		for _, l := range e.Records[:min(n, mostNamed)] {
			b.WriteString("\n  " + l.String())
		}
		if n > mostNamed {
			fmt.Fprintf(&b, "\n  and %d more", n-mostNamed)
		}
		b.WriteString("\ndelete or move these pods first; or have them undone (--force), which takes their interfaces away, the pod network's included")
	}
	if n := len(e.Devices); n > 0 {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%d device %s still prepared (%s): delete the pods that use them", n, plural(n, "claim is", "claims are"), e.Devices[0])
	}
	return b.String()
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// left lists the records of attachments that are left. An empty one that nobody holds, as
// a kill leaves it, is removed.
func (o Options) left() ([]Left, error) {
	dir := filepath.Join(o.StateDir, "attachments")
	keys, err := journal.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("stateDir: %w", err)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	store, err := journal.Open(dir, record.Kind)
	if err != nil {
		return nil, fmt.Errorf("stateDir: %w", err)
	}
	defer store.Close()
	boot := journal.BootID()
	var all []Left
	for _, key := range keys {
		l := Left{Key: key}
		st, err := store.Read(key)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			l.Err = err
		case len(st.Intents) == 0 && st.Empty && dropped(store, key):
			continue
		case len(st.Intents) == 0:
			l.Err = errors.New("a call on it is under way")
		default:
			s, err := record.Decode(st, boot)
			if err != nil {
				l.Err = err
			} else {
				l.Sandbox = s.Body.Sandbox
			}
		}
		all = append(all, l)
	}
	return all, nil
}

// dropped removes an empty record that nobody holds.
func dropped(store *journal.Store, key journal.Key) bool {
	rec, err := store.TryAcquire(key)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	empty := len(rec.State().Intents) == 0
	return rec.Close() == nil && empty
}

// devices lists the claims whose devices are prepared.
func (o Options) devices() ([]journal.Key, error) {
	keys, err := journal.List(filepath.Join(o.StateDir, "devices"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("stateDir: %w", err)
	}
	return keys, nil
}
