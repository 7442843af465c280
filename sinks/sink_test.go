package sinks_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/sinks"
)

// timed is a sink around another one that leaves messages as they are. One without this Describe would be given copies.
type timed struct{ sinks.Sink }

func (t timed) Describe() sinks.Description { return sinks.DescribeAs(t, t.Sink) }

func ExampleDescribeAs() {
	var pub message.Publisher // yours
	sink := timed{sinks.FromPublisher("own", pub, sinks.PublisherConfig{})}
	fmt.Println(sink.Describe().ReadOnly == sinks.Sink(sink))
	// Output: true
}
