// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"github.com/weftnet/weft/internal/kube/kubetest"
	. "github.com/weftnet/weft/test/conformance"
)

// broken are ADDs with an API server that misbehaves. Where time may mend it, the answer is 11 and
// the runtime tries again; where somebody must change something, it is 7.
func broken() []kase {
	const pods, nads = "pods", "network-attachment-definitions"
	fault := func(variant, do string, f kubetest.Fault, s step) kase {
		s.do, s.verb = do, "ADD"
		s.act = func(r *Rig) { r.API.Inject(f) }
		return kase{
			number: "API", variant: variant, only: Kubeconfig, networks: new("neta"), conf: `"timeout":"4s"`, steps: []step{s},
			multus: map[string]string{
				"429 once": "does not try again", "500 once": "the same, within 2.5 s", "503 once": "the same, within 2.5 s",
				"503": "gives up after 2.5 s", "hangs": "gives up after 2.5 s", "403 for the status": "an error without undoing",
				"404 for the status": "tolerates it",
			}[variant],
		}
	}
	refused := func(code int, words ...string) step {
		return step{code: code, words: words, calls: []string{}, hurry: code == 11}
	}
	undone := func(code int, words ...string) step {
		return step{code: code, words: words, calls: []string{ok1, "pb ADD net1", "pb DEL net1", "pa DEL eth0"}, event: "FailedAddInterface", again: true}
	}
	made := step{calls: []string{ok1, "pb ADD net1"}, again: true}
	get := func(resource string, status int) kubetest.Fault {
		return kubetest.Fault{Verb: "get", Resource: resource, Status: status}
	}
	once := func(f kubetest.Fault) kubetest.Fault { f.Times = 1; return f }
	return []kase{
		fault("401", "get pods is answered 401", get(pods, 401), refused(7, "pod default/pod-a", "401")),
		fault("403", "get pods is answered 403", get(pods, 403), refused(7, "pod default/pod-a", "403")),
		fault("403 for NADs", "get network-attachment-definitions is answered 403", get(nads, 403), told(refused(7, "NetworkAttachmentDefinition default/neta", "403"))),
		fault("no CRD", "get network-attachment-definitions is answered 404 by no API", kubetest.Fault{Verb: "get", Resource: nads, Status: 404, Plain: true},
			told(refused(7, "NetworkAttachmentDefinition default/neta", "404"))),
		fault("429 once", "get pods is answered 429 once, Retry-After 1", once(kubetest.Fault{Verb: "get", Resource: pods, Status: 429, RetryAfter: 1}), made),
		fault("429", "get pods is answered 429", get(pods, 429), refused(11, "pod default/pod-a", "429")),
		fault("500 once", "get pods is answered 500 once", once(get(pods, 500)), made),
		fault("503 once", "get pods is answered 503 once", once(get(pods, 503)), made),
		fault("503", "get pods is answered 503", get(pods, 503), refused(11, "pod default/pod-a", "503")),
		fault("hangs", "get pods is never answered", kubetest.Fault{Verb: "get", Resource: pods, Hang: true}, refused(11, "pod default/pod-a", "no answer in time")),
		fault("hangs for NADs", "get network-attachment-definitions is never answered", kubetest.Fault{Verb: "get", Resource: nads, Hang: true},
			refused(11, "NetworkAttachmentDefinition default/neta", "no answer in time")),
		fault("redirect", "get pods is answered by a redirect", kubetest.Fault{Verb: "get", Resource: pods, Redirect: "http://192.0.2.1/"}, refused(7, "pod default/pod-a", "redirect")),
		fault("dropped once", "the connection is closed without an answer, once", once(kubetest.Fault{Verb: "get", Resource: pods, Drop: true}), made),
		fault("truncated", "get pods is answered by half a pod", kubetest.Fault{Verb: "get", Resource: pods, Truncate: true}, refused(11, "pod default/pod-a")),
		fault("garbage", "get pods is answered by no JSON", kubetest.Fault{Verb: "get", Resource: pods, Body: "<html>"}, refused(11, "pod default/pod-a")),
		fault("403 for the status", "patch pods/status is answered 403", kubetest.Fault{Verb: "patch", Resource: pods, Status: 403}, undone(7, "annotation "+StatusAnnotation, "403")),
		fault("404 for the status", "the pod is gone when its status is written", kubetest.Fault{Verb: "patch", Resource: pods, Status: 404}, undone(11, "annotation "+StatusAnnotation, "404")),
		fault("status dropped", "the answer to the first patch of pods/status is lost", once(kubetest.Fault{Verb: "patch", Resource: pods, DropAfter: true}), made),
		stopped(),
	}
}

// stopped: nobody listens.
func stopped() kase {
	return kase{number: "API", variant: "refuses connections", multus: "gives up after 2.5 s", only: Kubeconfig, networks: new("neta"), conf: `"timeout":"2s"`, steps: []step{{
		do: "nobody listens", act: func(r *Rig) { r.API.Stop() }, verb: "ADD", code: 11, words: []string{"pod default/pod-a", "connection refused"}, calls: []string{}, hurry: true,
	}}}
}
