// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package selection_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/cni/selection"
)

// BenchmarkParse reads 100 networks in either form, as long as people write them.
func BenchmarkParse(b *testing.B) {
	var short, long []string
	for i := range 100 {
		short = append(short, fmt.Sprintf("tenant/net-%d@n%d", i, i))
		long = append(long, fmt.Sprintf(`{"name":"net-%d","namespace":"tenant","interface":"n%d","ips":["10.0.%d.5/24","fd00::%x/64"],`+
			`"mac":"02:00:00:00:00:%02x","portMappings":[{"hostPort":%d,"containerPort":80}],"bandwidth":{"ingressRate":1000000},"cni-args":{"vlan":%d}}`,
			i, i, i, i+1, i, 8000+i, i))
	}
	for _, form := range []struct{ name, text string }{
		{"short", strings.Join(short, ", ")},
		{"JSON", "[" + strings.Join(long, ",") + "]"},
	} {
		b.Run(form.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				elements, _, err := selection.Parse(form.text)
				if err != nil || len(elements) != 100 {
					b.Fatalf("%d elements: %v", len(elements), err)
				}
			}
		})
	}
}
