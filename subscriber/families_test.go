package subscriber

import (
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Messages with one context ID, or with the numbers of chunks behind it, may be parts of one file.
func TestFamiliesOfMessages(t *testing.T) {
	s := testkit.Must(New(Config{Client: &silentClient{}}, nil))(t)
	defer func() { _ = s.Close() }()
	family := func(contextID string) uint64 {
		event := filePart(1)
		event.AppMessageID = contextID
		return s.newDelivery(event, 0).Family
	}
	const id = "6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1c001"
	for _, c := range []struct {
		first, second string
		same          bool
	}{
		{id, id, true},
		{id + "-0", id + "-12", true},
		{id, id + "-0", true},
		{"job-1", "job-2", false},
		{id, "6f0e3a0c-3a5e-4a6c-9b57-1d2f4bb1c002", false},
	} {
		if got := family(c.first) == family(c.second); got != c.same {
			t.Errorf("%s and %s: of one file %v", c.first, c.second, got)
		}
	}
	elsewhere := *filePart(1)
	elsewhere.ReceivingEndpointID = "77777777-7777-4888-8999-aaaaaaaaaaaa"
	var event gateway.Event = &elsewhere
	if s.newDelivery(event, 0).Family == s.newDelivery(filePart(1), 0).Family {
		t.Error("messages for two endpoints are of one file")
	}
}
