// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stream is a watch under way; its reader gives "TYPE name" of each event.
type stream struct {
	t    *testing.T
	body io.ReadCloser
	dec  *json.Decoder
}

func open(t *testing.T, s *Server, path string) *stream {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return &stream{t, res.Body, json.NewDecoder(res.Body)}
}

func (w *stream) next() string {
	w.t.Helper()
	var e struct {
		Type   string
		Object struct {
			Code     int
			Metadata struct {
				Name        string
				Annotations map[string]string
			}
		}
	}
	if err := w.dec.Decode(&e); err != nil {
		return err.Error()
	}
	switch {
	case e.Object.Metadata.Annotations["k8s.io/initial-events-end"] != "":
		return e.Type + " end"
	case e.Object.Code != 0:
		return e.Type + " " + http.StatusText(e.Object.Code)
	}
	return e.Type + " " + e.Object.Metadata.Name
}

func (w *stream) want(events ...string) {
	w.t.Helper()
	var got []string
	for range events {
		got = append(got, w.next())
	}
	if d := cmp.Diff(events, got); d != "" {
		w.t.Error(d)
	}
}

func onNode(name, node string) string {
	return "kind: Pod\nmetadata: {name: " + name + "}\nspec: {nodeName: " + node + "}\n"
}

func TestWatch(t *testing.T) {
	s := New(t)
	s.Apply(onNode("b", "n1") + "---\n" + onNode("a", "n1") + "---\n" + onNode("other", "n2"))
	const path = "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dn1"
	streamed, later := open(t, s, path+"&sendInitialEvents=true"), open(t, s, path+"&resourceVersion=2")
	streamed.want("ADDED a", "ADDED b", "BOOKMARK end")
	s.Apply(onNode("c", "n2")) // nobody's
	s.Apply(onNode("c", "n1")) // begins to match
	s.Annotate("default", "a", "k", "v")
	s.Apply(onNode("b", "n2")) // ends to match
	s.Delete("pods", "default", "a")
	s.Apply("kind: NetworkAttachmentDefinition\nmetadata: {name: n}\n")
	for _, w := range []*stream{streamed, later} {
		w.want("ADDED c", "MODIFIED a", "DELETED b", "DELETED a")
	}
	if n := s.Watches("pods"); n != 2 {
		t.Errorf("%d watches are open", n)
	}
	s.EndWatches()
	streamed.want("EOF")
	s.Compact()
	open(t, s, path+"&resourceVersion=2").want("ERROR Gone", "EOF")
}

func TestWithhold(t *testing.T) {
	s := New(t)
	s.Withhold("pods", true)
	res, err := http.Get(s.URL() + "/api/v1/pods")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusNotFound || strings.HasPrefix(string(body), "{") {
		t.Errorf("answer %d %s", res.StatusCode, body)
	}
}

func TestStartAgain(t *testing.T) {
	s := New(t, WithTLS())
	s.Apply(onNode("a", "n1"))
	url := s.URL()
	s.Stop()
	if _, err := s.http.Client().Get(url); err == nil {
		t.Error("a stopped server answers")
	}
	s.Start()
	res, err := s.http.Client().Get(s.URL() + "/api/v1/namespaces/default/pods/a")
	if err != nil || res.StatusCode != http.StatusOK || s.URL() != url {
		t.Errorf("%v %v at %s, was %s", res, err, s.URL(), url)
	}
	if err == nil {
		res.Body.Close()
	}
}
