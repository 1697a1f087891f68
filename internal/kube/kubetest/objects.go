// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Apply creates or replaces the objects of a YAML text (several documents). A missing
// namespace is "default", a missing UID is made.
func (s *Server) Apply(text string) {
	s.tb.Helper()
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o map[string]any
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			s.tb.Fatal(err)
		}
		if o == nil {
			continue
		}
		s.put(o)
	}
}

func (s *Server) put(o map[string]any) {
	s.tb.Helper()
	b, err := json.Marshal(o) // numbers become those of JSON
	if err != nil {
		s.tb.Fatal(err)
	}
	if o, err = decode(b); err != nil {
		s.tb.Fatal(err)
	}
	meta, _ := o["metadata"].(map[string]any)
	kind, _ := o["kind"].(string)
	if meta == nil || kind == "" {
		s.tb.Fatalf("object without kind or metadata: %v", o)
	}
	if meta["namespace"] == nil && kind != "ResourceSlice" && !strings.HasPrefix(kind, "CiliumNetworkDriver") {
		meta["namespace"] = "default"
	}
	if o["apiVersion"] == nil {
		o["apiVersion"] = apiVersion(plural(kind))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(plural(kind), o)
}

// store keeps o under a new resource version. The lock is held.
func (s *Server) store(resource string, o map[string]any) key {
	meta := o["metadata"].(map[string]any)
	s.version++
	meta["resourceVersion"] = strconv.Itoa(s.version)
	if meta["uid"] == nil {
		meta["uid"] = fmt.Sprintf("uid-%d", s.version)
	}
	namespace, _ := meta["namespace"].(string)
	name, _ := meta["name"].(string)
	k := key{resource, namespace, name}
	before := s.objects[k]
	s.objects[k] = o
	s.record(change{s.version, k, before, o})
	return k
}

// drop removes an object. The lock is held.
func (s *Server) drop(k key) {
	before, exists := s.objects[k]
	if !exists {
		return
	}
	delete(s.objects, k)
	s.version++
	s.record(change{s.version, k, before, nil})
}

// plural is the plural under which a kind is served.
func plural(kind string) string {
	switch kind {
	case "NetworkAttachmentDefinition": // its plural has hyphens
		return "network-attachment-definitions"
	default:
		return strings.ToLower(kind) + "s"
	}
}

// Object is a copy of an object, nil when there is none; resource is its plural.
func (s *Server) Object(resource, namespace, name string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key{resource, namespace, name}]
	if !ok {
		return nil
	}
	return clone(o)
}

// Annotation is the value of a pod's annotation, "" when there is none.
func (s *Server) Annotation(namespace, pod, name string) string {
	meta, _ := s.Object("pods", namespace, pod)["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	value, _ := annotations[name].(string)
	return value
}

// Annotate sets a pod's annotation, as another writer does.
func (s *Server) Annotate(namespace, pod, name, value string) {
	s.tb.Helper()
	o := s.Object("pods", namespace, pod)
	if o == nil {
		s.tb.Fatalf("no pod %s/%s", namespace, pod)
	}
	meta := o["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
		meta["annotations"] = annotations
	}
	annotations[name] = value
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store("pods", o)
}

// Delete removes an object.
func (s *Server) Delete(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(key{resource, namespace, name})
}

// Event is an event that a client told.
type Event struct {
	Type, Reason, Message, Pod, UID, Component string
}

// Events are the events of a namespace, in order of arrival.
func (s *Server) Events(namespace string) []Event {
	var events []Event
	for _, r := range s.Requests() {
		if r.Verb != "create" || r.Resource != "events" || r.Namespace != namespace || r.Code != 201 {
			continue
		}
		var e struct {
			Type, Reason, Message string
			InvolvedObject        struct{ Name, UID string }
			Source                struct{ Component string }
		}
		if json.Unmarshal([]byte(r.Body), &e) == nil {
			events = append(events, Event{e.Type, e.Reason, e.Message, e.InvolvedObject.Name, e.InvolvedObject.UID, e.Source.Component})
		}
	}
	return events
}

func decode(b []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var o map[string]any
	err := d.Decode(&o)
	return o, err
}

func clone(o map[string]any) map[string]any {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // it came out of JSON
	}
	o, err = decode(b)
	if err != nil {
		panic(err)
	}
	return o
}
