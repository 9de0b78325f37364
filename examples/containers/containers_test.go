// Package containers has an image of rrl and manifests for Kubernetes.
// docs/guide/run-in-containers.md describes them.
package containers

import (
	"bytes"
	"os"
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// A manifest has the objects of a file.
type manifest struct {
	deployment appsv1.Deployment
	service    corev1.Service
	rules      corev1.ConfigMap
}

// read reads a file. A field that Kubernetes does not have is an error, and so is one that is
// written twice.
func read(t *testing.T, file string) (m manifest) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]any{"apps/v1 Deployment": &m.deployment, "v1 Service": &m.service, "v1 ConfigMap": &m.rules}
	for part := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var kind struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(part, &kind); err != nil {
			t.Fatal(err)
		}
		object := kinds[kind.APIVersion+" "+kind.Kind]
		if object == nil {
			t.Fatalf("%s: an object %s %s", file, kind.APIVersion, kind.Kind)
		}
		if err := yaml.UnmarshalStrict(part, object); err != nil {
			t.Errorf("%s: %s: %v", file, kind.Kind, err)
		}
	}
	return m
}

func TestManifestsAreThoseOfKubernetes(t *testing.T) {
	for _, file := range []string{"rls.yaml", "export.yaml"} {
		m := read(t, file)
		pod := m.deployment.Spec.Template
		labels := pod.Labels
		if !reflect.DeepEqual(labels, m.deployment.Spec.Selector.MatchLabels) ||
			!reflect.DeepEqual(labels, m.service.Spec.Selector) || len(labels) == 0 {
			t.Errorf(
				"%s: the labels of the Pods are %v, but the selectors %v and %v", file, labels,
				m.deployment.Spec.Selector.MatchLabels, m.service.Spec.Selector,
			)
		}
		one := pod.Spec.Containers[0]
		for _, port := range m.service.Spec.Ports {
			if !slices.ContainsFunc(one.Ports, func(p corev1.ContainerPort) bool {
				return p.Name == port.TargetPort.String() && p.ContainerPort == port.Port
			}) {
				t.Errorf("%s: the container has no port %s %d", file, port.TargetPort.String(), port.Port)
			}
		}
		secure, outer := one.SecurityContext, pod.Spec.SecurityContext
		if !*outer.RunAsNonRoot || *secure.AllowPrivilegeEscalation || !*secure.ReadOnlyRootFilesystem ||
			!slices.Equal(secure.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: %v, %v", file, outer, secure)
		}
		if one.Resources.Requests.Memory().Cmp(*one.Resources.Limits.Memory()) > 0 {
			t.Errorf("%s: it requests more memory than its limit", file)
		}
		for _, volume := range pod.Spec.Volumes {
			if volume.ConfigMap.Name != m.rules.Name {
				t.Errorf("%s: there is no ConfigMap %s", file, volume.ConfigMap.Name)
			}
		}
	}
}
