package linttest

import (
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/prometheus/prometheus/config"
	"sigs.k8s.io/yaml"
)

// project loads the compose file as `docker compose` does: against the schema,
// variables replaced, consistency checked.
func project(t *testing.T) *types.Project {
	t.Helper()
	return must(load(t, types.Mapping{"AGRIMILL_ADMIN_TOKEN": "given from outside"}))(t)
}

func load(t *testing.T, environment types.Mapping) (*types.Project, error) {
	t.Helper()
	const file = "docker-compose.yaml"
	dir := must(filepath.Abs(deploy))(t)
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, file)}},
		Environment: environment,
	}, func(options *loader.Options) { options.SetProjectName("agrimill", true) })
}

// The token of the status page has no default: without one, nothing starts.
func TestComposeWantsAToken(t *testing.T) {
	t.Parallel()
	for _, environment := range []types.Mapping{{}, {"AGRIMILL_ADMIN_TOKEN": ""}} {
		if _, err := load(t, environment); err == nil || !strings.Contains(err.Error(), "AGRIMILL_ADMIN_TOKEN") {
			t.Errorf("with %v: %v", environment, err)
		}
	}
	if token := project(t).Services["agrimill"].Environment["AGRIMILL_ADMIN_TOKEN"]; token == nil || *token != "given from outside" {
		t.Errorf("agrimill gets the token %v", token)
	}
}

func TestComposeFile(t *testing.T) {
	t.Parallel()
	p := project(t)
	for _, name := range []string{"emulator", "nats", "kafka", "agrimill", "prometheus", "grafana"} {
		if _, ok := p.Services[name]; !ok {
			t.Errorf("no service %s", name)
		}
	}
	pinned := regexp.MustCompile(`^[a-z./-]+:v?\d+\.\d+\.\d+(-[a-z]+)?$`)
	for name, service := range p.Services {
		if service.Build == nil && !pinned.MatchString(service.Image) {
			t.Errorf("%s: image %s is not pinned to a version", name, service.Image)
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is published beyond this machine", name, port.Published)
			}
		}
		for _, volume := range service.Volumes {
			switch volume.Type {
			case types.VolumeTypeBind:
				if _, err := filepath.Glob(volume.Source); err != nil || !exists(volume.Source) {
					t.Errorf("%s: %s is not there", name, volume.Source)
				}
				if !volume.ReadOnly {
					t.Errorf("%s: %s can be written", name, volume.Source)
				}
			case types.VolumeTypeVolume:
				if _, ok := p.Volumes[volume.Source]; !ok {
					t.Errorf("%s: no volume %s", name, volume.Source)
				}
			}
		}
		for other := range service.DependsOn {
			if condition := service.DependsOn[other].Condition; condition == types.ServiceConditionHealthy && p.Services[other].HealthCheck == nil {
				t.Errorf("%s waits for the health of %s, which has none", name, other)
			}
		}
		if service.Build != nil {
			dockerfile := filepath.Join(service.Build.Context, service.Build.Dockerfile)
			if want, err := filepath.Abs(filepath.Join(deploy, "Dockerfile")); err != nil || dockerfile != want {
				t.Errorf("%s is built from %s", name, dockerfile)
			}
			if context, err := filepath.Abs(top); err != nil || service.Build.Context != context {
				t.Errorf("%s is built in %s", name, service.Build.Context)
			}
			if !service.ReadOnly || !slices.Contains(service.CapDrop, "ALL") {
				t.Errorf("%s may do more than it needs", name)
			}
		}
	}
}

