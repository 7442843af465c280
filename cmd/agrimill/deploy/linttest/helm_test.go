package linttest

import (
	"maps"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

var chart = filepath.Join(deploy, "helm")

// render returns the manifests of a release, by the names of their templates, without those that
// are empty.
func render(t *testing.T, release, values string) (map[string]string, error) {
	t.Helper()
	c := must(loader.Load(chart))(t)
	given := map[string]any{}
	ends(t, yaml.Unmarshal([]byte(values), &given))
	all, err := util.ToRenderValues(c, given, common.ReleaseOptions{Name: release, Namespace: "farm", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	e := engine.Engine{Strict: true}
	files, err := e.RenderWithContext(t.Context(), c, all)
	if err != nil {
		return nil, err
	}
	manifests := map[string]string{}
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(text) != "" {
			manifests[path.Base(name)] = text
		}
	}
	return manifests, nil
}

// rendered reads a manifest into the type of its kind, which has to have all of its keys.
func rendered[T any](t *testing.T, manifests map[string]string, file string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(manifests[file]), object); err != nil {
		t.Fatalf("%s: %v\n%s", file, err, manifests[file])
	}
	return object
}

// asText is an object as YAML.
func asText(t *testing.T, object any) string {
	t.Helper()
	return string(must(yaml.Marshal(object))(t))
}

const instance = "app.kubernetes.io/instance"

// without takes from an object what only Helm knows: labels, and the instance in selectors.
func without[T metav1.Object](t *testing.T, object T, selectors ...map[string]string) T {
	t.Helper()
	for _, key := range []string{"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
		if object.GetLabels()[key] == "" || len(validation.IsValidLabelValue(object.GetLabels()[key])) > 0 {
			t.Errorf("%T: label %s is %q", object, key, object.GetLabels()[key])
		}
		delete(object.GetLabels(), key)
	}
	for _, selector := range append(selectors, object.GetLabels()) {
		if selector[instance] != "agrimill" {
			t.Errorf("%T: instance %q in %v", object, selector[instance], selector)
		}
		delete(selector, instance)
	}
	return object
}

func TestHelmLint(t *testing.T) {
	t.Parallel()
	for _, message := range lint.RunAll(chart, nil, "farm").Messages {
		if message.Severity > support.InfoSev {
			t.Error(message)
		}
	}
}

// With the values of the chart, the release agrimill is what kubectl makes of ../kubernetes-ha.
func TestHelmIsKubernetesHA(t *testing.T) {
	t.Parallel()
	manifests := must(render(t, "agrimill", ""))(t)
	want := []string{"configmap.yaml", "deployment.yaml", "networkpolicy.yaml", "poddisruptionbudget.yaml", "pvc.yaml", "service.yaml"}
	if got := slices.Sorted(maps.Keys(manifests)); !slices.Equal(got, want) {
		t.Fatalf("the chart has %v, want %v", got, want)
	}
	same := func(name string, got, want any) {
		t.Helper()
		if got, want := asText(t, got), asText(t, want); got != want {
			t.Errorf("%s of the chart is\n%s\nwant\n%s", name, got, want)
		}
	}

	d := rendered[appsv1.Deployment](t, manifests, "deployment.yaml")
	term := d.Spec.Template.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].PodAffinityTerm
	without(t, d, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels, term.LabelSelector.MatchLabels)
	if policy := d.Spec.Template.Spec.Containers[0].ImagePullPolicy; policy != corev1.PullIfNotPresent {
		t.Errorf("pull policy %s", policy)
	}
	d.Spec.Template.Spec.Containers[0].ImagePullPolicy = ""
	same("deployment", d, manifest[appsv1.Deployment](t, inHA("deployment.yaml"), "apps/v1", "Deployment"))

	service := rendered[corev1.Service](t, manifests, "service.yaml")
	same("service", without(t, service, service.Spec.Selector), manifest[corev1.Service](t, inHA("service.yaml"), "v1", "Service"))
	policy := rendered[networkingv1.NetworkPolicy](t, manifests, "networkpolicy.yaml")
	same("network policy", without(t, policy, policy.Spec.PodSelector.MatchLabels),
		manifest[networkingv1.NetworkPolicy](t, inHA("networkpolicy.yaml"), "networking.k8s.io/v1", "NetworkPolicy"))
	budget := rendered[policyv1.PodDisruptionBudget](t, manifests, "poddisruptionbudget.yaml")
	same("budget", without(t, budget, budget.Spec.Selector.MatchLabels),
		manifest[policyv1.PodDisruptionBudget](t, inHA("poddisruptionbudget.yaml"), "policy/v1", "PodDisruptionBudget"))
	claim := rendered[corev1.PersistentVolumeClaim](t, manifests, "pvc.yaml")
	if claim.Annotations["helm.sh/resource-policy"] != "keep" {
		t.Error("uninstalling the release would delete payloads that messages refer to")
	}
	claim.Annotations = nil
	same("claim", without(t, claim), manifest[corev1.PersistentVolumeClaim](t, inHA("pvc.yaml"), "v1", "PersistentVolumeClaim"))

	config := without(t, rendered[corev1.ConfigMap](t, manifests, "configmap.yaml"))
	files := manifest[corev1.ConfigMap](t, inHA("configmap.yaml"), "v1", "ConfigMap")
	var gotConfig, wantConfig map[string]any
	ends(t, yaml.UnmarshalStrict([]byte(config.Data["agrimill.yaml"]), &gotConfig))
	ends(t, yaml.UnmarshalStrict([]byte(files.Data["agrimill.yaml"]), &wantConfig))
	if !reflect.DeepEqual(gotConfig, wantConfig) || len(config.Data) != 1 || config.Name != files.Name {
		t.Errorf("the configuration of the chart is\n%s", config.Data["agrimill.yaml"])
	}
}

