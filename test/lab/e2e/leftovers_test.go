// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// The look for leftovers, by which every scenario ends, sees each kind.
func TestLeftoversAreSeen(t *testing.T) {
	r := newRig(t)
	if err := r.leftovers(); err != nil {
		t.Fatal("before anything is left: ", err)
	}
	for kind, commands := range map[string][2]string{
		"record":  {"mkdir -p -m 700 /var/lib/weft/attachments; echo '{}' > /var/lib/weft/attachments/left-eth0.jsonl", "rm /var/lib/weft/attachments/left-eth0.jsonl"},
		"lease":   {"mkdir -p /var/lib/cni/networks/left; touch /var/lib/cni/networks/left/10.9.9.9", "rm -r /var/lib/cni/networks/left"},
		"netns":   {"ip netns add left", "ip netns delete left"},
		"veth":    {"ip link add left0 type veth peer name left1", "ip link delete left0"},
		"macvlan": {"ip link add left0 link data type macvlan", "ip link delete left0"},
		"process": {
			"cp /bin/busybox /opt/cni/bin/sleep; exec >/dev/null 2>&1; setsid /opt/cni/bin/sleep 600 & echo $! > /tmp/left",
			"kill -9 $(cat /tmp/left) $(pidof /opt/cni/bin/sleep); rm /opt/cni/bin/sleep",
		},
	} {
		for i, command := range commands {
			if _, err := r.node.Exec(t.Context(), "sh", "-c", command); err != nil && i == 0 {
				t.Fatal(err)
			}
			if i == 0 {
				r.wait("a leftover to be seen: "+kind, func() error {
					if seen := fmt.Sprint(r.leftovers()); !strings.Contains(seen, kind) {
						return errors.New("seen was: " + seen)
					}
					return nil
				})
			}
		}
		r.wait("what was left to be gone: "+kind, func() error { return r.leftovers() })
	}
}
