package linttest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// manifest reads a file into the type of its kind. Keys that the type does not
// have are mistakes.
func manifest[T any](t *testing.T, file, apiVersion, kind string) *T {
	t.Helper()
	data := read(t, deploy, "kubernetes", file)
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(data, &head); err != nil {
		t.Fatal(err)
	}
	if head.APIVersion != apiVersion || head.Kind != kind {
		t.Fatalf("%s is a %s %s", file, head.APIVersion, head.Kind)
	}
	object := new(T)
	if err := yaml.UnmarshalStrict(data, object); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return object
}

func deployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	return manifest[appsv1.Deployment](t, "deployment.yaml", "apps/v1", "Deployment")
}

// Every file is of a kind that is known, and none has keys that its kind does not
// have.
func TestKubernetesManifests(t *testing.T) {
	t.Parallel()
	known := map[string]func(*testing.T, string) string{
		"configmap.yaml": func(t *testing.T, f string) string {
			return manifest[corev1.ConfigMap](t, f, "v1", "ConfigMap").Name
		},
		"pvc.yaml": func(t *testing.T, f string) string {
			return manifest[corev1.PersistentVolumeClaim](t, f, "v1", "PersistentVolumeClaim").Name
		},
		"deployment.yaml": func(t *testing.T, f string) string {
			return manifest[appsv1.Deployment](t, f, "apps/v1", "Deployment").Name
		},
		"service.yaml": func(t *testing.T, f string) string {
			return manifest[corev1.Service](t, f, "v1", "Service").Name
		},
		"podmonitor.yaml": func(t *testing.T, f string) string {
			return manifest[monitoringv1.PodMonitor](t, f, "monitoring.coreos.com/v1", "PodMonitor").Name
		},
	}
	var kustomization struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Resources  []string `json:"resources"`
	}
	if err := yaml.UnmarshalStrict(read(t, deploy, "kubernetes", "kustomization.yaml"), &kustomization); err != nil {
		t.Fatal(err)
	}
	if kustomization.APIVersion != "kustomize.config.k8s.io/v1beta1" || kustomization.Kind != "Kustomization" {
		t.Errorf("kustomization.yaml is a %s %s", kustomization.APIVersion, kustomization.Kind)
	}
	entries, err := os.ReadDir(filepath.Join(deploy, "kubernetes"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if name == "kustomization.yaml" {
			continue
		}
		check, ok := known[name]
		if !ok {
			t.Errorf("nobody checks %s", name)
			continue
		}
		if got := check(t, name); got != "agrimill-bridge" || len(validation.IsDNS1123Subdomain(got)) > 0 {
			t.Errorf("%s: name %q", name, got)
		}
		// The PodMonitor's kind is not in every cluster.
		if listed := slices.Contains(kustomization.Resources, name); listed == (name == "podmonitor.yaml") {
			t.Errorf("%s in kustomization.yaml: %t", name, listed)
		}
	}
	if len(entries) != len(known)+1 {
		t.Errorf("%d files, %d checked", len(entries), len(known))
	}
}

func TestKubernetesDeployment(t *testing.T) {
	t.Parallel()
	d := deployment(t)
	pod := d.Spec.Template.Spec
	if !labels.SelectorFromSet(d.Spec.Selector.MatchLabels).Matches(labels.Set(d.Spec.Template.Labels)) {
		t.Error("the selector does not match the pods")
	}
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers", len(pod.Containers))
	}
	container := pod.Containers[0]
	if !regexp.MustCompile(`:v?\d+\.\d+\.\d+$`).MatchString(container.Image) {
		t.Errorf("image %s is not pinned to a version", container.Image)
	}
	// One process at a time has the file of the dedup store open.
	if *d.Spec.Replicas != 1 || d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		t.Error("two bridges at a time would wait for each other's file")
	}
	security, own := pod.SecurityContext, container.SecurityContext
	if !*security.RunAsNonRoot || *security.RunAsUser == 0 || security.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Error("the pod may be root, or make any system call")
	}
	if *own.AllowPrivilegeEscalation || !*own.ReadOnlyRootFilesystem || !slices.Equal(own.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Error("the container may do more than it needs")
	}
	if *pod.AutomountServiceAccountToken {
		t.Error("the bridge needs nothing from the API of Kubernetes")
	}
	for name, probe := range map[string]*corev1.Probe{
		"/healthz": container.LivenessProbe, "/readyz": container.ReadinessProbe, "/healthz ": container.StartupProbe,
	} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != strings.TrimSpace(name) || probe.HTTPGet.Port != intstr.FromString("admin") {
			t.Errorf("probe of %s: %+v", name, probe)
		}
	}
	if container.Resources.Limits.Memory().IsZero() || container.Resources.Requests.Cpu().IsZero() {
		t.Error("resources are not said")
	}
	user := fmt.Sprintf("%d:%d", *security.RunAsUser, *security.RunAsGroup)
	if users := find[*instructions.UserCommand](stages(t)[1]); users[0].User != user {
		t.Errorf("the image's user is %s, that of the pod %s", users[0].User, user)
	}
}