// What values change, and that the objects of a release with another name belong together.
func TestHelmValues(t *testing.T) {
	t.Parallel()
	manifests := must(render(t, "north", `
image: {repository: registry.example/other, tag: 2.3.4, pullSecrets: [{name: registry}]}
replicas: 3
secret: farm-secrets
env: [{name: NATS_PASSWORD, valueFrom: {secretKeyRef: {name: nats, key: password}}}]
goMemLimit: 1GiB
resources: {limits: {memory: 2Gi}}
terminationGracePeriodSeconds: 90
nodeSelector: {zone: a}
tolerations: [{key: farm, operator: Exists}]
podMonitor: {enabled: true}
persistence: {existingClaim: payloads}
networkPolicy: {from: [], to: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 9093, protocol: TCP}]}]}
config: {shutdown: {timeout: 80s}}
`))(t)
	if _, made := manifests["pvc.yaml"]; made {
		t.Error("a claim is made beside the one that exists")
	}
	d := rendered[appsv1.Deployment](t, manifests, "deployment.yaml")
	pod := d.Spec.Template.Spec
	container := pod.Containers[0]
	if d.Name != "north-agrimill" || *d.Spec.Replicas != 3 || container.Image != "registry.example/other:2.3.4" || *pod.TerminationGracePeriodSeconds != 90 {
		t.Errorf("deployment %s: %d of %s", d.Name, *d.Spec.Replicas, container.Image)
	}
	if len(pod.ImagePullSecrets) != 1 || pod.NodeSelector["zone"] != "a" || len(pod.Tolerations) != 1 || container.Resources.Limits.Memory().String() != "2Gi" {
		t.Errorf("pod %+v", pod)
	}
	if env := container.Env; len(env) != 2 || env[0].Value != "1GiB" || env[1].ValueFrom.SecretKeyRef.Key != "password" {
		t.Errorf("variables %+v", env)
	}
	volumes := map[string]corev1.Volume{}
	for _, volume := range pod.Volumes {
		volumes[volume.Name] = volume
	}
	config := rendered[corev1.ConfigMap](t, manifests, "configmap.yaml")
	if volumes["secrets"].Secret.SecretName != "farm-secrets" || volumes["state"].PersistentVolumeClaim.ClaimName != "payloads" || volumes["config"].ConfigMap.Name != config.Name {
		t.Errorf("volumes %+v", pod.Volumes)
	}
	if got := parseProgramConfig(t, []byte(config.Data["agrimill.yaml"])); got.Shutdown.Timeout != "80s" || got.Gateway.ClientSecretFile == "" {
		t.Errorf("configuration\n%s", config.Data["agrimill.yaml"])
	}
	pods := labels.Set(d.Spec.Template.Labels)
	policy := rendered[networkingv1.NetworkPolicy](t, manifests, "networkpolicy.yaml").Spec
	if len(policy.Ingress) != 0 || len(policy.Egress) != 3 || policy.Egress[2].Ports[0].Port.IntValue() != 9093 {
		t.Errorf("policy %+v", policy)
	}
	if !strings.Contains(manifests["networkpolicy.yaml"], "policyTypes: [Ingress, Egress]") {
		t.Error("without a rule everybody is let in")
	}
	monitor := rendered[monitoringv1.PodMonitor](t, manifests, "podmonitor.yaml").Spec
	service := rendered[corev1.Service](t, manifests, "service.yaml").Spec
	budget := rendered[policyv1.PodDisruptionBudget](t, manifests, "poddisruptionbudget.yaml").Spec
	other := labels.Set{"app.kubernetes.io/name": "agrimill", instance: "south"}
	for name, selector := range map[string]*metav1.LabelSelector{
		"deployment": d.Spec.Selector, "policy": &policy.PodSelector, "monitor": &monitor.Selector, "budget": budget.Selector,
		"service": {MatchLabels: service.Selector},
	} {
		if !matches(t, selector, pods) || matches(t, selector, other) {
			t.Errorf("%s selects %v", name, selector.MatchLabels)
		}
	}
}

