package command

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Build is what the linker was given of a build: version and commit. Empty stands for what the toolchain recorded.
type Build struct{ Release, Revision string }

// versionInfo identifies the build. Revision is empty if neither the toolchain nor the linker knew it.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
}

// String is the line that version and --version print.
func (i versionInfo) String() string {
	text := "agrimill " + i.Version
	if i.Revision != "" {
		text += " (" + i.Revision + ")"
	}
	return strings.TrimSpace(text + " " + i.Go)
}

func newVersionCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		GroupID: groupOther,
		Short:   "print the version",
		Example: "  agrimill version --json",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			info := readVersion(p.build)
			return p.write(info, func() error {
				_, err := fmt.Fprintln(p.stdout, info)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&p.asJSON, "json", false, "write JSON")
	return cmd
}

func readVersion(given Build) versionInfo {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return versionInfo{Version: cmp.Or(given.Release, "unknown"), Revision: given.Revision}
	}
	info := versionInfo{Version: cmp.Or(given.Release, build.Main.Version, "(devel)"), Revision: given.Revision, Go: build.GoVersion}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.Revision = cmp.Or(given.Revision, setting.Value)
		case "vcs.modified":
			info.Modified = setting.Value == "true"
		}
	}
	return info
}
