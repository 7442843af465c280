// Package broker runs a real Apache Kafka broker for tests and examples, without Docker: Maven downloads it once into the
// user's cache folder, and Java (17 or newer) runs it.
package broker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// startTimeout allows for a busy machine; a start usually takes five seconds.
	startTimeout = 2 * time.Minute
	// stopTimeout is how long a broker may take to stop cleanly.
	stopTimeout = 30 * time.Second
	// startAttempts is how often ports are looked for.
	startAttempts = 5
	// logTail is how much of the broker's log is included in an error.
	logTail = 4000
)

// errInUse: somebody else has one of the broker's ports.
var errInUse = errors.New("a port is in use")

// Config configures a [Broker].
type Config struct {
	// Dir is an empty folder for the broker's data. Required.
	Dir string
	// Advertise is the address (host:port) for clients, e.g. that of a proxy. Default: the one it listens on.
	Advertise string
	// Properties are added to server.properties and take precedence.
	Properties map[string]string
	// Node is the broker's place in a cluster, from 0, and Controllers are the addresses on which the controllers of all of
	// its brokers listen, so that each is started, and waited for, beside the others. Default: it is alone.
	Node        int
	Controllers []string
	// Env is added to the environment of its processes.
	Env []string
	// Users, if any, may log in at the listener that SecureAddr returns, with TLS and SASL (PLAIN, SCRAM-SHA-256,
	// SCRAM-SHA-512), by names and passwords, which must not contain quotes or commas.
	Users map[string]string
	// Certificate and Key are the PEM of that listener, the key PKCS #8. Required with Users.
	Certificate, Key string
}

// Broker is a single broker with its own controller, for one goroutine.
type Broker struct {
	config     Config
	libs       string
	java       string
	addr       string // where it listens
	secureAddr string
	process    *exec.Cmd
	exited     chan struct{} // closed when the process has ended
}

// Start downloads Kafka if it is not cached, formats the storage, starts the broker, and returns when it accepts requests.
// ctx bounds that; the broker outlives it.
func Start(ctx context.Context, config Config) (*Broker, error) {
	java, err := findJava()
	if err != nil {
		return nil, err
	}
	libs, err := fetch(ctx)
	if err != nil {
		return nil, err
	}
	if strings.Contains(config.Dir, ",") {
		return nil, fmt.Errorf("folder %s: Kafka takes a comma for the end of a name", config.Dir)
	}
	for attempt := 1; ; attempt++ {
		b := &Broker{config: config, libs: libs, java: java}
		// Another broker may have found the same ports at the same moment.
		if err = b.start(ctx); err == nil {
			return b, nil
		} else if !errors.Is(err, errInUse) || attempt == startAttempts {
			return nil, err
		}
	}
}

// start starts it for the first time, on ports that are free.
func (b *Broker) start(ctx context.Context) error {
	addresses, err := freeAddresses(b.config.Node, max(1, len(b.config.Controllers)), 3)
	if err != nil {
		return err
	}
	b.addr, b.secureAddr = addresses[0], addresses[1]
	if err := os.WriteFile(b.file("log4j2.properties"), log4j, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(b.file("server.properties"), []byte(b.properties(addresses[2])), 0o600); err != nil {
		return err
	}
	if err := b.format(ctx); err != nil {
		return err
	}
	_ = os.Remove(b.file("broker.log")) // of the attempt before
	return b.Restart(ctx)
}

// Addr returns the address that the broker listens on.
func (b *Broker) Addr() string { return b.addr }

// SecureAddr returns the address of the listener for Config.Users.
func (b *Broker) SecureAddr() string { return b.secureAddr }

func (b *Broker) file(name string) string { return filepath.Join(b.config.Dir, name) }

// properties returns server.properties.
func (b *Broker) properties(controller string) string {
	advertise := b.config.Advertise
	advertise = cmp.Or(advertise, b.addr)
	controllers := b.config.Controllers
	if len(controllers) == 0 {
		controllers = []string{controller}
	}
	controller = controllers[b.config.Node]
	voters := make([]string, len(controllers))
	for i, addr := range controllers {
		voters[i] = fmt.Sprintf("%d@%s", i+1, addr)
	}
	all := map[string]string{
		"process.roles":                            "broker,controller",
		"node.id":                                  strconv.Itoa(b.config.Node + 1),
		"controller.quorum.voters":                 strings.Join(voters, ","), // static voters: "format" needs no --standalone
		"controller.listener.names":                "CONTROLLER",
		"inter.broker.listener.name":               "INTERNAL",
		"listeners":                                "INTERNAL://" + b.addr + ",CONTROLLER://" + controller,
		"advertised.listeners":                     "INTERNAL://" + advertise,
		"listener.security.protocol.map":           "INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs":                                 b.file("data"),
		"num.network.threads":                      "2",
		"num.io.threads":                           "2",
		"num.partitions":                           "1",
		"offsets.topic.num.partitions":             "1",
		"offsets.topic.replication.factor":         "1",
		"transaction.state.log.num.partitions":     "1",
		"transaction.state.log.replication.factor": "1",
		"transaction.state.log.min.isr":            "1",
		"group.initial.rebalance.delay.ms":         "0",
		"auto.create.topics.enable":                "false",
	}
	if len(b.config.Users) > 0 {
		all["listeners"] += ",SECURE://" + b.secureAddr
		all["advertised.listeners"] += ",SECURE://" + b.secureAddr
		all["listener.security.protocol.map"] += ",SECURE:SASL_SSL"
		const listener = "listener.name.secure."
		all[listener+"sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
		jaas := "org.apache.kafka.common.security.plain.PlainLoginModule required"
		for _, user := range slices.Sorted(maps.Keys(b.config.Users)) {
			jaas += fmt.Sprintf(" user_%s=%q", user, b.config.Users[user])
		}
		all[listener+"plain.sasl.jaas.config"] = jaas + ";"
		for _, mechanism := range []string{"scram-sha-256", "scram-sha-512"} {
			all[listener+mechanism+".sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
		}
		all[listener+"ssl.keystore.type"] = "PEM"
		all[listener+"ssl.keystore.certificate.chain"] = b.config.Certificate
		all[listener+"ssl.keystore.key"] = b.config.Key
	}
	maps.Copy(all, b.config.Properties)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(all[name])
		fmt.Fprintf(&text, "%s=%s\n", name, value)
	}
	return text.String()
}

// command returns a command that runs a class of Kafka.
func (b *Broker) command(ctx context.Context, class string, args ...string) *exec.Cmd {
	all := []string{
		"-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:ActiveProcessorCount=2", "-XX:TieredStopAtLevel=1",
		"-Djava.awt.headless=true", "-Dlog4j2.configurationFile=" + b.file("log4j2.properties"),
		"-cp", filepath.Join(b.libs, "*"), class,
	}
	command := exec.CommandContext(ctx, b.java, append(all, args...)...)
	command.Env = append(os.Environ(), b.config.Env...)
	return command
}

// cluster returns the ID of its cluster, which nobody else's has.
func (b *Broker) cluster() string {
	name := b.config.Dir
	if len(b.config.Controllers) > 0 {
		name = strings.Join(b.config.Controllers, ",")
	}
	id := sha256.Sum256([]byte(name))
	id[0] &= 0x7f // Kafka rejects IDs that begin with '-' like options
	return base64.RawURLEncoding.EncodeToString(id[:16])
}

// format prepares the storage.
func (b *Broker) format(ctx context.Context) error {
	args := []string{"format", "--ignore-formatted", "--cluster-id", b.cluster(), "--config", b.file("server.properties")}
	for _, user := range slices.Sorted(maps.Keys(b.config.Users)) {
		for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
			args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, user, b.config.Users[user]))
		}
	}
	out, err := b.command(ctx, "kafka.tools.StorageTool", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("format Kafka's storage: %w\n%s", err, tail(out))
	}
	return nil
}

