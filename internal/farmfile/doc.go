// Package farmfile determines how farm data files are sent: the message type and
// the name of a file.
package farmfile
