// Package isoxml reads and writes TaskData of ISO 11783-10; it reads versions 3 and 4, as they come: in
// a zip archive or a folder, at the top or further down, in upper or lower case,
// beside what macOS leaves behind, in archives inside of archives, in one XML file
// or in several, whole or damaged.
//
// Open reads the XML; logs and grids are streams that are read, and unpacked, when
// somebody ranges over them. A log that is being read takes some 100 KB, however
// long it is. Write makes an archive of a set.
package isoxml

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// ErrNoTaskData is the error for what can be opened and has no TaskData in it.
var ErrNoTaskData = errors.New("isoxml: no TaskData")

// Archive is what an archive or a folder has in it.
type Archive struct {
	// Sets are the sets of TaskData, at least one. Usually it is one.
	Sets []*farmdata.Set
	// Findings are about files that belong to no set.
	Findings []*farmdata.Finding
}

// Open reads a zip archive, or a TASKDATA.XML without one, until ctx ends. The error is ErrNoTaskData, or that of ctx, of
// the Config, of r, or of an archive that cannot be opened at all; anything less is a
// finding. Logs and grids read r later, without ctx, so it must stay open; Open and every
// loop over one of them may use it at the same time.
func Open(ctx context.Context, r io.ReaderAt, size int64, cfg Config) (*Archive, error) {
	o, err := newOpener(ctx, cfg)
	if err != nil {
		return nil, err
	}
	o.unpacked = max(o.cfg.MaxUnpacked, leastRatio*size)
	if bare := (file{"TASKDATA.XML", size, func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(r, 0, size)), nil }}); isXML(bare) {
		return o.bare(bare)
	}
	if err := o.addArchive(r, size, "", 0); err != nil {
		return nil, o.failed(err)
	}
	return o.archive()
}

// isXML reports whether a file begins as XML does, in any encoding.
func isXML(f file) bool {
	content, err := f.open()
	if err != nil {
		return false
	}
	defer content.Close()
	return newText(io.LimitReader(content, headSize), func() bool { return false }, func(int64, string) {}).isXML
}

// bare reads XML that came without an archive.
func (o *opener) bare(f file) (*Archive, error) {
	o.add(f)
	a, err := o.archive()
	if err != nil {
		return nil, err
	}
	if finding := a.Sets[0].Unread(); finding != nil && finding.Kind == farmdata.KindUnreadable && finding.File == f.path {
		return nil, fmt.Errorf("%w: it is XML without an archive, and not a TASKDATA.XML; have all files of TASKDATA sent in one zip archive", ErrNoTaskData)
	}
	return a, nil
}

// OpenFS reads a folder, as Open reads an archive. Archives in the folder are not
// looked into, which is found.
func OpenFS(ctx context.Context, fsys fs.FS, cfg Config) (*Archive, error) {
	o, err := newOpener(ctx, cfg)
	if err != nil {
		return nil, err
	}
	err = fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err = cmp.Or(err, ctx.Err()); err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if strings.EqualFold(path.Ext(name), ".zip") && !leftover(name) {
			o.findings.add(&farmdata.Finding{Kind: farmdata.KindUnreadable, File: name, Offset: -1, Record: -1, Detail: "archives in a folder are not looked into; open it by itself"})
		}
		if !o.add(file{path: name, size: info.Size(), open: func() (io.ReadCloser, error) { return fsys.Open(name) }}) {
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return nil, o.failed(err)
	}
	return o.archive()
}

// failed is the error of Open: that of the context as it is.
func (o *opener) failed(err error) error {
	if o.ctx.Err() != nil {
		return o.ctx.Err()
	}
	return fmt.Errorf("isoxml: %w", err)
}

// file is a file of the archive, or of one inside of it.
type file struct {
	path string // with slashes
	size int64  // unpacked, as the archive claims
	open func() (io.ReadCloser, error)
}

// folder is the files of one folder by their names in lower case.
type folder map[string]file

