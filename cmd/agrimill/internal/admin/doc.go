// Package admin is the HTTP server of agrimill: probes, metrics, a status page and the
// poison queue, for people and for programs. docs/status-page.md lists the requests.
//
// What the pages show comes from a [Source]. None of it is secret, and no payload is ever
// shown. But names of farms and machines are: the address is on loopback by default, and
// requests are only served if their Host header names loopback, too, or elsewhere what no web
// site can have, so that none can read them through DNS rebinding. Config.ReadToken and
// Config.UserHeader restrict who may read; the probes then respond to everyone, but
// without reasons.
package admin
