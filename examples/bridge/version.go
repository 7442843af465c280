package main

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// versionInfo says which program this is. Revision is empty when it was not
// built in a clone.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
}

func newVersionCommand(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		GroupID: groupOther,
		Short:   "say which version this is",
		Example: "  bridge version --json",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			info := readVersion()
			if asJSON {
				return p.writeJSON(info)
			}
			text := "bridge " + info.Version
			if info.Revision != "" {
				text += " (" + info.Revision + ")"
			}
			_, err := fmt.Fprintln(p.stdout, text, info.Go)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

// release is the version of a build outside of a clone, where the toolchain does not
// know it: go build -ldflags "-X main.release=v1.2.3". See deploy/Dockerfile.
var release string

func readVersion() versionInfo {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return versionInfo{Version: cmp.Or(release, "unknown")}
	}
	info := versionInfo{Version: cmp.Or(release, build.Main.Version, "(devel)"), Go: build.GoVersion}
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