type opener struct {
	ctx       context.Context // of Open
	cfg       Config
	folders   map[string]folder
	files     int
	findings  *findings
	budget    budget
	nested    int64 // bytes of archives in memory
	directory int64 // bytes of archives' directories that may still be read
	unpacked  int64 // bytes that files may still claim to be, unpacked
}

// budget is what may still be read of XML, and the memory that what was read may take.
type budget struct {
	bytes    int64
	elements int
	memory   int64
}

func newOpener(ctx context.Context, cfg Config) (*opener, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	o := &opener{ctx: ctx, cfg: cfg, folders: map[string]folder{}, findings: &findings{max: cfg.MaxFindings},
		budget: budget{cfg.MaxXML, cfg.MaxElements, cfg.MaxMemory}, directory: int64(cfg.MaxFiles) * directoryEntry, unpacked: math.MaxInt64}
	o.findings.memory = &o.budget.memory
	return o, nil
}

// room counts a file, or an archive inside of the archive; it returns false when
// there are too many.
func (o *opener) room() bool {
	o.files++
	if o.files == o.cfg.MaxFiles+1 {
		o.findings.add(&farmdata.Finding{Kind: farmdata.KindLimit, Offset: -1, Record: -1, Detail: "more files than the limit allows"})
	}
	return o.files <= o.cfg.MaxFiles
}

// add takes a file in; it returns false when there are too many.
func (o *opener) add(f file) bool {
	if leftover(f.path) {
		return true
	}
	if !o.room() {
		return false
	}
	if kind := packedAs(f.path); kind != "" {
		o.findings.add(&farmdata.Finding{Kind: farmdata.KindUnreadable, File: f.path, Offset: -1, Record: -1, Detail: "it is " + kind + ", which is not looked into; have it packed as a zip archive"})
	}
	dir, name := path.Split(f.path)
	dir, name = strings.TrimSuffix(dir, "/"), strings.ToLower(name)
	if o.folders[dir] == nil {
		o.folders[dir] = folder{}
	}
	if _, twice := o.folders[dir][name]; twice {
		o.findings.add(&farmdata.Finding{Kind: farmdata.KindDuplicate, File: f.path, Offset: -1, Record: -1, Detail: "file is there twice"})
		return true
	}
	if f.size > o.unpacked {
		o.findings.add(&farmdata.Finding{Kind: farmdata.KindLimit, File: f.path, Offset: -1, Record: -1, Detail: "the archive would have more bytes, unpacked, than the limit allows"})
		return true
	}
	o.unpacked -= f.size
	o.folders[dir][name] = f
	return true
}

// leftover reports whether a file is one of those that operating systems add.
func leftover(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, "._") || base == ".DS_Store" || strings.EqualFold(base, "Thumbs.db") ||
		strings.HasPrefix(name, "__MACOSX/") || strings.Contains(name, "/__MACOSX/")
}

// Bounds on the directories of archives: the end of each with the longest comment, and
// what entries need on average, all together. archive/zip reads all of it, and an
// entry in memory takes several times the room of one in the file.
const (
	directoryEnd   = 128 << 10
	directoryEntry = 128
)

// leastRatio is how many times the size of the archive its files may always be: what is in proportion to the
// archive harms nobody.
const leastRatio = 64