// Names, ports and paths in the files that the services read lead to the services.
func TestComposeAgreesWithItsFiles(t *testing.T) {
	t.Parallel()
	p := project(t)
	agrimill := parseProgramConfig(t, read(t, deploy, "compose", "agrimill.yaml"))
	service := p.Services["agrimill"]
	longerThanTheDrain(t, "stop_grace_period", time.Duration(*service.StopGracePeriod), agrimill)

	// agrimill → the emulator, NATS, Kafka.
	emulator := p.Services["emulator"]
	address := emulator.Command[len(emulator.Command)-1]
	if got := hostOf(t, agrimill.Gateway.BaseURL); got != address || !published(emulator, "8081", address) {
		t.Errorf("base_url leads to %s, the emulator listens on %s", got, address)
	}
	nats := p.Services["nats"]
	conf := string(read(t, deploy, "compose", "nats.conf"))
	if got := hostOf(t, agrimill.Sinks["nats"].NATS.URL); got != "nats:"+setting(t, conf, "port") || !published(nats, "4222", got) {
		t.Errorf("the sink leads to %s", got)
	}
	if always := setting(t, conf, "sync_interval") == "always"; always != (agrimill.Sinks["nats"].NATS.Synced == "always") {
		t.Errorf("synced: %s, and the server always: %t", agrimill.Sinks["nats"].NATS.Synced, always)
	}
	if !slices.ContainsFunc(nats.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == setting(t, conf, "store_dir") }) {
		t.Error("JetStream's files are on no volume")
	}
	if check := nats.HealthCheck.Test[len(nats.HealthCheck.Test)-1]; hostOf(t, check) != "127.0.0.1:"+setting(t, conf, "http_port") {
		t.Errorf("the health check asks %s", check)
	}
	kafka := p.Services["kafka"]
	if advertised := *kafka.Environment["KAFKA_ADVERTISED_LISTENERS"]; advertised != "PLAINTEXT://"+agrimill.Sinks["kafka"].Kafka.Brokers[0] {
		t.Errorf("the sink leads to %s, Kafka says it is %s", agrimill.Sinks["kafka"].Kafka.Brokers, advertised)
	}
	if !slices.ContainsFunc(kafka.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == *kafka.Environment["KAFKA_LOG_DIRS"] }) {
		t.Error("Kafka's files are on no volume")
	}

	// agrimill's own files.
	if file := service.Command[len(service.Command)-1]; !slices.ContainsFunc(service.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == file }) {
		t.Errorf("%s is not mounted", file)
	}
	for _, path := range []string{agrimill.Dedup.BBolt.Path, strings.TrimPrefix(agrimill.ClaimCheck.URL, "file://")} {
		if !slices.ContainsFunc(service.Volumes, func(v types.ServiceVolumeConfig) bool {
			return !v.ReadOnly && strings.HasPrefix(path, v.Target+"/")
		}) {
			t.Errorf("%s is on no volume, and everything else is read-only", path)
		}
	}
	for variable := range emulator.Environment {
		if _, ok := service.Environment[variable]; !ok {
			t.Errorf("agrimill does not get %s", variable)
		}
		if strings.Contains(string(read(t, deploy, "compose", "agrimill.yaml")), "${"+variable+"}") {
			continue
		}
		t.Errorf("agrimill's configuration does not use %s", variable)
	}

	// Prometheus → agrimill, Grafana → Prometheus.
	prometheus := prometheusConfig(t)
	target := string(prometheus.ScrapeConfigs[0].ServiceDiscoveryConfigs[0].(staticConfig)[0].Targets[0]["__address__"])
	if _, port, _ := strings.Cut(agrimill.Admin.Address, ":"); target != "agrimill:"+port || !published(service, port, target) {
		t.Errorf("Prometheus asks %s, agrimill listens on %s", target, agrimill.Admin.Address)
	}
	var sources struct {
		Datasources []struct{ UID, Type, URL string } `json:"datasources"`
	}
	ends(t, yaml.Unmarshal(read(t, deploy, "grafana", "datasources", "prometheus.yaml"), &sources))
	if len(sources.Datasources) != 1 || hostOf(t, sources.Datasources[0].URL) != "prometheus:9090" || sources.Datasources[0].Type != "prometheus" {
		t.Errorf("data sources %+v", sources.Datasources)
	}
	var providers struct {
		Providers []struct {
			Options struct{ Path string } `json:"options"`
		} `json:"providers"`
	}
	ends(t, yaml.Unmarshal(read(t, deploy, "grafana", "providers", "agrimill.yaml"), &providers))
	grafana := p.Services["grafana"]
	path := providers.Providers[0].Options.Path
	if !slices.ContainsFunc(grafana.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == path }) {
		t.Errorf("dashboards are read from %s, where nothing is mounted", path)
	}
	home := *grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if filepath.Dir(home) != path || !exists(filepath.Join(deploy, "grafana", "dashboards", filepath.Base(home))) {
		t.Errorf("there is no dashboard %s", home)
	}
}

// prometheusConfig reads prometheus.yaml as Prometheus does.
func prometheusConfig(t *testing.T) *config.Config {
	t.Helper()
	return must(config.LoadFile(filepath.Join(deploy, "prometheus", "prometheus.yaml"), false, discardLogger()))(t)
}

// published reports whether the port of a service is the one of address, and one
// that the machine can reach, too.
func published(service types.ServiceConfig, port, address string) bool {
	return strings.HasSuffix(address, ":"+port) && slices.ContainsFunc(service.Ports, func(p types.ServicePortConfig) bool {
		return p.Published == port
	})
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	return must(url.Parse(address))(t).Host
}

// setting returns a value of nats.conf, which a test of cmd/agrimill/deploy reads
// with the server's own parser.
func setting(t *testing.T, conf, name string) string {
	t.Helper()
	match := regexp.MustCompile(`(?m)^\s*` + name + `: (\S+)$`).FindStringSubmatch(conf)
	if match == nil {
		t.Fatalf("nats.conf has no %s", name)
	}
	return match[1]
}
