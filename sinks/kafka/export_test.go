package kafka

// NoMetrics is for the clients of tests: sarama's own metrics leave a goroutine
// behind.
var NoMetrics = noMetrics{}
