// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package v2alpha1_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api/v2alpha1"
)

// The page tells every field, and its example is right.
func TestPage(t *testing.T) {
	b, err := os.ReadFile("../../docs/network-driver.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, v := range []any{
		v2alpha1.CiliumNetworkDriverNodeConfigSpec{},
		v2alpha1.SRIOVConfig{},
		v2alpha1.SRIOVInterface{},
		v2alpha1.DummyConfig{},
		v2alpha1.DevicePool{},
		v2alpha1.DeviceFilter{},
		v2alpha1.DeviceConfig{},
		v2alpha1.CiliumNetworkDriverClusterConfigSpec{},
	} {
		for field := range reflect.TypeOf(v).Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "deviceManagerConfigs" || name == "pools" || name == "ifaces" { // those below them are told
				name += "."
			}
			if !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, "."+name+"`") && !strings.Contains(page, "`"+strings.TrimSuffix(name, ".")) &&
				!strings.Contains(page, "."+strings.TrimSuffix(name, ".")+"[]") {
				t.Errorf("the page does not tell %s of %T", name, v)
			}
		}
	}
	_, rest, ok := strings.Cut(page, "    apiVersion: cilium.io/v2alpha1\n")
	example, _, ok2 := strings.Cut(rest, "\n\n###")
	if !ok || !ok2 {
		t.Fatal("the page has no example")
	}
	var text strings.Builder
	text.WriteString("apiVersion: cilium.io/v2alpha1\n")
	for line := range strings.Lines(example + "\n") {
		text.WriteString(strings.TrimPrefix(line, "    "))
	}
	c := &v2alpha1.CiliumNetworkDriverNodeConfig{}
	if err := yaml.UnmarshalStrict([]byte(text.String()), c); err != nil {
		t.Fatalf("%v in\n%s", err, text.String())
	}
	if err := c.Spec.ValidateFor(c.Name); err != nil {
		t.Error(err)
	}
}
