// Copyright The Weft Authors.
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/test/lab"
)

// webhookRig is the shipped webhook, asked by the API server through the Service's address, which
// the operator listens on itself: there is no proxy.
type webhookRig struct {
	t          *testing.T
	kube       kubernetes.Interface
	networks   dynamic.ResourceInterface
	namespace  string
	kubeconfig string
}

func newWebhookRig(t *testing.T) *webhookRig {
	t.Helper()
	cp := lab.Cluster(t)
	lab.InstallCRDs(t)
	kube, err := kubernetes.NewForConfig(cp.Config())
	if err != nil {
		t.Fatal(err)
	}
	r := &webhookRig{t: t, kube: kube, namespace: lab.Namespace(t), kubeconfig: operatorKubeconfig(t, cp.InsideURL())}
	r.networks = nads(t, r.namespace)
	shipped, err := os.ReadFile(filepath.Join(cp.Root(), "deploy", "operator", "webhook.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// The API server has port 443 here, and the machine may have much else to do.
	text := strings.NewReplacer("port: 443", "port: 9443", "timeoutSeconds: 3", "timeoutSeconds: 15").Replace(string(shipped))
	lab.Apply(t, text)
	t.Cleanup(func() {
		if _, err := cp.Kubectl(context0(), text, "delete", "--filename=-", "--ignore-not-found"); err != nil {
			t.Error(err)
		}
		if err := kube.CoreV1().Secrets("kube-system").Delete(context0(), "weft-operator-certificate", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	r.addPods(cp)
	service, err := kube.CoreV1().Services("kube-system").Get(t.Context(), "weft-operator", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := cp.Script(t.Context(), "ip address add "+service.Spec.ClusterIP+"/32 dev lo"); err != nil {
		t.Fatal(err)
	}
	return r
}

// addPods adds the webhook of the component for pods.
func (r *webhookRig) addPods(cp *lab.ControlPlane) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(cp.Root(), "deploy", "operator", "pods", "webhook.yaml"))
	if err != nil {
		r.t.Fatal(err)
	}
	patch, err := yaml.YAMLToJSON([]byte(strings.NewReplacer("port: 443", "port: 9443", "timeoutSeconds: 3", "timeoutSeconds: 15").Replace(string(text))))
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(r.t.Context(), "weft-operator", types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// operate starts an operator beside the API server.
func (r *webhookRig) operate(name string, args ...string) {
	r.t.Helper()
	log := lab.Beside(r.t, name, append([]string{
		lab.Program(r.t, "weft-operator"), "--kubeconfig=" + r.kubeconfig, "--webhook", "--webhook-pods", "--lease=4s", "--metrics-address=", "--log-format=text",
	}, args...)...)
	r.t.Cleanup(func() {
		if r.t.Failed() {
			text, _ := os.ReadFile(log)
			r.t.Logf("%s:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
}

func network(name, config string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": map[string]any{"name": name}, "spec": map[string]any{"config": config},
	}}
}

const badNetwork = `{"cniVersion": "1.0.0", "plugins": [{"mtu": 1500}]}`

// refuses says whether a bad network is refused; it is a dry run, which is judged like any other.
func (r *webhookRig) refuses() error {
	_, err := r.networks.Create(r.t.Context(), network("bad", badNetwork), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil {
		return errors.New("it is let in")
	}
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.config plugins[0].type: ") {
		return err
	}
	return nil
}

// certificate is what the Secret holds.
func (r *webhookRig) certificate() string {
	r.t.Helper()
	s, err := r.kube.CoreV1().Secrets("kube-system").Get(r.t.Context(), "weft-operator-certificate", metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return string(s.Data["tls.crt"])
}

func TestOperatorWebhook(t *testing.T) {
	r := newWebhookRig(t)
	// While nobody answers, everything is let in.
	if _, err := r.networks.Create(t.Context(), network("old", badNetwork), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.operate("operator-1", "--webhook-address=:9443")
	inTime(t, "a bad network is refused", r.refuses)

	// What was bad before can be changed elsewhere, mended and deleted, and not be made worse.
	change := func(merge string) error {
		_, err := r.networks.Patch(t.Context(), "old", types.MergePatchType, []byte(merge), metav1.PatchOptions{})
		return err
	}
	if err := change(`{"metadata":{"labels":{"a":"b"},"finalizers":["lab.weft/x"]}}`); err != nil {
		t.Error(err)
	}
	if err := change(`{"spec":{"config":"{"}}`); !apierrors.IsInvalid(err) {
		t.Errorf("another fault: %v", err)
	}
	if err := r.networks.Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if err := change(`{"metadata":{"finalizers":null}}`); err != nil {
		t.Errorf("take the finalizer away: %v", err)
	}

	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	if _, err := r.networks.Create(t.Context(), network("good", `{"cniVersion": "1.0.0", "type": "macvlan"}`), dry); err != nil {
		t.Error(err)
	}
	// The definition cannot say this: a name that is no interface's in two pools.
	same := `{pools: [{name: a, filter: {ifNames: [x]}}, {name: b, filter: {ifNames: [x]}}]}`
	for _, c := range []struct{ resource, kind, spec, want string }{
		{nodeConfigs, nodeConfigKind, same, "spec.pools[1].filter.ifNames[0]"},
		{clusterConfigs, clusterConfigKind, "{spec: " + same + "}", "spec.spec.pools[1].filter.ifNames[0]"},
		{clusterConfigs, clusterConfigKind, `{spec: {}, nodeSelector: {matchExpressions: [{key: "no key!", operator: Exists}]}}`, "spec.nodeSelector.matchExpressions[0].key"},
		{nodeConfigs, nodeConfigKind, `{pools: [{name: a, filter: {ifNames: [x]}}]}`, ""},
	} {
		_, err := driverConfigs(t, c.resource).Create(t.Context(), driverConfig(t, c.kind, "webhook", c.spec), dry)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), "admission webhook") || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %s: %v, want %q", c.kind, c.spec, err, c.want)
		}
	}
	for annotation, want := range map[string]string{"a, b": "", "a/b/c": "annotation k8s.v1.cni.cncf.io/networks[0]", `[{"name": 1}]`: "annotation k8s.v1.cni.cncf.io/networks[0].name"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": annotation}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		_, err := r.kube.CoreV1().Pods(r.namespace).Create(t.Context(), pod, dry)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("pod that asks for %s: %v, want %q", annotation, err, want)
		}
	}
}

// TestOperatorCertificate: it is replaced in time without a moment in which a bad object is let in,
// by whoever leads; when nobody does it expires, and then everything is let in, until somebody does.
func TestOperatorCertificate(t *testing.T) {
	r := newWebhookRig(t)
	life := "--certificate-life=15s"
	r.operate("operator-1", "--webhook-address=:9443", life)
	inTime(t, "a bad network is refused", r.refuses)
	seen := map[string]bool{}
	replaced := func(n int) {
		t.Helper()
		inTime(t, "the certificate is replaced", func() error {
			if err := r.refuses(); err != nil {
				t.Fatal(err)
			}
			if seen[r.certificate()] = true; len(seen) < n {
				return fmt.Errorf("%d certificates so far", len(seen))
			}
			return nil
		})
	}
	replaced(3)
	// Somebody else's bundle, and a Secret that is gone.
	configs := r.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := configs.Patch(t.Context(), "weft-operator", types.JSONPatchType, []byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	inTime(t, "the bundle is put back", func() error {
		c, err := configs.Get(t.Context(), "weft-operator", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return bundled(c)
	})
	if err := r.kube.CoreV1().Secrets("kube-system").Delete(t.Context(), "weft-operator-certificate", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	inTime(t, "the Secret is made again", func() error {
		_, err := r.kube.CoreV1().Secrets("kube-system").Get(t.Context(), "weft-operator-certificate", metav1.GetOptions{})
		return err
	})
	inTime(t, "a bad network is refused", r.refuses)

	// Another one, which did not lead, leads.
	r.operate("operator-2", "--webhook-address=:9444", life)
	lab.EndBeside(t, "operator-1", syscall.SIGKILL)
	old := r.certificate()
	inTime(t, "the next leader makes a certificate", func() error {
		if r.certificate() == old {
			return errors.New("it is the old one")
		}
		return nil
	})
	lab.EndBeside(t, "operator-2", syscall.SIGTERM)
	if err := r.refuses(); err == nil || apierrors.IsInvalid(err) {
		t.Errorf("nobody answers, and a bad network is not let in: %v", err)
	}
	r.operate("operator-3", "--webhook-address=:9443", life)
	inTime(t, "a bad network is refused", r.refuses)
}

// bundled says which webhook has no authority.
func bundled(c *admissionv1.ValidatingWebhookConfiguration) error {
	for _, w := range c.Webhooks {
		if len(w.ClientConfig.CABundle) == 0 {
			return errors.New(w.Name + " has none")
		}
	}
	return nil
}
