package nats

import "time"

// SetHeartbeat sets how often the server says at the least that it knows of a request, before Subscribe.
func SetHeartbeat(s *Subscriber, interval time.Duration) { s.heartbeat = interval }
