// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weftnet/weft/internal/kube/kubetest"
)

const pod = "kind: Pod\nmetadata: {name: web, uid: u1, annotations: {a: x}}\nspec: {s: 1}\nstatus: {p: 1}\n"

func send(t *testing.T, s *kubetest.Server, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/json-patch+json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// TestPatch: the rules of the API server that clients rely on.
func TestPatch(t *testing.T) {
	const web, status = "/api/v1/namespaces/default/pods/web", "/api/v1/namespaces/default/pods/web/status"
	for name, c := range map[string]struct {
		path, patch string
		code        int
		want        string // a part of the pod afterwards, or of the answer
	}{
		"add":                      {status, `[{"op":"add","path":"/metadata/annotations/b~1c","value":"y"}]`, 200, `"b/c":"y"`},
		"replace":                  {web, `[{"op":"replace","path":"/metadata/annotations/a","value":"y"}]`, 200, `"a":"y"`},
		"remove":                   {web, `[{"op":"remove","path":"/metadata/annotations/a"}]`, 200, `"annotations":{}`},
		"test":                     {web, `[{"op":"test","path":"/metadata/uid","value":"u1"},{"op":"test","path":"/metadata/annotations/a","value":"x"}]`, 200, `"a":"x"`},
		"test of another value":    {web, `[{"op":"add","path":"/metadata/annotations/b","value":"y"},{"op":"test","path":"/metadata/uid","value":"u2"}]`, 422, "test failed"},
		"test for nothing":         {web, `[{"op":"test","path":"/metadata/annotations/b","value":null}]`, 200, `"a":"x"`},
		"test for nothing, of one": {web, `[{"op":"test","path":"/metadata/annotations/a","value":null}]`, 422, "test failed"},
		"no parent":                {web, `[{"op":"add","path":"/metadata/labels/b","value":"y"}]`, 422, `there is no \"labels\"`},
		"the UID":                  {web, `[{"op":"replace","path":"/metadata/uid","value":"u2"}]`, 422, "immutable"},
		"an old version":           {web, `[{"op":"replace","path":"/metadata/resourceVersion","value":"0"}]`, 409, "has been modified"},
		"spec by status":           {status, `[{"op":"replace","path":"/spec/s","value":2},{"op":"replace","path":"/status/p","value":2}]`, 200, `"spec":{"s":1},"status":{"p":2}`},
		"status by spec":           {web, `[{"op":"replace","path":"/spec/s","value":2},{"op":"replace","path":"/status/p","value":2}]`, 200, `"spec":{"s":2},"status":{"p":1}`},
		"no such pod":              {"/api/v1/namespaces/default/pods/db", `[]`, 404, `pods \"db\" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Apply(pod)
			code, body := send(t, s, http.MethodPatch, c.path, c.patch)
			if code != c.code || !strings.Contains(body, c.want) {
				t.Errorf("answer %d %s; want %d with %s", code, body, c.code, c.want)
			}
			_, now := send(t, s, http.MethodGet, web, "")
			if code == 200 && !strings.Contains(now, c.want) || code != 200 && (!strings.Contains(now, `"a":"x"`) || strings.Contains(now, `"b"`)) {
				t.Errorf("the pod is %s", now)
			}
			if n := s.Count("patch", ""); n != 1 || s.Count("", "pods") != 2 {
				t.Errorf("%d patches, %d requests", n, s.Count("", "pods"))
			}
		})
	}
}

// TestFaultsAreCounted: a fault concerns the requests that it names, as often as it says.
func TestFaultsAreCounted(t *testing.T) {
	s := kubetest.New(t, kubetest.WithToken("t"))
	s.Apply(pod)
	const web = "/api/v1/namespaces/default/pods/web"
	if code, body := send(t, s, http.MethodGet, web, ""); code != 401 || !strings.Contains(body, `"reason":"Unauthorized"`) {
		t.Errorf("answer %d %s", code, body)
	}
	s.SetTokens()
	s.Inject(kubetest.Fault{Verb: "get", Resource: "pods", Name: "web", Skip: 1, Times: 1, Status: 429, RetryAfter: 7})
	for i, want := range []int{200, 429, 200} {
		if code, _ := send(t, s, http.MethodGet, web, ""); code != want {
			t.Errorf("request %d is answered with %d, want %d", i, code, want)
		}
	}
	s.Inject(kubetest.Fault{Status: 503})
	s.Heal()
	if code, _ := send(t, s, http.MethodGet, "/nowhere", ""); code != 404 {
		t.Errorf("answer %d", code)
	}
}
