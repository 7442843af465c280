package subscriber

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing/synctest"

	"github.com/agrimill/agrimill/gateway"
)

// silentClient has no stream and takes every confirmation.
type silentClient struct {
	Client
	confirmed, streams atomic.Int64
}

func (c *silentClient) ReceiveEvents(ctx context.Context, _ gateway.ReceiveEventsRequest) (*gateway.EventStream, error) {
	c.streams.Add(1)
	<-ctx.Done()
	return nil, ctx.Err()
}

func (c *silentClient) OpenPayload(ctx context.Context, uri string, _ int64) (*gateway.PayloadReader, error) {
	if strings.HasSuffix(uri, "/hangs") {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, errors.New("the host is down")
}

func (c *silentClient) ConfirmMessages(_ context.Context, _ string, confirmations []gateway.MessageConfirmation) error {
	c.confirmed.Add(int64(len(confirmations)))
	return nil
}

const fileEndpoint = "66666666-7777-4888-8999-aaaaaaaaaaaa"

func filePart(i byte) *gateway.MessageReceived {
	return &gateway.MessageReceived{
		ID: "0000000" + string('0'+i) + "-2222-4333-8444-555555555555", AppMessageID: "payload", ReceivingEndpointID: fileEndpoint,
		TenantID: "tenant", MessageType: "type", Payload: []byte("as large as a chunk"),
	}
}

func fileOf(parts ...byte) *gateway.FileReceived {
	e := &gateway.FileReceived{ReceivingEndpointID: fileEndpoint, TenantID: "tenant", MessageType: "type", Payload: []byte("all of it")}
	for _, i := range parts {
		e.MessageIDs = append(e.MessageIDs, filePart(i).ID)
	}
	return e
}

// come lets events arrive.
func (w *resyncWorld) come(events ...gateway.Event) {
	for _, e := range events {
		w.intake(w.Context(), e, 0)
		synctest.Wait()
	}
}