// Restart starts a stopped or killed broker again, and returns when it accepts requests.
func (b *Broker) Restart(ctx context.Context) error {
	if b.process != nil {
		return errors.New("the broker is running")
	}
	log, err := os.OpenFile(b.file("broker.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor
	// Not bound to ctx: it outlives the call.
	process := b.command(context.WithoutCancel(ctx), "kafka.Kafka", b.file("server.properties"))
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		return fmt.Errorf("start Kafka: %w", err)
	}
	exited := make(chan struct{})
	go func() { // ends with the process
		defer close(exited)
		_ = process.Wait() // the log has the reason
	}()
	b.process, b.exited = process, exited
	if err := b.waitUntilReady(ctx); err != nil {
		b.Kill()
		out, _ := os.ReadFile(b.file("broker.log"))
		if bytes.Contains(out, []byte("Address already in use")) {
			err = errInUse
		}
		return fmt.Errorf("start Kafka: %w\n%s", err, tail(out))
	}
	return nil
}

// waitUntilReady waits until the broker lists itself: until then it refuses to create topics.
func (b *Broker) waitUntilReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for {
		err := b.listed(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-pause.C:
		case <-b.exited:
			return errors.New("the process ended")
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

func (b *Broker) listed(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.RequestRetries(0), kgo.RetryTimeout(time.Second))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	meta, err := kadm.NewClient(client).BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	// Another broker may have the port: it answers until this one's process ends.
	if node := int32(b.config.Node + 1); meta.Cluster != b.cluster() || !slices.Contains(meta.Brokers.NodeIDs(), node) {
		return errors.New("it is not registered yet")
	}
	return nil
}

// Stop stops the broker cleanly, or kills it if that takes too long.
func (b *Broker) Stop() {
	if b.process == nil {
		return
	}
	_ = b.process.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-b.exited:
		b.process = nil
	case <-timer.C:
		b.Kill()
	}
}

// Kill ends the broker's process immediately, like a crash.
func (b *Broker) Kill() {
	if b.process == nil {
		return
	}
	_ = b.process.Process.Kill()
	<-b.exited
	b.process = nil
}

// freeAddresses returns local addresses that are not in use. Their ports are below those that
// systems give to connections and to listeners on port 0, so that nothing takes one by chance
// while the broker is down; each process looks in a block of its own, and each of so many nodes of a cluster in a part of it.
func freeAddresses(node, nodes, count int) ([]string, error) {
	const first, blocks, size = 30_000, 50, 50
	block := first + os.Getpid()%blocks*size
	var addresses []string
	for _, offset := range rand.Perm(size / nodes) {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", block+offset*nodes+node))
		if err != nil {
			continue // somebody else's
		}
		defer func() { _ = listener.Close() }() // all at the end, so that they differ
		if addresses = append(addresses, listener.Addr().String()); len(addresses) == count {
			return addresses, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports from %d", count, block)
}

func tail(out []byte) []byte { return out[max(0, len(out)-logTail):] }