// One instance needs no lease, and none of what two need.
func TestHelmWithOneReplica(t *testing.T) {
	t.Parallel()
	manifests := must(render(t, "agrimill", `
replicas: 1
networkPolicy: {enabled: false}
config: {ha: null, dedup: {nats_kv: null, bbolt: {path: /var/lib/agrimill/dedup.db}}}
`))(t)
	if got := slices.Sorted(maps.Keys(manifests)); !slices.Equal(got, []string{"configmap.yaml", "deployment.yaml", "pvc.yaml", "service.yaml"}) {
		t.Errorf("the chart has %v", got)
	}
	d := rendered[appsv1.Deployment](t, manifests, "deployment.yaml")
	if *d.Spec.Replicas != 1 || d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType || d.Spec.Strategy.RollingUpdate != nil {
		t.Errorf("strategy %+v", d.Spec.Strategy)
	}
}

func TestHelmRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ values, want string }{
		"two without a lease":  {"config: {ha: null}", "more than one needs config.ha"},
		"two with one file":    {"config: {dedup: {nats_kv: null, bbolt: {path: /var/lib/agrimill/dedup.db}}}", "more than one cannot have the file"},
		"a key that is not":    {"replica: 3", "replica"},
		"no instance":          {"replicas: 0", "replicas"},
		"a moving tag":         {"image: {tag: latest}", "tag"},
		"no secret":            {`secret: ""`, "secret"},
		"a secret in a value":  {"config: {gateway: {client_secret: hunter2}}", "client_secret"},
		"a token in a value":   {"config: {admin: {token: hunter2}}", "token"},
		"a configuration text": {"config: 'gateway: {}'", "config"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := render(t, "agrimill", test.values)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
	must(render(t, "agrimill", "config: {gateway: {client_secret: '${CLIENT_SECRET}'}}"))(t)
}
