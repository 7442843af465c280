// Package admin is the HTTP server of agrimill: probes, metrics, a status page and the
// poison queue, for people and for programs.
//
//	GET  /                    the status page: one page, served from the binary
//	GET  /healthz             200 while the pipeline runs or drains; 503 after it
//	                          ended with an error
//	GET  /readyz              200 when every check passes, else 503; JSON with
//	                          each check, for those who may read
//	GET  /metrics             Prometheus, when Config.Gatherer is set
//	GET  /debug/pprof/        profiles, when Config.PProf is set; needs the token
//	GET  /api/status          a [Status] as JSON
//	GET  /api/tenants         a [TenantList] as JSON
//	GET  /api/waiting         a [WaitingList] as JSON
//	GET  /api/config          [Settings] as JSON: the configuration that is running
//	GET  /api/history         a [history.Record] as JSON; ?range=hour or day, ?route=
//	GET  /api/contents        what is in the payload of a message that the journal knows
//	                          (?id=, a UUID or message ID; &endpoint=, the receiving one),
//	                          a [PoisonContents] as JSON; needs the token
//	GET  /api/poison          a [PoisonPage] as JSON; ?offset= and ?limit=
//	GET  /api/poison/contents what is in the payload of a message (?id=), a [PoisonContents]
//	                          as JSON; needs the token
//	POST /api/poison/replay   a [PoisonSelection], answered by a [PoisonJob] that has begun, as does
//	                          /api/poison/drop; /api/poison/stop ends it. Only with
//	                          Authorization: Bearer and Config.Token
//
// What the pages show comes from a [Source]. None of it is secret, and no payload is ever
// shown. But names of farms and machines are: the address is on loopback by default, and
// requests are only served if their Host header names loopback, too, or elsewhere what no web
// site can have, so that none can read them through DNS rebinding. Config.ReadToken and
// Config.UserHeader restrict who may read; the probes then respond to everyone, but
// without reasons.
package admin
