// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"

	"github.com/weftnet/weft/internal/cni/netstatus"
	"github.com/weftnet/weft/internal/cni/wire"
)

// mergeStatus makes the network-status annotation: the entries of this ADD, in plan
// order, and after them those of old that are somebody else's, byte for byte but for
// spacing. Of this ADD is what bears the name of one of its networks or of one of its
// interfaces: an earlier sandbox of the same pod had those. An old value that is no
// list of entries is replaced.
func mergeStatus(old string, made []wire.ReportAttachment, own []netstatus.Entry) string {
	networks, interfaces := map[string]bool{}, map[string]bool{}
	for _, a := range made {
		networks[a.Network], interfaces[a.IfName] = true, true
	}
	for _, e := range own {
		interfaces[e.Interface] = true
	}
	delete(interfaces, "") // an entry without interface is nobody's by that

	all := make([]any, 0, len(own))
	for _, e := range own {
		all = append(all, e)
	}
	var others []json.RawMessage
	if json.Unmarshal([]byte(old), &others) != nil {
		others = nil
	}
	for _, raw := range others {
		var e struct {
			Name      string `json:"name"`
			Interface string `json:"interface"`
		}
		if json.Unmarshal(raw, &e) == nil && e.Name != "" && !networks[e.Name] && !interfaces[e.Interface] {
			all = append(all, raw)
		}
	}
	if len(all) == len(own) {
		return netstatus.Encode(own)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ") // as netstatus.Encode
	_ = enc.Encode(all)       // valid JSON and plain values to memory: cannot fail
	return string(bytes.TrimSpace(b.Bytes()))
}
