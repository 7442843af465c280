package kafka

// SetMaxSpan sets how many offsets one record may hold back.
func (s *Subscriber) SetMaxSpan(n int64) { s.maxSpan = n }
