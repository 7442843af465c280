package router

import "github.com/ThreeDotsLabs/watermill/message"

// Once returns what produce returns, and calls it at most once for a message that a Router
// delivers and a key, however many attempts and middlewares ask: for work on the payload that
// a retry need not repeat. An error is not remembered. Elsewhere every call calls
// produce. It must be called by the goroutine of the handler. Keys are compared as keys of a map;
// use a type of your own. All calls with a key use the same T.
func Once[T any](msg *message.Message, key any, produce func() (T, error)) (T, error) {
	return remember(deliveryOf(msg), key, produce)
}

// remember is Once for a delivery, which may be nil.
func remember[T any](d *delivery, key any, produce func() (T, error)) (T, error) {
	if d == nil {
		return produce()
	}
	if value, ok := d.once[key].(T); ok {
		return value, nil
	}
	value, err := produce()
	if err == nil {
		if d.once == nil {
			d.once = map[any]any{}
		}
		d.once[key] = value
	}
	return value, err
}
