package demo

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/farmfile"
)

// ChunkSize is the size in bytes above which the gateway splits a payload.
const ChunkSize = 1 << 20

// Farm is a tenant.
type Farm struct {
	// Name is the farm's name, and ID a form of it for URNs.
	Name, ID string
	// Tenant is the farm's ID in the gateway.
	Tenant string

	teamset  string
	shape    File // of a field
	machines []machine
}

// machine is a sending endpoint.
type machine struct {
	id    string // in the gateway
	files []File
}

// Options are what the machines send.
type Options struct {
	// Files are sent over and over by every machine. Empty: samples, those of each machine its own.
	Files []File
	// Poison sends shapefiles without a teamset in between.
	Poison bool
}

// World is what the pipeline is connected with. Create it with [Start] and close it.
type World struct {
	Gateway *gatewaytest.Server
	NATS    *NATS
	Farms   []Farm

	options Options
	client  *gateway.Client // of the machines
}

// Start starts the servers on free loopback ports, with the farms and their machines.
func Start(options Options) (*World, error) {
	w := &World{options: options}
	if err := w.start(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *World) start() (err error) {
	if w.NATS, err = StartNATS(); err != nil {
		return err
	}
	// A demo runs for hours: what is confirmed may be forgotten.
	if w.Gateway, err = gatewaytest.Start(gatewaytest.Config{ChunkSize: ChunkSize, ReleaseConfirmed: true}); err != nil {
		return err
	}
	// Machines are of another application, as they are in real life.
	app := w.Gateway.AddApplication(gatewaytest.ApplicationConfig{})
	settings := app.ClientConfig()
	settings.Retry.MaxAttempts = 1 // Send repeats what failed
	if w.client, err = gateway.New(settings); err != nil {
		return err
	}
	for i, sample := range sampleFarms() {
		farm := Farm{Name: sample.name, ID: urnOf(sample.name), Tenant: w.Gateway.Tenant(), teamset: uuid.NewString()}
		if i > 0 {
			farm.Tenant = w.Gateway.AddTenant()
			w.Gateway.Authorize(w.Gateway.Application(), farm.Tenant)
		}
		w.Gateway.Authorize(app, farm.Tenant)
		for _, name := range sample.machines {
			files, err := sample.files(name)
			if err != nil {
				return err
			}
			if i := slices.IndexFunc(files, func(f File) bool { return strings.HasPrefix(f.Name, "shape_") }); i >= 0 {
				farm.shape = newFile("shape_without_team.zip", files[i].Data)
			}
			if len(w.options.Files) > 0 {
				files = w.options.Files
			}
			endpoint, err := w.Gateway.PutEndpoint(gatewaytest.EndpointConfig{
				App: app, Tenant: farm.Tenant, Name: name, ExternalID: "urn:agrimill:demo:" + farm.ID + ":" + urnOf(name),
				Type: gateway.EndpointTypeVirtualCommunicationUnit, Send: farmfile.MessageTypes(),
			})
			if err != nil {
				return err
			}
			farm.machines = append(farm.machines, machine{endpoint.ID, files})
		}
		w.Farms = append(w.Farms, farm)
	}
	return nil
}

// WaitConfirmed waits until everything that the gateway has accepted is confirmed, and returns how many
// messages that are. The error is that of ctx; n is then the number of those that are not confirmed.
func (w *World) WaitConfirmed(ctx context.Context) (n int, err error) {
	open := func(e gatewaytest.LedgerEntry) bool { return !e.Confirmed() && !e.Withdrawn }
	err = w.Gateway.Wait(ctx, func(ledger []gatewaytest.LedgerEntry) bool {
		n = len(ledger)
		return !slices.ContainsFunc(ledger, open)
	})
	if err != nil {
		n = len(slices.DeleteFunc(w.Gateway.Ledger(), func(e gatewaytest.LedgerEntry) bool { return !open(e) }))
	}
	return n, err
}

// Close stops everything. What is in the servers is gone.
func (w *World) Close() (err error) {
	if w.client != nil {
		err = w.client.Close()
	}
	if w.Gateway != nil {
		w.Gateway.Close()
	}
	if w.NATS != nil {
		err = errors.Join(err, w.NATS.Close())
	}
	return err
}
