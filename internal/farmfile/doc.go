// Package farmfile says how files of farm data are sent: which message type a
// file has, and under which name.
package farmfile