func (o *opener) addArchive(r io.ReaderAt, size int64, prefix string, depth int) error {
	bounded := &boundedReader{ctx: o.ctx, r: r, left: directoryEnd + o.directory}
	archive, err := zip.NewReader(bounded, size)
	o.directory = min(o.directory, max(bounded.left, 0))
	if errors.Is(err, zip.ErrFormat) {
		return fmt.Errorf("%s: %w", notZip(r, size), err)
	}
	if err != nil {
		return err
	}
	overlapping, err := o.overlapping(archive.File, bounded)
	if err != nil {
		return err
	}
	for _, entry := range archive.File {
		if err := o.ctx.Err(); err != nil {
			return err
		}
		name := path.Join(prefix, path.Clean("/" + strings.ReplaceAll(entry.Name, `\`, "/"))[1:])
		if overlapping[entry] {
			o.findings.add(&farmdata.Finding{Kind: farmdata.KindUnreadable, File: name, Offset: -1, Record: -1, Detail: "it overlaps another file of the archive; have the archive made again"})
			continue
		}
		if strings.HasSuffix(entry.Name, "/") || entry.FileInfo().IsDir() {
			continue
		}
		if strings.EqualFold(path.Ext(name), ".zip") && !leftover(name) {
			if !o.room() {
				return nil
			}
			if err := o.addNested(bounded, entry, name, depth+1); err != nil {
				kind := farmdata.KindUnreadable
				if errors.Is(err, errLimit) {
					kind = farmdata.KindLimit
				}
				o.findings.add(&farmdata.Finding{Kind: kind, File: name, Offset: -1, Record: -1, Detail: "archive inside of the archive", Err: err})
			}
			continue
		}
		if !o.add(file{path: name, size: int64(min(entry.UncompressedSize64, 1<<62)), open: func() (io.ReadCloser, error) { return openEntry(entry) }}) {
			return nil
		}
	}
	return nil
}

// packed are the beginnings of archives and packed files of other kinds, and their usual names.
var packed = []struct {
	begin, kind string
	offset      int
	endings     []string
}{
	{"7z\xbc\xaf\x27\x1c", "a 7z archive", 0, []string{".7z"}}, {"Rar!\x1a\x07", "a RAR archive", 0, []string{".rar"}},
	{"\x1f\x8b", "packed with gzip", 0, []string{".gz", ".tgz"}}, {"BZh", "packed with bzip2", 0, []string{".bz2", ".tbz2", ".tbz"}},
	{"\xfd7zXZ\x00", "packed with xz", 0, []string{".xz", ".txz"}}, {"\x28\xb5\x2f\xfd", "packed with zstd", 0, []string{".zst"}},
	{"ustar", "a tar archive", 257, []string{".tar"}},
}

// notZip says what it is that is no zip archive, and what to do.
func notZip(r io.ReaderAt, size int64) string {
	head := make([]byte, 512)
	n, _ := r.ReadAt(head, 0)
	for _, p := range packed {
		if n > p.offset && bytes.HasPrefix(head[p.offset:n], []byte(p.begin)) {
			return "it is " + p.kind + "; have it sent as a zip archive"
		}
	}
	switch {
	case size == 0:
		return "it is empty; have it sent again"
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return "it is a zip archive that is cut off or damaged; have it sent again"
	}
	return "it is no archive"
}

// packedAs returns what a file is by the ending of its name, if it is packed in a way that is not read; otherwise nothing.
func packedAs(name string) string {
	for _, p := range packed {
		if slices.Contains(p.endings, strings.ToLower(path.Ext(name))) {
			return p.kind
		}
	}
	return ""
}

// encrypted is the bit of an entry's flags that says so.
const encrypted = 1

// openEntry opens a file of an archive.
func openEntry(entry *zip.File) (io.ReadCloser, error) {
	if entry.Flags&encrypted != 0 {
		return nil, errors.New("it is encrypted; have it sent without a password")
	}
	content, err := entry.Open()
	if errors.Is(err, zip.ErrAlgorithm) {
		err = fmt.Errorf("it is packed by method %d, and only 0 (stored) and 8 (Deflate) can be read; have it packed in that way: %w", entry.Method, err)
	}
	return content, err
}

// overlapping returns the entries that begin before one that stands before them ends, and lets the archive be read
// without a bound from then on. No program writes such: a few bytes would stand for any number of them.
func (o *opener) overlapping(entries []*zip.File, bounded *boundedReader) (map[*zip.File]bool, error) {
	bounded.unbounded = true
	type place struct {
		entry      *zip.File
		start, end int64
	}
	var places []place
	for _, entry := range entries {
		if err := o.ctx.Err(); err != nil {
			return nil, err
		}
		start, err := entry.DataOffset()
		if err != nil || entry.CompressedSize64 == 0 {
			continue // opening it says why
		}
		places = append(places, place{entry, start, start + int64(min(entry.CompressedSize64, 1<<62))})
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.start, b.start) })
	overlapping, end := map[*zip.File]bool{}, int64(0)
	for _, p := range places {
		overlapping[p.entry] = p.start < end
		end = max(end, p.end)
	}
	return overlapping, nil
}

var errLimit = errors.New("beyond the limit")

// addNested reads an archive in place if it is stored unpacked, and from memory
// otherwise.
func (o *opener) addNested(outer io.ReaderAt, entry *zip.File, name string, depth int) error {
	if depth > o.cfg.MaxNesting {
		return fmt.Errorf("%w of archives in archives", errLimit)
	}
	if entry.Method == zip.Store && entry.Flags&encrypted == 0 {
		offset, err := entry.DataOffset()
		if err != nil {
			return err
		}
		size := int64(min(entry.CompressedSize64, 1<<62))
		return o.addArchive(io.NewSectionReader(outer, offset, size), size, name, depth)
	}
	content, err := openEntry(entry)
	if err != nil {
		return err
	}
	defer content.Close()
	left := o.cfg.MaxNested - o.nested
	data, err := io.ReadAll(io.LimitReader(obedient{o.ctx, content}, left+1))
	switch {
	case int64(len(data)) > left:
		return fmt.Errorf("%w of memory for packed archives in archives", errLimit)
	case err != nil:
		return err
	}
	o.nested += int64(len(data))
	return o.addArchive(bytes.NewReader(data), int64(len(data)), name, depth)
}

// obedient reads until the context ends.
type obedient struct {
	ctx context.Context
	r   io.Reader
}

// Read reads.
func (o obedient) Read(p []byte) (int, error) {
	if err := o.ctx.Err(); err != nil {
		return 0, err
	}
	return o.r.Read(p)
}

// boundedReader bounds what opening an archive may read.
type boundedReader struct {
	ctx       context.Context
	r         io.ReaderAt
	left      int64
	unbounded bool // once opened; only written before that
}

func (b *boundedReader) ReadAt(p []byte, off int64) (int, error) {
	if !b.unbounded {
		if b.left -= int64(len(p)); b.left < 0 {
			return 0, fmt.Errorf("%w of the size of an archive's directory", errLimit)
		}
		if err := b.ctx.Err(); err != nil {
			return 0, err
		}
	}
	return b.r.ReadAt(p, off)
}

// archive reads the sets that are in the files.
func (o *opener) archive() (*Archive, error) {
	a := &Archive{}
	dirs := make([]string, 0, len(o.folders))
	for dir := range o.folders {
		dirs = append(dirs, dir)
	}
	slices.SortFunc(dirs, func(x, y string) int {
		return cmp.Or(cmp.Compare(strings.Count(x, "/"), strings.Count(y, "/")), cmp.Compare(x, y))
	})
	for _, dir := range dirs {
		if set := o.readSet(dir, o.folders[dir]); set != nil {
			a.Sets = append(a.Sets, set)
		}
		if err := o.ctx.Err(); err != nil {
			return nil, err
		}
	}
	a.Findings = o.findings.list
	if len(a.Sets) == 0 {
		err := ErrNoTaskData
		if len(a.Findings) > 0 {
			err = fmt.Errorf("%w: %w", err, a.Findings[0])
		}
		return nil, err
	}
	return a, nil
}

// findings is a list with a limit. The last one says that there were more.
type findings struct {
	max    int
	memory *int64 // that is left
	list   []*farmdata.Finding
}

func (f *findings) add(finding *farmdata.Finding) {
	const summarized = 512 // with its summary
	if *f.memory -= summarized + int64(len(finding.File)+len(finding.Detail)); *f.memory < 0 {
		f.max = min(f.max, len(f.list)) // what else there is has no room
	}
	switch {
	case len(f.list) < f.max:
		f.list = append(f.list, finding)
	case len(f.list) == f.max:
		f.list = append(f.list, &farmdata.Finding{Kind: farmdata.KindLimit, Offset: -1, Record: -1, Detail: "more findings than the limits of findings and memory allow"})
	}
}
