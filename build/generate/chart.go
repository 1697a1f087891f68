// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const chartDir = "deploy/helm/weft"

// chart copies the manifests of deploy/ into the Helm chart: the definitions where Helm looks for
// them, everything else where the templates do. What this run makes itself is taken from files. Of
// kustomizations the chart has its own counterpart, which test/install holds against them.
func chart(files map[string][]byte) (map[string][]byte, error) {
	var paths []string
	for _, pattern := range []string{
		"*.yaml", "network-driver/*.yaml", "operator/*.yaml", "operator/pods/webhook.yaml",
		"vmi/*.yaml", "vmi/publish/*.yaml", "upkeep/*.yaml", "monitoring/alerts.yaml", "monitoring/dashboard.json",
	} {
		found, err := filepath.Glob(filepath.Join("deploy", pattern))
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	copies := map[string][]byte{}
	for _, path := range paths {
		if filepath.Base(path) == "kustomization.yaml" {
			continue
		}
		data, made := files[path]
		if !made {
			var err error
			if data, err = os.ReadFile(path); err != nil {
				return nil, fmt.Errorf("read a manifest for the chart: %w", err)
			}
		}
		name := strings.TrimPrefix(path, "deploy/")
		folder := "files"
		if strings.HasPrefix(name, "crd-") {
			folder = "crds"
		}
		copies[filepath.Join(chartDir, folder, name)] = data
	}
	return copies, nil
}
