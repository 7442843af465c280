// Command agrimill moves farm data between the agricultural gateway and Kafka or NATS.
// One configuration file describes the pipeline; further commands look after it and
// talk to the gateway by hand:
//
//	agrimill help
//	agrimill demo                      everything in one process, to look around
//	agrimill init                      write a configuration to begin with
//	agrimill run FILE                  move messages
//	agrimill validate|check|schema     work with the configuration
//	agrimill test FILE CASES...        test what its routes do with messages
//	agrimill tenants                   list tenants, endpoints and routes
//	agrimill endpoints put|delete      manage the application's endpoints
//	agrimill send FILE...              send files
//	agrimill tail                      show events as they arrive
//	agrimill poison list|show|replay|drop
//	agrimill emulator                  run a gateway to try things out
//	agrimill version
//
// `agrimill help COMMAND` documents each command; docs/agrimill.md is the guide. The
// commands are in package command, one file each.
//
// Results go to stdout, progress and errors to stderr; neither payloads nor
// credentials go to stderr. Credentials come from files and the environment, never
// from arguments, which every user of the machine can see. The exit status is 0 on
// success, 1 if something failed, 2 for wrong usage or an invalid configuration, and
// 3 if run was stopped and left something open.
package main

import (
	"os"
	_ "time/tzdata" // images without a system have no time zones, and transform.efdi.location names one

	"github.com/agrimill/agrimill/cmd/agrimill/internal/command"
)

// Of a build outside of a clone, where the toolchain does not know version and commit:
// go build -ldflags "-X main.release=v1.2.3 -X main.revision=COMMIT". See deploy/Dockerfile.
var release, revision string

func main() {
	os.Exit(command.Main(os.Args[1:], command.Build{Release: release, Revision: revision}))
}
