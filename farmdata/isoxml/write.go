package isoxml

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"reflect"
	"strings"

	"github.com/klauspost/compress/flate"

	"github.com/agrimill/agrimill/farmdata"
)

// WriteConfig says how a set becomes an archive.
type WriteConfig struct {
	// Finding is called for what logs and grids lack: what is found while they are read, and those without any records
	// or cells. What there is of them is written. Nil means that each such finding is an error of Write.
	Finding func(*farmdata.Finding)
}

// The version that is written.
const (
	writtenMajor = 4
	writtenMinor = 3
)

// writtenFolder is the folder of TaskData in an archive.
const writtenFolder = "TASKDATA"

// Write writes a set as a zip archive of TaskData, version 4.3, in a folder TASKDATA: tasks, devices, fields, products and what else a
// [farmdata.Set] has in TASKDATA.XML, links in LINKLIST.XML, each grid in a file, and each log in two. The same set makes the same
// bytes. Each log is read twice, as a stream.
//
// Open reads what was written as an equal set, in its order, but for [farmdata.Set.Path], the version, and [farmdata.Set.Findings]. Write makes
// sure of that before it writes, and returns an error that names the place if there is something that TaskData has no form for, such as a log
// whose times are instants, an amount beyond 32 bits in a grid, or a log that no task names and that is not called TLG and a number.
// Columns may be left out of grids, and values of cells of type 1, which follow from the zones.
//
// What a Set does not have is lost: what its findings are about. Nothing is made up: an attribute that 4.3 requires and the set does not have is
// left out, except that texts are empty, and the area of a field is 0. A value is written as it is, also one that 4.3 has no room for, such as a
// name of more than 32 characters.
//
// After an error, what w has is no archive. The error is that of ctx, of w, or of the set; it has nothing of the set but names of files.
func Write(ctx context.Context, w io.Writer, set *farmdata.Set, cfg WriteConfig) error {
	s := &setWriter{ctx: ctx, cfg: cfg, set: *set, sums: map[string]string{}}
	s.set.Major, s.set.Minor = writtenMajor, writtenMinor
	if err := s.write(w); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("isoxml: %w", err)
	}
	return nil
}

// compression is the level of Deflate: seven times as fast as what package zip does, for a fifth more bytes.
const compression = 2

// setWriter writes a set.
type setWriter struct {
	ctx  context.Context
	cfg  WriteConfig
	set  farmdata.Set
	zip  *zip.Writer
	logs []*logWriter
	sums map[string]string // of the files that were written, by name in lower case
}

func (s *setWriter) write(w io.Writer) error {
	for _, log := range s.set.Logs {
		l, err := s.plan(log)
		if err != nil {
			return fmt.Errorf("%s: %w", log.Name, err)
		}
		s.logs = append(s.logs, l)
	}
	main, list := taskData(&s.set), linkList(&s.set)
	read, err := s.readBack(main, list)
	if err != nil {
		return err
	}
	s.zip = zip.NewWriter(w)
	s.zip.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, compression) })
	if err := s.file("TASKDATA.XML", writeAll(main)); err != nil {
		return err
	}
	if list != nil {
		if err := s.file("LINKLIST.XML", writeAll(list)); err != nil {
			return err
		}
	}
	for _, l := range s.logs {
		if err := s.log(l); err != nil {
			return err
		}
	}
	descriptions := read.Descriptions()
	for i, task := range s.set.Tasks {
		zones := &zones{of: &read.Tasks[i], descriptions: descriptions}
		for j, grid := range task.Grids {
			if err := s.grid(grid, read.Tasks[i].Grids[j], zones); err != nil {
				return err
			}
		}
	}
	return s.zip.Close()
}

// find tells what a log or a grid lacks.
func (s *setWriter) find(finding *farmdata.Finding) error {
	if s.cfg.Finding == nil {
		return finding
	}
	s.cfg.Finding(finding)
	return nil
}

// missing tells that a log or a grid has no binary file.
func (s *setWriter) missing(name, detail string) error {
	return s.find(&farmdata.Finding{Kind: farmdata.KindMissing, File: entryName(name + ".BIN"), Offset: -1, Record: -1, Detail: detail})
}

// found takes what a stream yields instead of a record or a cell.
func (s *setWriter) found(err error) (*farmdata.Finding, error) {
	var finding *farmdata.Finding
	if !errors.As(err, &finding) { // streams yield findings only
		return nil, err
	}
	return finding, s.find(finding)
}

// entryName is the name of a file in the archive.
func entryName(name string) string { return writtenFolder + "/" + name }

func writeAll(content []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}
}

// file writes a file. Grids may share one; what is not the same as in the file is an error.
func (s *setWriter) file(name string, write func(io.Writer) error) error {
	key, digest := strings.ToLower(name), sha256.New()
	sum, twice := s.sums[key]
	if twice {
		if err := write(digest); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if string(digest.Sum(nil)) != sum {
			return fmt.Errorf("%s: two logs or grids of this name have different contents", name)
		}
		return nil
	}
	// The time is that of nothing, but one that all programs can read.
	entry, err := s.zip.CreateHeader(&zip.FileHeader{Name: entryName(name), Method: zip.Deflate, Modified: farmdata.Epoch})
	if err != nil {
		return err
	}
	if err := write(io.MultiWriter(entry, digest)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.sums[key] = string(digest.Sum(nil))
	return nil
}

// readBack reads what is to be written, without the records and cells, and fails if that is another set.
func (s *setWriter) readBack(main, list []byte) (*farmdata.Set, error) {
	const all = math.MaxInt32
	o, err := newOpener(s.ctx, Config{MaxFiles: all, MaxXML: math.MaxInt64, MaxElements: all, MaxMemory: math.MaxInt64, MaxDepth: all})
	if err != nil {
		return nil, err
	}
	files := s.files()
	files["TASKDATA.XML"] = main
	if list != nil {
		files["LINKLIST.XML"] = list
	}
	for name, content := range files {
		clean := path.Clean("/" + strings.ReplaceAll(entryName(name), `\`, "/"))[1:]
		o.add(file{path: clean, size: int64(len(content)), open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }})
	}
	for name := range files {
		if _, there := o.folders[writtenFolder][strings.ToLower(name)]; !there {
			return nil, fmt.Errorf("%q cannot be the name of a file", name)
		}
	}
	archive, err := o.archive()
	if err != nil {
		return nil, err
	}
	if place := differs("", reflect.ValueOf(s.set), reflect.ValueOf(*archive.Sets[0])); place != "" {
		return nil, fmt.Errorf("%s cannot be written: TaskData has no form for it, or the rest of the set says something else", place)
	}
	return archive.Sets[0], nil
}

// files are the headers of logs, and the names of binary files.
func (s *setWriter) files() map[string][]byte {
	files := map[string][]byte{}
	for _, l := range s.logs {
		if l.header != nil {
			files[l.log.Name+".XML"] = l.header
		}
		if l.bin {
			files[l.log.Name+".BIN"] = nil
		}
	}
	for _, task := range s.set.Tasks {
		for _, grid := range task.Grids {
			files[grid.Name+".BIN"] = nil
		}
	}
	return files
}
