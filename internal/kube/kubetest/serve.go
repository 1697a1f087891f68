// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// route takes a request's path apart: /api/v1/… or /apis/<group>/<version>/….
func route(r *http.Request) (Request, bool) {
	segments := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(segments) > 2 && segments[0] == "api":
		segments = segments[2:]
	case len(segments) > 3 && segments[0] == "apis":
		segments = segments[3:]
	default:
		return Request{}, false
	}
	var req Request
	if segments[0] == "namespaces" && len(segments) > 2 {
		req.Namespace, segments = segments[1], segments[2:]
	}
	for i, field := range []*string{&req.Resource, &req.Name, &req.Subresource} {
		if i < len(segments) {
			*field = segments[i]
		}
	}
	req.Verb = verb(r, req.Name)
	return req, len(segments) <= 3
}

func verb(r *http.Request, name string) string {
	switch watch := r.URL.Query().Get("watch"); r.Method {
	case http.MethodGet:
		switch {
		case name != "":
			return "get"
		case watch == "true" || watch == "1":
			return "watch"
		}
		return "list"
	case http.MethodPost:
		return "create"
	case http.MethodPatch:
		return "patch"
	case http.MethodPut:
		return "update"
	case http.MethodDelete:
		return "delete"
	}
	return "other"
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	req, ok := route(r)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	req.Body, req.Time = string(body), time.Now()
	s.mu.Lock()
	n := len(s.requests)
	s.requests = append(s.requests, req)
	close(s.changed)
	s.changed = make(chan struct{})
	allowed := s.tokens == nil || slices.Contains(s.tokens, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	ok = ok && !s.withheld[req.Resource]
	s.mu.Unlock()

	f := s.fault(req)
	if s.misbehave(f, w, r) {
		return
	}
	code, answer := http.StatusNotFound, any(nil)
	switch {
	case !allowed:
		code, answer = statusObject(http.StatusUnauthorized, "Unauthorized")
	case ok && req.Verb == "watch":
		s.watch(w, r, req)
		return
	case ok:
		code, answer = s.handle(req, r)
	}
	s.mu.Lock()
	if n < len(s.requests) {
		s.requests[n].Code = code
	}
	s.mu.Unlock()
	if f.DropAfter {
		panic(http.ErrAbortHandler)
	}
	if answer == nil {
		http.Error(w, "404 page not found", code)
		return
	}
	write(w, code, answer)
}

// handle answers one well-behaved request: code and object.
func (s *Server) handle(req Request, r *http.Request) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{req.Resource, req.Namespace, req.Name}
	o, exists := s.objects[k]
	switch {
	case req.Verb == "list":
		return http.StatusOK, s.list(req, r)
	case req.Verb == "create":
		return s.create(req)
	case !exists:
		return statusObject(http.StatusNotFound, fmt.Sprintf("%s %q not found", req.Resource, req.Name))
	case req.Verb == "get":
		return http.StatusOK, o
	case req.Verb == "delete":
		s.drop(k)
		return http.StatusOK, o
	case req.Verb == "update":
		return s.update(req, o)
	case req.Verb == "patch" && r.Header.Get("Content-Type") == "application/json-patch+json":
		return s.patch(req, o)
	case req.Verb == "patch" && r.Header.Get("Content-Type") == "application/apply-patch+yaml":
		return s.apply(req, o)
	}
	return statusObject(http.StatusMethodNotAllowed, "verb is not served")
}

func (s *Server) list(req Request, r *http.Request) any {
	items := []any{}
	for _, o := range s.selectedObjects(req, r.URL.Query()) {
		items = append(items, o)
	}
	return map[string]any{
		"apiVersion": apiVersion(req.Resource), "kind": kind(req.Resource) + "List",
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)}, "items": items,
	}
}

// selectedObjects are the objects that a list or a watch asks for, by namespace and name.
// The lock is held.
func (s *Server) selectedObjects(req Request, q url.Values) []map[string]any {
	var all []map[string]any
	for _, k := range slices.SortedFunc(maps.Keys(s.objects), func(a, b key) int {
		return strings.Compare(a.namespace+"/"+a.name, b.namespace+"/"+b.name)
	}) {
		o := s.objects[k]
		if k.resource == req.Resource && (req.Namespace == "" || k.namespace == req.Namespace) && selected(o, q.Get("fieldSelector")) {
			all = append(all, o)
		}
	}
	return all
}

// selected matches a field selector of the form a.b=c,d.e=f.
func selected(o map[string]any, selector string) bool {
	if selector == "" {
		return true
	}
	for pair := range strings.SplitSeq(selector, ",") {
		path, want, _ := strings.Cut(pair, "=")
		var at any = o
		for name := range strings.SplitSeq(path, ".") {
			m, _ := at.(map[string]any)
			at = m[name]
		}
		if got, _ := at.(string); got != want {
			return false
		}
	}
	return true
}

func (s *Server) create(req Request) (int, any) {
	o, err := decode([]byte(req.Body))
	if err != nil {
		return statusObject(http.StatusBadRequest, err.Error())
	}
	meta, _ := o["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	if name == "" || meta["namespace"] != req.Namespace {
		return statusObject(http.StatusUnprocessableEntity, "metadata.name and namespace are needed")
	}
	if _, exists := s.objects[key{req.Resource, req.Namespace, name}]; exists {
		return statusObject(http.StatusConflict, fmt.Sprintf("%s %q already exists", req.Resource, name))
	}
	return http.StatusCreated, s.objects[s.store(req.Resource, o)]
}

func (s *Server) patch(req Request, o map[string]any) (int, any) {
	changed := clone(o)
	if err := patch(changed, []byte(req.Body)); err != nil {
		return statusObject(http.StatusUnprocessableEntity, err.Error())
	}
	return s.replace(req, o, changed)
}

// update replaces an object by what the request holds.
func (s *Server) update(req Request, o map[string]any) (int, any) {
	changed, err := decode([]byte(req.Body))
	if err != nil {
		return statusObject(http.StatusBadRequest, err.Error())
	}
	return s.replace(req, o, changed)
}

// replace stores an object in place of o, as far as the request may change it.
func (s *Server) replace(req Request, o, changed map[string]any) (int, any) {
	old, _ := o["metadata"].(map[string]any)
	meta, _ := changed["metadata"].(map[string]any)
	switch {
	case meta == nil || meta["uid"] != old["uid"] || meta["name"] != old["name"] || meta["namespace"] != old["namespace"]:
		return statusObject(http.StatusUnprocessableEntity, "metadata.uid, name and namespace are immutable")
	case meta["resourceVersion"] != old["resourceVersion"]:
		return statusObject(http.StatusConflict, "the object has been modified")
	}
	switch req.Subresource { // each side changes its own part, and both the metadata
	case "status":
		changed["spec"] = o["spec"]
	case "":
		changed["status"] = o["status"]
	default:
		return statusObject(http.StatusNotFound, "no such subresource")
	}
	for _, part := range []string{"spec", "status"} {
		if changed[part] == nil {
			delete(changed, part)
		}
	}
	return http.StatusOK, s.objects[s.store(req.Resource, changed)]
}

// statusObject is a failure as the API server words it.
func statusObject(code int, message string) (int, any) {
	reasons := map[int]string{
		400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
		409: "Conflict", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
	}
	if code == http.StatusConflict && strings.HasSuffix(message, "already exists") {
		reasons[code] = "AlreadyExists"
	}
	return code, map[string]any{
		"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reasons[code], "message": message,
	}
}

func write(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}
