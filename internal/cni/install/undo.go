// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weftnet/weft/internal/cni/netconf"
)

const (
	// atOnce bounds the DELs that run side by side; lanes bound the plugins.
	atOnce = 4
	// delTimeout is beyond weft-cni's own deadline of DEL.
	delTimeout = 60 * time.Second
	// searchPath is where plugins find programs of the host such as iptables.
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// undoAll undoes every record that is left. What could not be undone is told, and is left.
func (u *uninstall) undoAll(ctx context.Context) error {
	var faults error
	for range passes {
		records, err := u.left()
		if err != nil || len(records) == 0 {
			return err
		}
		if !u.Force {
			return nil // they came since the first look; the second one tells
		}
		binary, err := u.binary()
		if err != nil {
			return err
		}
		u.say("undoing %d %s", len(records), plural(len(records), "sandbox", "sandboxes"))
		faults = u.undoEach(ctx, binary, records)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return faults
}

// binary is the weft-cni that undoes: the node's, else the one that would be installed.
func (u *uninstall) binary() (string, error) {
	source, err := u.source()
	for _, path := range []string{u.plugin(), source} {
		if path == "" {
			continue
		}
		if info, statErr := os.Stat(path); statErr == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", errors.Join(fmt.Errorf("undo records: neither %s nor %s is there: install it first: %w", u.plugin(), source, fs.ErrNotExist), err)
}

func (u *uninstall) undoEach(ctx context.Context, binary string, records []Left) error {
	var (
		mu     sync.Mutex
		faults []error
		done   int
		group  errgroup.Group
	)
	group.SetLimit(atOnce)
	for _, l := range records {
		group.Go(func() error {
			err := u.undo(ctx, binary, l)
			mu.Lock()
			defer mu.Unlock()
			done++
			if err != nil {
				faults = append(faults, fmt.Errorf("undo %s: %w", l, err))
				u.say("%d/%d %s: %v", done, len(records), l, err)
			} else {
				u.say("%d/%d %s is undone", done, len(records), l)
			}
			return nil
		})
	}
	_ = group.Wait() // every fault is in faults
	return errors.Join(faults...)
}

// undo runs the DEL of one record.
func (u *uninstall) undo(ctx context.Context, binary string, l Left) error {
	ctx, cancel := context.WithTimeout(ctx, delTimeout)
	defer cancel()
	sb := l.Sandbox
	if sb.ContainerID == "" {
		// A record that cannot be read has its key: <container ID>-<interface>.
		i := strings.LastIndexByte(string(l.Key), '-')
		if i < 0 {
			return l.Err
		}
		sb.ContainerID, sb.IfName = string(l.Key[:i]), string(l.Key[i+1:])
	}
	cmd := exec.CommandContext(ctx, binary)
	cmd.Env = []string{
		"CNI_COMMAND=DEL", "CNI_CONTAINERID=" + sb.ContainerID, "CNI_IFNAME=" + sb.IfName,
		"CNI_NETNS=" + sb.Netns, "CNI_ARGS=" + sb.Args, "CNI_PATH=" + u.BinDir, "PATH=" + searchPath,
	}
	cmd.Stdin = bytes.NewReader(u.delConf())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		return nil
	}
	var answer struct {
		Code uint   `json:"code"`
		Msg  string `json:"msg"`
	}
	if json.Unmarshal(stdout.Bytes(), &answer) == nil && answer.Msg != "" {
		return fmt.Errorf("%s (code %d)", answer.Msg, answer.Code)
	}
	return fmt.Errorf("%w: %.500s", err, stderr.String())
}

// delConf is what DEL is given: the published conf as the runtime hands it over, else what
// a record is undone with. DEL is not to answer success for what it had to leave.
func (u *uninstall) delConf() []byte {
	o := u.pluginConf()
	if o == nil {
		o, _ = netconf.ParseObject([]byte(`{"type":"` + Plugin + `"}`))
	}
	o.Set("cniVersion", netconf.String("1.1.0"))
	o.Set("name", netconf.String("weft"))
	o.Set("stateDir", netconf.String(u.StateDir))
	o.Set("retryDeleteOnError", json.RawMessage("true"))
	return o.Bytes()
}
