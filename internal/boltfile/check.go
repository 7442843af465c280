package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// The format of bbolt: pages of one size, in the byte order of the machine. The first two
// are copies of the meta page, of which the newer valid one is current.
const (
	magic   = 0xED0CDAED
	version = 2

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	bucketEntry = 0x01 // flag of an entry in a leaf

	headerSize  = 16 // of a page: ID, flags, count, overflow
	elementSize = 16 // of an entry, both in branches and in leaves
	bucketSize  = 16 // of a bucket's value: root page, sequence
	metaSize    = 64

	noFreelist = ^uint64(0)
	// maxDepth is far above that of any file: a page has at least two children, and
	// they are a hundred in practice.
	maxDepth = 64
)

// check reads every page in use and reports the first one that bbolt would trip over. bbolt
// itself trusts what it reads: it panics, reads outside the file, or follows a cycle until
// the stack overflows, which kills the process.
func check(file io.ReaderAt, fileSize int64, pageSize int, record Record) error {
	c := &checker{file: file, pageSize: uint64(pageSize), record: record}
	newest, err := c.meta()
	if err != nil {
		return err
	}
	c.pages = newest.pages
	if c.pages > uint64(fileSize)/c.pageSize {
		return fmt.Errorf("the file has %d bytes, which is less than %d pages", fileSize, c.pages)
	}
	c.seen = make([]bool, c.pages)
	if err := c.tree(newest.root, place{}); err != nil || newest.freelist == noFreelist {
		return err
	}
	return c.freelist(newest.freelist)
}

type checker struct {
	file     io.ReaderAt
	pageSize uint64
	pages    uint64 // how many there are, free ones included
	seen     []bool // those that are in use or free
	record   Record
}

// meta is the entry point to the rest of the file.
type meta struct{ root, freelist, pages, transaction uint64 }

// meta returns the newer one of the valid meta pages.
func (c *checker) meta() (newest meta, err error) {
	err = errors.New("it has no valid meta page")
	for i := range int64(2) {
		data := make([]byte, headerSize+metaSize)
		if err := c.read(data, i*int64(c.pageSize)); err != nil {
			return meta{}, err
		}
		data = data[headerSize:]
		sum := fnv.New64a()
		_, _ = sum.Write(data[:metaSize-8]) // it never fails
		if u32(data) != magic || u32(data[4:]) != version || u64(data[metaSize-8:]) != sum.Sum64() {
			continue
		}
		m := meta{root: u64(data[16:]), freelist: u64(data[32:]), pages: u64(data[40:]), transaction: u64(data[48:])}
		if err != nil || m.transaction > newest.transaction {
			newest, err = m, nil
		}
	}
	return newest, err
}

// read fills data. A file that ends before that is damaged.
func (c *checker) read(data []byte, at int64) error {
	_, err := c.file.ReadAt(data, at)
	if errors.Is(err, io.EOF) {
		return errors.New("it ends within a page")
	}
	return err
}

// page is one page, with its overflow pages.
type page struct {
	id    uint64
	kind  uint16
	count int
	body  []byte // what follows the header
}

// page reads a page, which must be of one of two types and not in use elsewhere.
func (c *checker) page(id uint64, one, other uint16) (page, error) {
	if id < 2 || id >= c.pages {
		return page{}, fmt.Errorf("page %d is outside of it", id)
	}
	var header [headerSize]byte
	if err := c.read(header[:], int64(id*c.pageSize)); err != nil {
		return page{}, err
	}
	p := page{id: id, kind: u16(header[8:]), count: int(u16(header[10:]))}
	size := 1 + uint64(u32(header[12:]))
	switch {
	case u64(header[:]) != id:
		return page{}, fmt.Errorf("page %d says that it is page %d", id, u64(header[:]))
	case p.kind != one && p.kind != other:
		return page{}, fmt.Errorf("page %d is of type %#x", id, p.kind)
	case size > c.pages-id:
		return page{}, fmt.Errorf("page %d does not end within it", id)
	}
	for i := id; i < id+size; i++ {
		if c.seen[i] {
			return page{}, fmt.Errorf("page %d is used twice", i)
		}
		c.seen[i] = true
	}
	p.body = make([]byte, size*c.pageSize-headerSize)
	return p, c.read(p.body, int64(id*c.pageSize)+headerSize)
}

// element returns where the i-th entry stands, with all that follows it.
func (p page) element(i int) []byte { return p.body[i*elementSize:] }

