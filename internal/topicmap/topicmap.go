// Package topicmap maps topics to names that a broker takes, the same way for who publishes and who subscribes.
package topicmap

import "strings"

// Name returns a topic with each of its segments, which dots separate, replaced by segment of it if it has a byte that is
// not legal. A topic that is legal stays as it is, so that Name of a name is the name.
func Name(topic string, legal func(byte) bool, segment func(string) string) string {
	isLegal := func(s string) bool {
		for i := range len(s) {
			if s[i] != '.' && !legal(s[i]) {
				return false
			}
		}
		return true
	}
	if isLegal(topic) {
		return topic
	}
	segments := strings.Split(topic, ".")
	for i, s := range segments {
		if !isLegal(s) {
			segments[i] = segment(s)
		}
	}
	return strings.Join(segments, ".")
}
