// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api/v2alpha1"
	"github.com/weftnet/weft/internal/cni/fault"
	"github.com/weftnet/weft/internal/cni/netconf"
	"github.com/weftnet/weft/internal/cni/plan"
	"github.com/weftnet/weft/internal/cni/selection"
)

// Verdict is what is said about an object.
type Verdict struct {
	Faults   []string // none: it is allowed
	Warnings []string
}

// object is what is read of any object.
type object struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     json.RawMessage   `json:"spec"`
}

// Judge says what is wrong with an object that is about to be written. Pods are judged when they
// are asked for. The error says that the request cannot be read.
func Judge(req *admissionv1.AdmissionRequest, pods bool) (Verdict, error) {
	if req.Operation != admissionv1.Create && req.Operation != admissionv1.Update || req.SubResource != "" {
		return Verdict{}, nil
	}
	var now, before object
	if err := json.Unmarshal(req.Object.Raw, &now); err != nil {
		return Verdict{}, fmt.Errorf("object: %w", err)
	}
	if req.Operation == admissionv1.Update {
		if err := json.Unmarshal(req.OldObject.Raw, &before); err != nil {
			return Verdict{}, fmt.Errorf("oldObject: %w", err)
		}
		if now.Metadata.DeletionTimestamp != nil || bytes.Equal(req.Object.Raw, req.OldObject.Raw) {
			return Verdict{}, nil // it goes, or is what it was
		}
	}
	switch req.Kind.Group + "/" + req.Kind.Kind {
	case "k8s.cni.cncf.io/NetworkAttachmentDefinition":
		return network(now, before)
	case v2alpha1.Group + "/" + v2alpha1.NodeConfigKind:
		var c v2alpha1.CiliumNetworkDriverNodeConfigSpec
		return config(now, before, &c, func() error {
			c.SetDefaults()
			return c.ValidateFor(now.Metadata.Name)
		})
	case v2alpha1.Group + "/" + v2alpha1.ClusterConfigKind:
		var c v2alpha1.CiliumNetworkDriverClusterConfigSpec
		return config(now, before, &c, func() error {
			c.SetDefaults()
			return c.Validate()
		})
	case "/Pod":
		if pods {
			return pod(req, now, before)
		}
	}
	return Verdict{}, nil
}

// config judges a configuration of the network driver, unless its spec is the old one.
func config(now, before object, into any, validate func() error) (Verdict, error) {
	if same(now.Spec, before.Spec) {
		return Verdict{}, nil
	}
	if err := json.Unmarshal(now.Spec, into); err != nil {
		return Verdict{Faults: []string{"spec: " + err.Error()}}, nil //nolint:nilerr // it is the verdict
	}
	var v Verdict
	for _, err := range split(validate()) {
		v.Faults = append(v.Faults, err.Error())
	}
	return v, nil
}

// same says whether two JSON values mean the same.
func same(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var one, other any
	return json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &other) == nil && reflect.DeepEqual(one, other)
}

// split takes a joined error apart.
func split(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // what errors.Join gives
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// network judges a NetworkAttachmentDefinition, unless its configuration is the old one.
func network(now, before object) (Verdict, error) {
	var spec, old struct {
		Config string `json:"config"`
	}
	if len(now.Spec) > 0 {
		if err := json.Unmarshal(now.Spec, &spec); err != nil {
			return Verdict{Faults: []string{"spec: " + err.Error()}}, nil //nolint:nilerr // it is the verdict
		}
	}
	if len(before.Spec) > 0 && json.Unmarshal(before.Spec, &old) == nil && old == spec {
		return Verdict{}, nil
	}
	if strings.TrimSpace(spec.Config) == "" {
		return Verdict{}, nil // the node has the configuration in a file
	}
	_, err := netconf.ParseNetwork([]byte(spec.Config), "spec.config")
	return verdict(err, nil, "spec.config "), nil
}

// verdict puts faults and warnings in words; prefix leads to their fields.
func verdict(err error, warnings []fault.Warning, prefix string) Verdict {
	var v Verdict
	for _, f := range fault.All(err) {
		v.Faults = append(v.Faults, line(prefix+f.Field, f.Text))
	}
	if err != nil && len(v.Faults) == 0 {
		v.Faults = []string{err.Error()}
	}
	for _, w := range warnings {
		v.Warnings = append(v.Warnings, line(prefix+w.Field, w.Text))
	}
	return v
}

func line(field, text string) string { return strings.TrimSpace(field) + ": " + text }

// conf is what a plan needs besides a pod; what it says shows in no verdict.
const conf = `{"cniVersion":"1.1.0","name":"weft","type":"weft-cni","delegates":[{"cniVersion":"1.1.0","name":"pods","type":"none"}]}`

// pod judges the annotations that ask for networks, those that are not the old ones.
func pod(req *admissionv1.AdmissionRequest, now, before object) (Verdict, error) {
	asked := map[string]string{}
	for _, key := range []string{plan.NetworksAnnotation, plan.DefaultNetworkAnnotation} {
		value, ok := now.Metadata.Annotations[key]
		if old, was := before.Metadata.Annotations[key]; ok && (!was || old != value) {
			asked[key] = value
		}
	}
	if len(asked) == 0 {
		return Verdict{}, nil
	}
	c, _, err := netconf.Parse([]byte(conf))
	if err != nil {
		return Verdict{}, errors.Join(errors.New("the plan's configuration"), err)
	}
	// What can be seen without the networks' definitions.
	_, err = plan.Make(plan.Input{
		Conf: c, Sandbox: plan.Sandbox{ContainerID: "admission", IfName: "eth0"},
		Pod: &plan.Pod{Namespace: req.Namespace, Name: "admission", Annotations: asked},
	})
	v := verdict(err, nil, "")
	for _, key := range slices.Sorted(maps.Keys(asked)) {
		_, warnings, _ := selection.Parse(asked[key]) //nolint:errcheck // the plan has told the faults
		v.Warnings = append(v.Warnings, verdict(nil, warnings, "annotation "+key).Warnings...)
	}
	return v, nil
}
