package pipeline

import (
	"slices"
	"strings"
	"sync"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/router"
)

// certificates are those in the files of a configuration. They are read again and again, because they are renewed without a
// reload.
type certificates struct {
	mu    sync.Mutex
	of    *config.Config
	files []admin.Certificate // of that configuration, without what is in them
	last  []admin.Certificate
}

// look reads the files.
func (c *certificates) look(cfg *config.Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of != cfg {
		c.of, c.files = cfg, certificateFiles(cfg)
	}
	read := slices.Clone(c.files)
	for i := range read {
		readCertificate(&read[i])
	}
	c.last = read
}

func (c *certificates) latest() []admin.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last // never changed
}

// certificateFiles returns the settings that name a file with a certificate of this program. A name out of the environment
// may not be shown, so it is not looked at.
func certificateFiles(cfg *config.Config) (files []admin.Certificate) {
	for _, s := range cfg.Settings() {
		if file, text := s.Value.(string); text && file != "" && !s.Environment && strings.HasSuffix(s.Path, ".cert_file") {
			files = append(files, admin.Certificate{Setting: s.Path, File: file})
		}
	}
	return files
}

// readCertificate fills in when the first certificate of a file ends.
func readCertificate(c *admin.Certificate) {
	leaf, err := config.Leaf(c.File)
	if err == nil {
		c.NotAfter = leaf.NotAfter
	}
	c.Error = router.RedactError(err, nil)
}
