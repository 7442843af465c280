// Package admin is the HTTP side of the bridge: probes, metrics, a status page
// and the poison queue, for people and for programs.
//
//	GET  /                    the status page: one page, served from the binary
//	GET  /healthz             200 while the pipeline runs or drains; 503 after it
//	                          ended with an error
//	GET  /readyz              200 when every check passes, else 503; JSON with
//	                          each check
//	GET  /metrics             Prometheus, when Config.Gatherer is set
//	GET  /debug/pprof/        profiles, when Config.PProf is set
//	GET  /api/status          a [Status] as JSON
//	GET  /api/tenants         a [TenantList] as JSON
//	GET  /api/poison          a [PoisonPage] as JSON; ?offset= and ?limit=
//	POST /api/poison/replay   a [ReplayRequest], answered by a [ReplayResponse];
//	                          only with Authorization: Bearer and Config.Token
//
// What the pages show comes from a [Source]. Nothing of it is secret, and no
// payload is ever shown. Still, names of farms and machines are: the address is
// on loopback by default, and there requests are only answered when their Host
// header names loopback too, so that no web site can read them by way of DNS.
package admin