// What the pod gives is what the configuration in the ConfigMap asks for.
func TestKubernetesAgreesWithItsConfiguration(t *testing.T) {
	t.Parallel()
	files := manifest[corev1.ConfigMap](t, "configmap.yaml", "v1", "ConfigMap").Data
	config := parseBridgeConfig(t, []byte(files["bridge.yaml"]))
	pod := deployment(t).Spec.Template.Spec
	container := pod.Containers[0]
	longerThanTheDrain(t, "terminationGracePeriodSeconds", time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second, config)

	mounts := map[string]corev1.VolumeMount{}
	for _, mount := range container.VolumeMounts {
		mounts[mount.Name] = mount
	}
	sources := map[string]corev1.VolumeSource{}
	for _, volume := range pod.Volumes {
		sources[volume.Name] = volume.VolumeSource
		if _, ok := mounts[volume.Name]; !ok {
			t.Errorf("volume %s is mounted nowhere", volume.Name)
		}
	}
	if len(sources) != len(mounts) {
		t.Error("a mount has no volume")
	}
	if got := container.Args; len(got) != 2 || got[0] != "run" || got[1] != mounts["config"].MountPath+"/bridge.yaml" {
		t.Errorf("args are %q", got)
	}
	if got := config.Gateway.ClientSecretFile; got != mounts["secrets"].MountPath+"/client-secret" {
		t.Errorf("client_secret_file is %s", got)
	}
	state := mounts["state"].MountPath + "/"
	if !strings.HasPrefix(config.Dedup.BBolt.Path, state) || !strings.HasPrefix(config.ClaimCheck.URL, "file://"+state) {
		t.Errorf("%s or %s is not on the volume", config.Dedup.BBolt.Path, config.ClaimCheck.URL)
	}
	if mounts["state"].ReadOnly || !mounts["config"].ReadOnly || !mounts["secrets"].ReadOnly {
		t.Error("the state is to be written, the rest is not")
	}
	if sources["config"].ConfigMap.Name != "agrimill-bridge" || sources["secrets"].Secret.SecretName != "agrimill-bridge" ||
		sources["state"].PersistentVolumeClaim.ClaimName != manifest[corev1.PersistentVolumeClaim](t, "pvc.yaml", "v1", "PersistentVolumeClaim").Name {
		t.Error("a volume comes from something that is not here")
	}

	if mode := *sources["secrets"].Secret.DefaultMode; mode != 0o440 {
		t.Errorf("the secret has mode %o", mode)
	}

	_, port, _ := strings.Cut(config.Admin.Address, ":")
	if ports := container.Ports; len(ports) != 1 || ports[0].Name != "admin" || strconv.Itoa(int(ports[0].ContainerPort)) != port {
		t.Errorf("ports %+v, and the bridge listens on %s", ports, config.Admin.Address)
	}
	if annotation := deployment(t).Spec.Template.Annotations["prometheus.io/port"]; annotation != port {
		t.Errorf("prometheus.io/port is %s", annotation)
	}
	service := manifest[corev1.Service](t, "service.yaml", "v1", "Service").Spec
	podLabels := labels.Set(deployment(t).Spec.Template.Labels)
	if !labels.SelectorFromSet(service.Selector).Matches(podLabels) || service.Ports[0].TargetPort != intstr.FromString("admin") {
		t.Error("the service does not lead to the bridge")
	}
	monitor := manifest[monitoringv1.PodMonitor](t, "podmonitor.yaml", "monitoring.coreos.com/v1", "PodMonitor").Spec
	if !labels.SelectorFromSet(monitor.Selector.MatchLabels).Matches(podLabels) || *monitor.PodMetricsEndpoints[0].Port != "admin" {
		t.Error("the PodMonitor does not lead to the bridge")
	}
}
