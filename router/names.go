package router

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// names are what Watermill's own Router puts into the context of a message, for
// [message.HandlerNameFromCtx] and its like, which middlewares of others use. They are
// few, so a list is searched faster than a chain of contexts.
type names []name

type name struct{ key, value any }

// Value is that of a context.
func (n names) Value(key any) any {
	for _, one := range n {
		if one.key == key {
			return one.value
		}
	}
	return nil
}

// watermillNames returns those of a route. The topic that a message is published to is
// not among them: it follows from the message.
func watermillNames(r *Route) names {
	n := names{
		{keyOf(message.HandlerNameFromCtx), r.Name},
		{keyOf(message.SubscriberNameFromCtx), fmt.Sprintf("%T", r.From)},
		{keyOf(message.SubscribeTopicFromCtx), r.Topic},
	}
	if r.To != nil {
		n = append(n, name{keyOf(message.PublisherNameFromCtx), fmt.Sprintf("%T", r.To)})
	}
	return n
}

// keyOf returns the key by which read looks into a context. Watermill exports the
// functions that read the names and not their keys, so only its Router, whose loop
// costs a quarter of the throughput, could set them otherwise.
func keyOf(read func(context.Context) string) any {
	asked := &askedContext{Context: context.Background()}
	read(asked)
	return asked.key
}

// askedContext notes the key that it is asked for.
type askedContext struct {
	context.Context
	key any
}

// Value implements context.Context.
func (c *askedContext) Value(key any) any {
	c.key = key
	return nil
}
