// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package upkeep_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftnet/weft/internal/cni/observe"
	"github.com/weftnet/weft/internal/cni/orphans"
	"github.com/weftnet/weft/internal/cni/planner"
	"github.com/weftnet/weft/internal/cni/record"
	"github.com/weftnet/weft/internal/cni/upkeep"
	"github.com/weftnet/weft/internal/host/journal"
	"github.com/weftnet/weft/test/binaries"
)

// hanging is a plugin whose DEL of an orphan begins, and does not end before it is let.
const hanging = `#!/bin/sh
cat > /dev/null
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0"}' ;;
DEL)
	case $CNI_CONTAINERID in
	orphan*)
		echo "begin $CNI_CONTAINERID" >> DIR/log
		until test -e DIR/go; do sleep 0.05; done
		echo "end $CNI_CONTAINERID" >> DIR/log
	esac
esac
`

// realNode is a node's state directory, with the real weft-cni and a plugin that hangs.
type realNode struct {
	t    *testing.T
	dir  string
	bin  string
	conf string // what is published
}

func newRealNode(t *testing.T) *realNode {
	t.Helper()
	n := &realNode{t: t, dir: t.TempDir(), bin: filepath.Join(binaries.Weft(t), "weft-cni")}
	plugin := map[string]any{
		// One lane for all that is attached, and one that is kept for what is undone.
		"type": "weft-cni", "stateDir": n.at("state"), "cniDir": n.at("multus"), "binDir": n.at("bin"), "confDir": n.at("conf.d"),
		"delegateLimit": 2, "delegates": []any{map[string]any{"cniVersion": "1.0.0", "name": "pods", "type": "hanging"}},
	}
	list := map[string]any{"name": "weft", "cniVersion": "1.0.0", "plugins": []any{plugin}}
	b, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	n.write("list", string(b), 0o600)
	plugin["name"], plugin["cniVersion"] = "weft", "1.0.0"
	if b, err = json.Marshal(plugin); err != nil {
		t.Fatal(err)
	}
	n.conf = string(b)
	n.write("bin/hanging", strings.ReplaceAll(hanging, "DIR", n.dir), 0o700)
	return n
}

func (n *realNode) at(path string) string { return filepath.Join(n.dir, path) }

func (n *realNode) write(path, text string, mode os.FileMode) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.at(path)), 0o700); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.at(path), []byte(text), mode); err != nil {
		n.t.Fatal(err)
	}
}

// add is what the runtime says for a pod.
func (n *realNode) add(pod string) {
	n.t.Helper()
	n.write("netns/"+pod, "", 0o600)
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, n.bin)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=ADD", "CNI_CONTAINERID=" + pod, "CNI_IFNAME=eth0", "CNI_NETNS=" + n.at("netns/"+pod),
		"CNI_PATH=" + n.at("bin"), "CNI_ARGS=K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod + ";K8S_POD_UID=uid-" + pod,
	}
	cmd.Stdin = strings.NewReader(n.conf)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("ADD of %s: %v\n%s", pod, err, out)
	}
}

// reboot makes the record of a pod one of the boot before.
func (n *realNode) reboot(pod string) {
	n.t.Helper()
	store, err := journal.Open(n.at("state/attachments"), record.Kind)
	if err != nil {
		n.t.Fatal(err)
	}
	defer store.Close()
	rec, err := store.Acquire(n.t.Context(), journal.Key(pod+"-eth0"))
	if err != nil {
		n.t.Fatal(err)
	}
	in := rec.State().Intents[0]
	in.Boot = "the boot before"
	if err := rec.Begin(in); err != nil {
		n.t.Fatal(err)
	}
	if err := rec.Close(); err != nil {
		n.t.Fatal(err)
	}
}

// log is what the hanging plugin has written of orphans.
func (n *realNode) log() []string {
	n.t.Helper()
	b, err := os.ReadFile(n.at("log"))
	if err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	return strings.Fields(strings.ReplaceAll(string(b), " ", ":"))
}

func (n *realNode) await(what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("waited in vain for %s; orphans: %v", what, n.log())
		}
	}
}

// keep runs a Keeper over the node's records until the test's end.
func (n *realNode) keep() *upkeep.Keeper {
	n.t.Helper()
	log := slog.New(slog.DiscardHandler)
	observer, err := observe.New(n.at("state"), log)
	if err != nil {
		n.t.Fatal(err)
	}
	keeper := upkeep.New(upkeep.Options{
		Hands: upkeep.Plugin{Binary: n.bin, Conf: n.at("list")}, Records: observer,
		Knows: func(planner.PodRef) orphans.Knowledge { return orphans.Known },
	}, log)
	ctx, cancel := context.WithCancel(n.t.Context())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{observer.Run, keeper.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				n.t.Error(err)
			}
		})
	}
	n.t.Cleanup(func() {
		n.write("go", "", 0o600) // whatever the test came to
		cancel()
		wg.Wait()
	})
	return keeper
}

// Three orphans whose plugin hangs: one after the other is undone, and pods are attached meanwhile
// as if there were none.
func TestOrphansThatHangKeepNobodyWaiting(t *testing.T) {
	n := newRealNode(t)
	names := []string{"orphan1", "orphan2", "orphan3"}
	for _, pod := range names {
		n.add(pod)
	}
	n.add("before") // says where a runtime of this boot runs Weft
	for _, pod := range names {
		n.reboot(pod)
	}
	keeper := n.keep()
	n.await("the first orphan's DEL", func() bool { return len(n.log()) > 0 })
	for i := range 4 {
		n.add(fmt.Sprintf("pod%d", i))
	}
	if got := n.log(); len(got) != 1 || !strings.HasPrefix(got[0], "begin:") {
		t.Errorf("while the first orphan's plugin hangs: %v", got)
	}
	n.write("go", "", 0o600)
	n.await("the others", func() bool { return keeper.Counts()["done"] == uint64(len(names)) })
	var want []string
	for _, line := range n.log() {
		if pod, ok := strings.CutPrefix(line, "begin:"); ok {
			want = append(want, "begin:"+pod, "end:"+pod) // nothing between the two
		}
	}
	if got := n.log(); len(got) != 2*len(names) || !slices.Equal(got, want) {
		t.Errorf("orphans were undone side by side: %v", got)
	}
}
