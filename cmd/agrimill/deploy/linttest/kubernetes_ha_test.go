package linttest

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// inHA is the path of a file for two instances, from that of the ones for one.
func inHA(file string) string { return filepath.Join("..", "kubernetes-ha", file) }

// Two instances differ from one in what makes them two, and in nothing else.
func TestKubernetesWithTwoReplicas(t *testing.T) {
	t.Parallel()
	one, two := deployment(t), manifest[appsv1.Deployment](t, inHA("deployment.yaml"), "apps/v1", "Deployment")
	pods := labels.Set(two.Spec.Template.Labels)
	if *two.Spec.Replicas != 2 {
		t.Errorf("%d replicas", *two.Spec.Replicas)
	}
	update := two.Spec.Strategy.RollingUpdate
	if two.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || update == nil || update.MaxUnavailable.IntValue() != 0 || update.MaxSurge.IntValue() != 1 {
		t.Errorf("an update stops one before another one stands by: %+v", two.Spec.Strategy)
	}
	terms := two.Spec.Template.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 1 || terms[0].PodAffinityTerm.TopologyKey != corev1.LabelHostname || !matches(t, terms[0].PodAffinityTerm.LabelSelector, pods) {
		t.Errorf("both may be on one node: %+v", terms)
	}
	two.Spec.Replicas, two.Spec.Strategy, two.Spec.Template.Spec.Affinity = one.Spec.Replicas, one.Spec.Strategy, nil
	if !reflect.DeepEqual(one, two) {
		t.Errorf("the deployments differ in more than they have to:\n%+v\n%+v", one, two)
	}
	for _, file := range []string{"service.yaml", "networkpolicy.yaml"} {
		if !bytes.Equal(read(t, deploy, "kubernetes", file), read(t, deploy, "kubernetes", inHA(file))) {
			t.Errorf("%s is not the same", file)
		}
	}

	budget := manifest[policyv1.PodDisruptionBudget](t, inHA("poddisruptionbudget.yaml"), "policy/v1", "PodDisruptionBudget").Spec
	if budget.MinAvailable.IntValue() != 1 || !matches(t, budget.Selector, pods) {
		t.Errorf("the budget: %+v", budget)
	}
	claim := manifest[corev1.PersistentVolumeClaim](t, inHA("pvc.yaml"), "v1", "PersistentVolumeClaim")
	if !slices.Equal(claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}) {
		t.Errorf("both cannot mount the volume: %v", claim.Spec.AccessModes)
	}

	// The policy lets both out to NATS, where the lease and the dedup store are.
	var config struct {
		HA, Dedup struct {
			NATSKV struct{ URL string } `json:"nats_kv"`
		}
	}
	files := manifest[corev1.ConfigMap](t, inHA("configmap.yaml"), "v1", "ConfigMap").Data
	ends(t, yaml.Unmarshal([]byte(files["agrimill.yaml"]), &config))
	sink := parseProgramConfig(t, []byte(files["agrimill.yaml"])).Sinks["farm"].NATS.URL
	if sink == "" || config.HA.NATSKV.URL != sink || config.Dedup.NATSKV.URL != sink {
		t.Errorf("the lease is in %q, the dedup store in %q, and the sink in %q", config.HA.NATSKV.URL, config.Dedup.NATSKV.URL, sink)
	}

	var kustomization struct {
		Resources []string `json:"resources"`
	}
	ends(t, yaml.Unmarshal(read(t, deploy, "kubernetes", inHA("kustomization.yaml")), &kustomization))
	entries := must(os.ReadDir(filepath.Join(deploy, "kubernetes-ha")))(t)
	for _, entry := range entries {
		if name := entry.Name(); name != "kustomization.yaml" && !slices.Contains(kustomization.Resources, name) {
			t.Errorf("%s is not in kustomization.yaml", name)
		}
	}
	if len(entries) != len(kustomization.Resources)+1 {
		t.Errorf("%d files, %d in kustomization.yaml", len(entries), len(kustomization.Resources))
	}
}

func matches(t *testing.T, selector *metav1.LabelSelector, pods labels.Set) bool {
	t.Helper()
	s := must(metav1.LabelSelectorAsSelector(selector))(t)
	return !s.Empty() && s.Matches(pods)
}
