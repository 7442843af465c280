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
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	ends(t, yaml.Unmarshal(data, &head))
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
		"networkpolicy.yaml": func(t *testing.T, f string) string {
			return manifest[networkingv1.NetworkPolicy](t, f, "networking.k8s.io/v1", "NetworkPolicy").Name
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
	ends(t, yaml.UnmarshalStrict(read(t, deploy, "kubernetes", "kustomization.yaml"), &kustomization))
	if kustomization.APIVersion != "kustomize.config.k8s.io/v1beta1" || kustomization.Kind != "Kustomization" {
		t.Errorf("kustomization.yaml is a %s %s", kustomization.APIVersion, kustomization.Kind)
	}
	entries := must(os.ReadDir(filepath.Join(deploy, "kubernetes")))(t)
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
		if got := check(t, name); got != "agrimill" || len(validation.IsDNS1123Subdomain(got)) > 0 {
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
		t.Error("two instances at a time would wait for each other's file")
	}
	security, own := pod.SecurityContext, container.SecurityContext
	if !*security.RunAsNonRoot || *security.RunAsUser == 0 || security.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Error("the pod may be root, or make any system call")
	}
	if *own.AllowPrivilegeEscalation || !*own.ReadOnlyRootFilesystem || !slices.Equal(own.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Error("the container may do more than it needs")
	}
	if *pod.AutomountServiceAccountToken {
		t.Error("agrimill needs nothing from the API of Kubernetes")
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
	config := parseProgramConfig(t, []byte(files["agrimill.yaml"]))
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
	if got := container.Args; len(got) != 2 || got[0] != "run" || got[1] != mounts["config"].MountPath+"/agrimill.yaml" {
		t.Errorf("args are %q", got)
	}
	// The keys of the Secret, as kustomization.yaml says to create it.
	for key, got := range map[string]string{"client-secret": config.Gateway.ClientSecretFile, "admin-token": config.Admin.TokenFile} {
		if got != mounts["secrets"].MountPath+"/"+key {
			t.Errorf("%s is read from %q", key, got)
		}
		if !regexp.MustCompile(`--from-(file|literal)=` + key + `\b`).Match(read(t, deploy, "kubernetes", "kustomization.yaml")) {
			t.Errorf("kustomization.yaml does not say how to create %s", key)
		}
	}
	state := mounts["state"].MountPath + "/"
	if !strings.HasPrefix(config.Dedup.BBolt.Path, state) || !strings.HasPrefix(config.ClaimCheck.URL, "file://"+state) {
		t.Errorf("%s or %s is not on the volume", config.Dedup.BBolt.Path, config.ClaimCheck.URL)
	}
	if mounts["state"].ReadOnly || !mounts["config"].ReadOnly || !mounts["secrets"].ReadOnly {
		t.Error("the state is to be written, the rest is not")
	}
	if sources["config"].ConfigMap.Name != "agrimill" || sources["secrets"].Secret.SecretName != "agrimill" ||
		sources["state"].PersistentVolumeClaim.ClaimName != manifest[corev1.PersistentVolumeClaim](t, "pvc.yaml", "v1", "PersistentVolumeClaim").Name {
		t.Error("a volume comes from something that is not here")
	}

	if mode := *sources["secrets"].Secret.DefaultMode; mode != 0o440 {
		t.Errorf("the secret has mode %o", mode)
	}

	_, port, _ := strings.Cut(config.Admin.Address, ":")
	if ports := container.Ports; len(ports) != 1 || ports[0].Name != "admin" || strconv.Itoa(int(ports[0].ContainerPort)) != port {
		t.Errorf("ports %+v, and agrimill listens on %s", ports, config.Admin.Address)
	}
	if annotation := deployment(t).Spec.Template.Annotations["prometheus.io/port"]; annotation != port {
		t.Errorf("prometheus.io/port is %s", annotation)
	}
	service := manifest[corev1.Service](t, "service.yaml", "v1", "Service").Spec
	podLabels := labels.Set(deployment(t).Spec.Template.Labels)
	if !labels.SelectorFromSet(service.Selector).Matches(podLabels) || service.Ports[0].TargetPort != intstr.FromString("admin") {
		t.Error("the service does not lead to agrimill")
	}
	monitor := manifest[monitoringv1.PodMonitor](t, "podmonitor.yaml", "monitoring.coreos.com/v1", "PodMonitor").Spec
	if !labels.SelectorFromSet(monitor.Selector.MatchLabels).Matches(podLabels) || *monitor.PodMetricsEndpoints[0].Port != "admin" {
		t.Error("the PodMonitor does not lead to agrimill")
	}
}

// The policy is about the pod, lets in whom it names and nobody else, and lets the
// agrimill reach what the configuration in the ConfigMap names.
func TestKubernetesNetworkPolicy(t *testing.T) {
	t.Parallel()
	policy := manifest[networkingv1.NetworkPolicy](t, "networkpolicy.yaml", "networking.k8s.io/v1", "NetworkPolicy").Spec
	pod := deployment(t).Spec.Template
	selector, err := metav1.LabelSelectorAsSelector(&policy.PodSelector)
	if err != nil || selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
		t.Errorf("the policy is not about the pods: %v, %v", selector, err)
	}
	if !slices.Equal(policy.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}) {
		t.Errorf("the policy is about %v", policy.PolicyTypes)
	}
	for _, rule := range policy.Ingress {
		if len(rule.From) == 0 || len(rule.Ports) != 1 || *rule.Ports[0].Port != intstr.FromString(pod.Spec.Containers[0].Ports[0].Name) {
			t.Errorf("the policy lets in %+v", rule)
		}
		for _, from := range rule.From {
			if from.NamespaceSelector != nil && len(from.NamespaceSelector.MatchLabels) == 0 {
				t.Error("the policy lets in every namespace")
			}
		}
	}

	allowed := map[string]bool{}
	for _, rule := range policy.Egress {
		if len(rule.Ports) == 0 {
			t.Error("the policy lets out everything")
		}
		for _, port := range rule.Ports {
			allowed[fmt.Sprintf("%s %d", *port.Protocol, port.Port.IntValue())] = true
		}
	}
	files := manifest[corev1.ConfigMap](t, "configmap.yaml", "v1", "ConfigMap").Data
	config := parseProgramConfig(t, []byte(files["agrimill.yaml"]))
	wanted := []string{"UDP 53", "TCP 53"}
	for _, address := range []string{config.Gateway.BaseURL, config.Gateway.TokenURL} {
		if !strings.HasPrefix(address, "https://") || strings.Contains(hostOf(t, address), ":") {
			t.Errorf("%s is not on port 443", address)
		}
		wanted = append(wanted, "TCP 443")
	}
	for name, sink := range config.Sinks {
		if sink.NATS == nil {
			t.Errorf("nobody looks at sink %s", name)
			continue
		}
		_, port, _ := strings.Cut(hostOf(t, sink.NATS.URL), ":")
		wanted = append(wanted, "TCP "+port)
	}
	for _, port := range wanted {
		if !allowed[port] {
			t.Errorf("the policy does not let agrimill out to %s", port)
		}
	}
}
