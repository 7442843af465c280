package efdi

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/agrimill/agrimill/farmdata"
)

// Config says what is known already, and limits what a message may cost. What is
// beyond a limit is left out and told as a finding of kind farmdata.KindLimit. For
// each limit zero means the default and a negative number is a mistake.
type Config struct {
	// Devices are those that earlier messages described, e.g. Set.Devices of a device
	// description. They say what the values of a log are: names, units, scales.
	// The devices of the message itself go before them.
	Devices []farmdata.Device
	// MaxMessage is how many bytes of a message are held in memory, logs not counted.
	// Default 8 MiB.
	MaxMessage int64
	// MaxElements is how many messages may be in a message, each log counted as one. Default 100,000.
	MaxElements int
	// MaxEntry is how many bytes an entry of a log may have. Default 256 KiB.
	MaxEntry int64
	// MaxColumns is how many kinds of values a log may have. Default 10,000.
	MaxColumns int
	// MaxFindings is how many findings a set, and each reading of a log, tells. Default 1,000.
	MaxFindings int
}

// Validate reports every limit that is negative.
func (c Config) Validate() error {
	var errs []error
	for name, limit := range map[string]int64{
		"MaxMessage": c.MaxMessage, "MaxElements": int64(c.MaxElements), "MaxEntry": c.MaxEntry,
		"MaxColumns": int64(c.MaxColumns), "MaxFindings": int64(c.MaxFindings),
	} {
		if limit < 0 {
			errs = append(errs, fmt.Errorf("efdi: %s is negative", name))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) setDefaults() {
	c.MaxMessage = cmp.Or(c.MaxMessage, 8<<20)
	c.MaxElements = cmp.Or(c.MaxElements, 100_000)
	c.MaxEntry = cmp.Or(c.MaxEntry, 256<<10)
	c.MaxColumns = cmp.Or(c.MaxColumns, 10_000)
	c.MaxFindings = cmp.Or(c.MaxFindings, 1000)
}