// key returns the key of an entry and what follows it.
func (p page) key(i int) (key, rest []byte, err error) {
	element := p.element(i)
	at, size := u32(element), u32(element[4:])
	if p.kind == leafPage {
		at, size = u32(element[4:]), u32(element[8:])
	}
	if size == 0 || uint64(at)+uint64(size) > uint64(len(element)) {
		return nil, nil, fmt.Errorf("entry %d of page %d is outside of the page", i, p.id)
	}
	return element[at : at+size], element[at+size:], nil
}

// place is where in the tree a page is.
type place struct {
	bucket []byte // nil: the list of buckets
	depth  int
	child  bool   // below a branch
	first  []byte // the key of a child in its branch
	high   []byte // its keys are below it; nil: any
}

// tree checks a page and all that is below it.
func (c *checker) tree(id uint64, at place) error {
	if at.depth > maxDepth {
		return fmt.Errorf("page %d is %d levels deep", id, at.depth)
	}
	p, err := c.page(id, branchPage, leafPage)
	if err != nil {
		return err
	}
	return c.entries(p, at)
}

// entries checks those of a page, and all that is below them.
func (c *checker) entries(p page, at place) error {
	if p.count*elementSize > len(p.body) || p.count == 0 && (at.child || p.kind == branchPage) {
		return fmt.Errorf("page %d has %d entries", p.id, p.count)
	}
	var previous []byte
	for i := range p.count {
		key, rest, err := p.key(i)
		switch {
		case err != nil:
			return err
		case i == 0 && at.child && !bytes.Equal(key, at.first):
			// bbolt looks in the branch for the first key of a page that it replaces.
			return fmt.Errorf("the first key of page %d is not that of its branch", p.id)
		case i > 0 && bytes.Compare(previous, key) >= 0, at.high != nil && bytes.Compare(key, at.high) >= 0:
			return fmt.Errorf("the keys of page %d are not in order", p.id)
		}
		previous = key
		if p.kind == branchPage {
			err = c.child(p, i, key, at)
		} else {
			err = c.leaf(p, i, key, rest, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// child checks what is below an entry of a branch.
func (c *checker) child(p page, i int, key []byte, at place) (err error) {
	below := place{bucket: at.bucket, depth: at.depth + 1, child: true, first: key, high: at.high}
	if i+1 < p.count {
		if below.high, _, err = p.key(i + 1); err != nil {
			return err
		}
	}
	return c.tree(u64(p.element(i)[8:]), below)
}

// leaf checks an entry of a leaf: a bucket in the list of buckets, and in a bucket a record.
func (c *checker) leaf(p page, i int, key, rest []byte, at place) error {
	flags, size := u32(p.element(i)), u32(p.element(i)[12:])
	if uint64(size) > uint64(len(rest)) {
		return fmt.Errorf("entry %d of page %d is outside of the page", i, p.id)
	}
	value, wanted := rest[:size], uint32(0)
	if at.bucket == nil {
		wanted = bucketEntry
	}
	if flags != wanted || at.bucket == nil && len(value) < bucketSize {
		return fmt.Errorf("entry %d of page %d is of another kind", i, p.id)
	}
	if err := c.record(at.bucket, key, value); err != nil {
		return fmt.Errorf("entry %d of page %d %w", i, p.id, err)
	}
	if at.bucket == nil {
		return c.bucket(p, value, place{bucket: key, depth: at.depth + 1})
	}
	return nil
}

// bucket checks one whose value is in page p. A small one has its only page there.
func (c *checker) bucket(p page, value []byte, at place) error {
	if root := u64(value); root != 0 {
		return c.tree(root, at)
	}
	inline := value[bucketSize:]
	if len(inline) < headerSize || u16(inline[8:]) != leafPage {
		return fmt.Errorf("a bucket in page %d has no page", p.id)
	}
	return c.entries(page{id: p.id, kind: leafPage, count: int(u16(inline[10:])), body: inline[headerSize:]}, at)
}

// freelist checks that what is free is not in use.
func (c *checker) freelist(id uint64) error {
	p, err := c.page(id, freelistPage, freelistPage)
	if err != nil {
		return err
	}
	n, ids := uint64(p.count), p.body
	if p.count == 0xFFFF { // it does not fit into the header
		n, ids = u64(ids), ids[8:]
	}
	if n > uint64(len(ids))/8 {
		return fmt.Errorf("page %d has %d entries", id, n)
	}
	for i := range n {
		free := u64(ids[i*8:])
		switch {
		case free < 2 || free >= c.pages:
			return fmt.Errorf("page %d is free and outside of it", free)
		case c.seen[free]:
			return fmt.Errorf("page %d is free twice, or in use", free)
		}
		c.seen[free] = true
	}
	return nil
}

func u16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }
func u32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
func u64(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
