// Package content opens farm data whichever form it comes in, and tells what is in it:
// as a summary, as one line, or as a picture.
package content

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/farmdata/isoxml"
)

// Form is the form that farm data comes in.
type Form string

// Forms of farm data.
const (
	// TaskData is an archive or a folder with TaskData of ISO 11783-10.
	TaskData Form = "TaskData"
	// EFDITaskData, EFDITimeLog and EFDIPositions are the messages of EFDI: a device
	// description or more, a log, a list of positions.
	EFDITaskData  Form = "EFDI TaskData"
	EFDITimeLog   Form = "EFDI time log"
	EFDIPositions Form = "EFDI positions"
)

var forms = map[efdi.Message]Form{efdi.TaskData: EFDITaskData, efdi.TimeLog: EFDITimeLog, efdi.GPSList: EFDIPositions}

// ErrNotFarmData is the error for what is neither TaskData nor EFDI.
var ErrNotFarmData = errors.New("content: neither TaskData nor EFDI")

// Config limits what data may cost.
type Config struct {
	// ISOXML limits TaskData.
	ISOXML isoxml.Config
	// EFDI limits EFDI, and has the devices that earlier messages described.
	EFDI efdi.Config
}

// Validate reports every limit that is negative.
func (c Config) Validate() error { return errors.Join(c.ISOXML.Validate(), c.EFDI.Validate()) }

// Data is farm data that was opened.
type Data struct {
	Form Form
	// Sets is what is in it: at least one set, one if the form is EFDI.
	Sets []*farmdata.Set
	// Findings are about files that belong to no set.
	Findings []*farmdata.Finding
	devices  []farmdata.Device // that earlier messages described
}

// Unread returns the first finding by which something of the data could not be read, e.g. because it is
// encrypted, apart from what is inside of logs and grids, whose findings say it themselves (farmdata.Kind.Unread).
// Whoever makes nothing of the data, because there is nothing in it, has to ask: with nil there really is nothing,
// otherwise the data are to be kept, or passed on, as what could not be read. What is made of the rest lacks something.
func (d *Data) Unread() *farmdata.Finding {
	if finding := farmdata.Unread(d.Findings); finding != nil {
		return finding
	}
	for _, set := range d.Sets {
		if finding := set.Unread(); finding != nil {
			return finding
		}
	}
	return nil
}

// Open opens data of any form, until ctx ends. The error is ErrNotFarmData, or that of ctx,
// of the Config or of r; anything less is a finding. Logs and grids read r later, without
// ctx, as those of isoxml.Open and efdi.Open do.
func Open(ctx context.Context, r io.ReaderAt, size int64, cfg Config) (*Data, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	magic := make([]byte, 4)
	n, err := r.ReadAt(magic, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("content: %w", err)
	}
	if bytes.HasPrefix(magic[:n], []byte("PK")) {
		return openArchive(ctx, r, size, cfg)
	}
	data, err := OpenEFDI(ctx, r, size, efdi.Unknown, cfg)
	var finding *farmdata.Finding
	if errors.Is(err, ErrNotFarmData) && !(errors.As(err, &finding) && finding.Kind == farmdata.KindLimit) {
		return openArchive(ctx, r, size, cfg) // which something may stand before
	}
	return data, err
}

// OpenEFDI is Open for a message whose type is known, e.g. from the type of the gateway's
// message. Such a message may have fields that this library does not know.
func OpenEFDI(ctx context.Context, r io.ReaderAt, size int64, message efdi.Message, cfg Config) (*Data, error) {
	var err error
	guessed := message == efdi.Unknown
	if guessed {
		message, err = efdi.Detect(ctx, r, size)
	}
	var set *farmdata.Set
	if err == nil {
		set, err = efdi.Open(ctx, r, size, message, cfg.EFDI)
	}
	if errors.Is(err, efdi.ErrNotEFDI) {
		return nil, fmt.Errorf("%w: %w", ErrNotFarmData, err)
	}
	if err != nil {
		return nil, err
	}
	if guessed && len(set.Findings) > 0 && nothing(set) {
		return nil, fmt.Errorf("%w: %w", ErrNotFarmData, set.Findings[0]) // looked like it by chance
	}
	return &Data{Form: forms[message], Sets: []*farmdata.Set{set}, devices: cfg.EFDI.Devices}, nil
}

// nothing reports whether a set says nothing.
func nothing(s *farmdata.Set) bool {
	return s.Major == 0 && s.Software == "" && s.Controller == "" && len(s.Logs)+len(s.Tasks)+len(s.Devices)+len(s.Customers)+len(s.Farms)+len(s.Fields)+
		len(s.Products)+len(s.ProductGroups)+len(s.CropTypes)+len(s.Workers)+len(s.ValuePresentations) == 0
}

// OpenFS opens a folder with TaskData.
func OpenFS(ctx context.Context, fsys fs.FS, cfg Config) (*Data, error) {
	archive, err := isoxml.OpenFS(ctx, fsys, cfg.ISOXML)
	return fromArchive(ctx, archive, err)
}

func openArchive(ctx context.Context, r io.ReaderAt, size int64, cfg Config) (*Data, error) {
	failed := &failedReader{r: r}
	archive, err := isoxml.Open(ctx, failed, size, cfg.ISOXML)
	failed.opened = true
	if failed.err != nil && err != nil {
		return nil, fmt.Errorf("content: %w", failed.err)
	}
	return fromArchive(ctx, archive, err)
}

func fromArchive(ctx context.Context, archive *isoxml.Archive, err error) (*Data, error) {
	var path *fs.PathError
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &path): // the disk says so
		return nil, fmt.Errorf("content: %w", err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotFarmData, err)
	}
	return &Data{Form: TaskData, Sets: archive.Sets, Findings: archive.Findings}, nil
}

// failedReader remembers an error of the source, which is none of the data.
type failedReader struct {
	r      io.ReaderAt
	opened bool // from here on, several goroutines may read
	err    error
}

// ReadAt reads.
func (f *failedReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.r.ReadAt(p, off)
	if err != nil && !f.opened && !errors.Is(err, io.EOF) && f.err == nil {
		f.err = err
	}
	return n, err
}
