package pipeline_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/internal/testkit"
)

// What the file system does not allow is no mistake in the configuration: the rights may
// be given while the program is being started again.
func TestForbiddenIsNoMistake(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(t.TempDir(), "mine")
	testkit.NoError(t, os.Mkdir(dir, 0o500))
	bolt := w.parse(w.bolt(filepath.Join(dir, "dedup.db")))
	claimCheck := w.parse(w.head() + w.natsSink() + allRoute + fmt.Sprintf("claim_check: {url: \"file://%s/payloads?create_dir=true\"}\n", dir))
	defer testkit.Unprivileged(t)()
	// The dedup store is opened later, when that is possible.
	p := testkit.Must(pipeline.New(t.Context(), bolt, pipeline.Options{}))(t)
	testkit.NoError(t, p.Close())
	if _, err := pipeline.New(t.Context(), claimCheck, pipeline.Options{}); !errors.Is(err, fs.ErrPermission) || errors.Is(err, pipeline.ErrConfig) {
		t.Errorf("claim check: %v", err)
	}
}
