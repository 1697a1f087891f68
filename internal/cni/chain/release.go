// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"encoding/json"
)

// forgets tells whether DEL of a standard plugin ends before its IPAM plugin's when there is no
// namespace: host-device's does (seen with 1.10.0), and nothing but DEL releases what its IPAM holds.
func forgets(pluginType string) bool { return pluginType == "host-device" }

// release runs DEL of the IPAM plugin of a plugin that did not, with what the plugin would have
// given it. To repeat it does no harm.
func (r *Runner) release(ctx context.Context, c *Call, i int, k keys) error {
	plugin := c.Network.Plugins[i]
	if c.Netns != "" || !forgets(plugin.Type) {
		return nil
	}
	var conf struct {
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(plugin.Conf, &conf); err != nil || conf.IPAM.Type == "" {
		return nil //nolint:nilerr // the plugin's own DEL has told it
	}
	_, err := r.execute(Share(ctx, i+1, leastShare), c, cmdDel, i, conf.IPAM.Type, k)
	return err
}
