package demo

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/farmfile"
)

// poisonEvery is how many files there are for one that is poisoned.
const poisonEvery = 5

// Send sends files, rate a second in all, until ctx ends. Every machine takes its turn. A file that the gateway
// does not take is sent again, as a machine would; a farm without an endpoint of the pipeline sends nothing. A
// rate of zero sends nothing.
func (w *World) Send(ctx context.Context, rate float64) {
	if rate <= 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer tick.Stop()
	pending := gateway.SendMessageRequest{}
	for turn := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if pending.ContextID == "" {
			pending = w.next(turn)
			turn++
		}
		if !w.receives(pending.TenantID) {
			pending = gateway.SendMessageRequest{}
			continue
		}
		if err := w.client.SendMessage(ctx, pending); err == nil || gateway.Refused(err) {
			pending = gateway.SendMessageRequest{}
		}
	}
}

// next is what is sent in a turn.
func (w *World) next(turn int) gateway.SendMessageRequest {
	farm := w.Farms[turn%len(w.Farms)]
	m := farm.machines[turn/len(w.Farms)%len(farm.machines)]
	round := turn / len(w.Farms) / len(farm.machines)
	file, teamset, sample := m.files[round%len(m.files)], farm.teamset, len(w.options.Files) == 0
	if w.options.Poison && turn%poisonEvery == poisonEvery-1 {
		file, teamset, sample = farm.shape, "", true
	}
	request := sending(farm, m, file)
	request.TeamsetContextID = teamset
	if sample { // so that each has a name of its own
		ending := filepath.Ext(request.Filename)
		request.Filename = fmt.Sprintf("%s_%d%s", strings.TrimSuffix(request.Filename, ending), turn+1, ending)
	}
	return request
}

// sending is the request that sends a file.
func sending(farm Farm, m machine, file File) gateway.SendMessageRequest {
	return gateway.SendMessageRequest{
		TenantID: farm.Tenant, EndpointID: m.id, IsPublish: true, MessageType: file.MessageType, ContextID: uuid.NewString(),
		Filename: farmfile.WireFilename(file.Name), Payload: file.Data, TeamsetContextID: farm.teamset,
	}
}

// receives reports whether the pipeline has an endpoint at a farm that receives anything.
func (w *World) receives(tenant string) bool {
	return slices.ContainsFunc(w.Gateway.VisibleEndpoints(w.Gateway.Application(), tenant), func(e gateway.TenantEndpointInfo) bool {
		return e.OwnedByYourApplication && len(e.Capabilities.CanReceive) > 0
	})
}
