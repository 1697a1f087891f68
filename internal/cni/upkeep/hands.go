// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/weftnet/weft/internal/cni/apply"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/host/outside"
)

// Hands carry orders out in the namespaces of a host (record.Body.Host).
type Hands interface {
	Do(ctx context.Context, host string, o apply.Order) (apply.Answer, error)
}

// Plugin is the weft-cni of the node.
type Plugin struct {
	Binary string // its path on the host
	Conf   string // path of the published conf, as the agent sees it
}

// orderTimeout is beyond weft-cni's own deadlines of an order.
const orderTimeout = 150 * time.Second

// searchPath is where plugins find programs of the host such as iptables.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Do implements Hands. It adds the conf to the order.
func (p Plugin) Do(ctx context.Context, host string, o apply.Order) (apply.Answer, error) {
	var answer apply.Answer
	place, err := outside.Find(host)
	if errors.Is(err, outside.ErrNotFound) {
		return apply.Answer{Version: apply.Version, Outcome: apply.Unsure, Reason: err.Error()}, nil
	}
	if err != nil {
		return answer, err
	}
	conf, err := pluginConf(p.Conf)
	if err != nil {
		return answer, fmt.Errorf("published configuration: %w", err)
	}
	o.Version, o.Conf = apply.Version, conf
	order, err := json.Marshal(o)
	if err != nil {
		return answer, fmt.Errorf("encode order: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	stdout, stderr, err := place.Run(ctx, []string{p.Binary, "apply"}, []string{"PATH=" + searchPath}, order)
	if err != nil {
		return answer, failure(stdout, stderr, err)
	}
	if err := json.Unmarshal(stdout, &answer); err != nil {
		return answer, fmt.Errorf("answer of %s: %w", p.Binary, err)
	}
	if answer.Version != apply.Version {
		return answer, fmt.Errorf("answer of %s: has version %d, the agent knows %d", p.Binary, answer.Version, apply.Version)
	}
	return answer, nil
}

// failure is the CNI error that weft-cni printed, else what it complained of.
func failure(stdout, stderr []byte, err error) error {
	var cni struct {
		Code uint   `json:"code"`
		Msg  string `json:"msg"`
	}
	if json.Unmarshal(stdout, &cni) == nil && cni.Msg != "" {
		return fmt.Errorf("%s (code %d)", cni.Msg, cni.Code)
	}
	return fmt.Errorf("%w: %.500s", err, stderr)
}

// pluginConf is the published conf as a runtime hands it to the plugin.
func pluginConf(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list struct {
		Name       string            `json:"name"`
		CNIVersion string            `json:"cniVersion"`
		Plugins    []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, err
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("has no plugins")
	}
	o, err := netconf.ParseObject(list.Plugins[0])
	if err != nil {
		return nil, fmt.Errorf("plugins[0] %w", err)
	}
	o.Set("name", netconf.String(list.Name))
	o.Set("cniVersion", netconf.String(list.CNIVersion))
	return o.Bytes(), nil
}
