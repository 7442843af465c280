//go:build !linux

package faultproxy

import "time"

// wait returns when a time has come.
func wait(due time.Time) {
	if left := time.Until(due); left > 0 {
		<-time.After(left)
	}
}
