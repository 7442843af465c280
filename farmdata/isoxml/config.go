package isoxml

import (
	"cmp"
	"errors"
	"fmt"
)

// Config limits what an archive may cost, whatever it claims. What is beyond a
// limit is left out and told as a finding of kind farmdata.KindLimit. For each of
// them zero means the default and a negative number is a mistake.
type Config struct {
	// MaxFiles is how many files are looked at, nested archives included. Default 10,000.
	MaxFiles int
	// MaxXML is how many bytes of XML are read, unpacked, all files together. Default 32 MiB.
	MaxXML int64
	// MaxElements is how many elements are read, all files together. Default 500,000.
	MaxElements int
	// MaxMemory is how many bytes what is read of XML takes in memory, with the findings, all files together. While it is
	// read, and summarized, it takes up to three times as much. Default 32 MiB.
	MaxMemory int64
	// MaxUnpacked is how many bytes the files of an archive may claim to have, unpacked, all together; 64 times the size of the archive
	// is always allowed. Files that would be beyond it are not read. Default 256 MiB.
	MaxUnpacked int64
	// MaxDepth is how deep elements may be nested. Default 64.
	MaxDepth int
	// MaxNesting is how deep archives may be nested in the outer one. Default 2.
	MaxNesting int
	// MaxNested is how many bytes of archives that are packed inside of archives are held
	// in memory, all together. Those that are stored unpacked are read in place.
	// Default 16 MiB.
	MaxNested int64
	// MaxStream is how many bytes of one log or grid are read, unpacked. Default 1 GiB.
	MaxStream int64
	// MaxFindings is how many findings a set, and each reading of a log or a grid,
	// tells. Default 1,000.
	MaxFindings int
}

// Validate reports every limit that is negative.
func (c Config) Validate() error {
	var errs []error
	for name, limit := range map[string]int64{
		"MaxFiles": int64(c.MaxFiles), "MaxXML": c.MaxXML, "MaxElements": int64(c.MaxElements), "MaxDepth": int64(c.MaxDepth),
		"MaxMemory": c.MaxMemory, "MaxUnpacked": c.MaxUnpacked, "MaxNesting": int64(c.MaxNesting), "MaxNested": c.MaxNested, "MaxStream": c.MaxStream, "MaxFindings": int64(c.MaxFindings),
	} {
		if limit < 0 {
			errs = append(errs, fmt.Errorf("isoxml: %s is negative", name))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) setDefaults() {
	c.MaxFiles = cmp.Or(c.MaxFiles, 10_000)
	c.MaxXML = cmp.Or(c.MaxXML, 32<<20)
	c.MaxElements = cmp.Or(c.MaxElements, 500_000)
	c.MaxMemory = cmp.Or(c.MaxMemory, 32<<20)
	c.MaxUnpacked = cmp.Or(c.MaxUnpacked, 256<<20)
	c.MaxDepth = cmp.Or(c.MaxDepth, 64)
	c.MaxNesting = cmp.Or(c.MaxNesting, 2)
	c.MaxNested = cmp.Or(c.MaxNested, 16<<20)
	c.MaxStream = cmp.Or(c.MaxStream, 1<<30)
	c.MaxFindings = cmp.Or(c.MaxFindings, 1000)
}
