// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

// Package informers is the agent's view of the cluster: the pods of its own node and the
// NetworkAttachmentDefinitions, trimmed to what is used, kept current by watches.
//
// Implements: architecture 4.4.
package informers

import (
	_ "github.com/fsnotify/fsnotify"
	_ "github.com/go-logr/logr"
	_ "github.com/google/renameio/v2"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/prometheus/client_golang/prometheus/collectors"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sync/errgroup"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apimachinery/pkg/apis/meta/v1"
	_ "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/rest"
	_ "k8s.io/client-go/tools/cache"
	_ "k8s.io/client-go/tools/clientcmd"
	_ "k8s.io/client-go/util/workqueue"
	_ "k8s.io/klog/v2"
	_ "sigs.k8s.io/yaml"
)
