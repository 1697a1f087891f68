// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weftnet/weft/test/lab"
)

// between has the node's agent reach the API server through a server that calls first for each request
// before it goes on; false: it does not, and the connection ends without an answer. conflicts counts
// the API server's own answers of that kind.
func (n *draNode) between(first func(*http.Request) bool) (conflicts *atomic.Int32) {
	n.t.Helper()
	cluster := lab.Cluster(n.t).Config()
	to, err := url.Parse(cluster.Host)
	if err != nil {
		n.t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(cluster.CAData)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}
	conflicts = &atomic.Int32{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ErrorLog:      log.New(n.t.Output(), "", 0),
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode == http.StatusConflict {
				conflicts.Add(1)
			}
			return nil
		},
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !first(r) {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	n.server, n.ca = server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	n.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		transport.CloseIdleConnections()
	})
	return conflicts
}

// ofStatus says that a request is to write the status of a claim.
func ofStatus(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/resourceclaims/") && strings.HasSuffix(r.URL.Path, "/status")
}

// T-31: somebody else writes between the agent's read and its write: the API server's conflict is
// answered by a second write, and both have what they wrote. Then no status can be written at all, as
// when the server goes away in between: the kubelet has its answer, an event tells, and the status
// follows once it can.
func TestDRAStatusFaults(t *testing.T) {
	kube := draCluster(t)
	n := newNode(t, kube, "worker-node-1")
	ns := lab.Namespace(t)
	var interfere atomic.Pointer[func()]
	var away atomic.Bool
	conflicts := n.between(func(r *http.Request) bool {
		if !ofStatus(r) {
			return true
		}
		if f := interfere.Swap(nil); f != nil {
			(*f)()
		}
		return !away.Load()
	})
	n.start()
	n.configure(trialConfig)
	n.offers("0000-03-10-0", "0000-03-10-2", "0000-03-10-4", "0000-03-10-6")
	if _, err := lab.Cluster(t).Kubectl(t.Context(), "", "label", "namespace", ns, "resource.kubernetes.io/admin-access=true"); err != nil {
		t.Fatal(err)
	}
	trialClass(t, kube, ns, `[{opaque: {driver: networkdriver.cilium.io, parameters: {vlan: 10, podIfName: a0}}}]`)
	n.atEnd("the other class", n.deleteClass(ns+"-gpu"))
	lab.Apply(t, fmt.Sprintf(mixed, ns, n.name), "--namespace="+ns)
	claim, _ := bound(t, kube, ns, "mixed")
	foreign := resourceapi.AllocatedDeviceStatus{
		Driver: "gpu.example.com", Pool: n.name + "-gpu", Device: "gpu-0", Data: &runtime.RawExtension{Raw: []byte(`{"busy":1}`)},
	}
	write := func() {
		other := claimOf(t, kube, ns, claim.Name)
		other.Status.Devices = append(other.Status.Devices, foreign)
		if _, err := kube.ResourceV1().ResourceClaims(ns).UpdateStatus(t.Context(), other, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	}
	interfere.Store(&write)
	if err := n.prepare(claim); err != nil {
		t.Fatal(err)
	}
	if conflicts.Load() == 0 {
		t.Error("there was no conflict")
	}
	wantMixed(t, n, claimOf(t, kube, ns, claim.Name), foreign)
	n.unprepare(claim)

	trialPods(t, ns, "away")
	claim, _ = bound(t, kube, ns, "away")
	away.Store(true)
	if err := n.prepare(claim); err != nil {
		t.Fatalf("prepare while no status can be written: %v", err)
	}
	n.event(claim, "StatusNotWritten")
	if got := claimOf(t, kube, ns, claim.Name); len(got.Status.Devices) != 0 {
		t.Errorf("status is %+v", got.Status.Devices)
	}
	away.Store(false)
	inTime(t, "the status is written", func() error {
		if got := claimOf(t, kube, ns, claim.Name); len(got.Status.Devices) != 1 {
			return fmt.Errorf("it is %+v", got.Status)
		}
		return nil
	})
	n.unprepare(claim)
}

// T-58: a kubelet that starts deletes the slices of its node, and has them again. One that refuses the
// driver is asked again, and the configuration says so meanwhile.
func TestDRAKubeletRestart(t *testing.T) {
	kube := draCluster(t)
	n := newNode(t, kube, "worker-node-1")
	n.kubelet.Refuse("not today")
	n.start()
	object, err := json.Marshal(driverConfig(t, nodeConfigKind, n.name,
		strings.Replace(trialConfig, "{", "{draRegistrationRetryInterval: 1, draRegistrationTimeout: 1, draRegistrationMaxAttempts: 30, ", 1)).Object)
	if err != nil {
		t.Fatal(err)
	}
	lab.Apply(t, string(object))
	inTime(t, "the configuration says that the kubelet refuses the driver", func() error { return n.says("NotRegistered", "after 2 attempts") })
	n.kubelet.Refuse("")
	n.configured()
	all := []string{"0000-03-10-0", "0000-03-10-2", "0000-03-10-4", "0000-03-10-6"}
	n.offers(all...)

	before := n.slices()
	for _, s := range before {
		if err := kube.ResourceV1().ResourceSlices().Delete(t.Context(), s.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	n.kubelet.Restart()
	n.kubelet.WaitFor(draDriver)
	inTime(t, "the slices are there again", func() error {
		now := n.slices()
		if len(now) != len(before) || now[0].UID == before[0].UID {
			return fmt.Errorf("there are %d, and were %d", len(now), len(before))
		}
		return nil
	})
	n.offers(all...)
}

// says wants a condition of the node's configuration that is not True, with a reason and a part of its
// message.
func (n *draNode) says(reason, part string) error {
	got, err := n.configs().Get(n.t.Context(), n.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	status, err := json.Marshal(got.Object["status"])
	if err != nil {
		return err
	}
	var now struct{ Conditions []metav1.Condition }
	if err := json.Unmarshal(status, &now); err != nil {
		return err
	}
	for _, c := range now.Conditions {
		if c.Status == metav1.ConditionFalse && c.Reason == reason && strings.Contains(c.Message, part) {
			return nil
		}
	}
	return errors.New("it says " + string(status))
}
