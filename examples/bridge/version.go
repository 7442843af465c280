package main

import (
	"context"
	"flag"
	"fmt"
	"runtime/debug"
)

// versionInfo says which program this is. Revision is empty when it was not
// built in a clone.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
}

func versionCommand() command {
	return command{
		name:  "version",
		short: "say which version this is",
		define: func(flags *flag.FlagSet) action {
			asJSON := flags.Bool("json", false, "write JSON")
			return func(_ context.Context, p *program, args []string) error {
				if len(args) > 0 {
					return usagef("unexpected argument %q", args[0])
				}
				info := readVersion()
				if *asJSON {
					return p.writeJSON(info)
				}
				text := "bridge " + info.Version
				if info.Revision != "" {
					text += " (" + info.Revision + ")"
				}
				_, err := fmt.Fprintln(p.stdout, text, info.Go)
				return err
			}
		},
	}
}

func readVersion() versionInfo {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return versionInfo{Version: "unknown"}
	}
	info := versionInfo{Version: build.Main.Version, Go: build.GoVersion}
	if info.Version == "" {
		info.Version = "(devel)"
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.Revision = setting.Value
		case "vcs.modified":
			info.Modified = setting.Value == "true"
		}
	}
	return info
}
