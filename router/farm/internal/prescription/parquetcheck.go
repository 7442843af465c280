package prescription

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/format"
)

// Bounds on a file of Parquet: what it is unpacked, and what its footer and the header of a page have of fields and items of lists.
const (
	maxUnpacked = 64 << 20
	maxItems    = 100_000
)

var errParquet = errors.New("it is Parquet that is damaged")

// checkParquet makes sure that a file is no larger, unpacked, than may be in memory, and that nothing in it claims a size that it does not
// have: the library that reads it believes what it is told.
func checkParquet(ctx context.Context, payload []byte) error {
	if len(payload) < 12 || !bytes.HasSuffix(payload, []byte("PAR1")) {
		return errParquet
	}
	end := len(payload) - 8
	size := binary.LittleEndian.Uint32(payload[end:])
	if int64(size) > int64(end-4) {
		return errParquet
	}
	items := maxItems
	footer, _, err := decodeThrift(payload[end-int(size):end], &items)
	if err != nil {
		return err
	}
	if nested(footer.list(2)) {
		return errParquet
	}
	c := &parquetCheck{ctx: ctx, file: payload, left: maxUnpacked, rows: maxPoints}
	for _, group := range footer.list(4) {
		if rows := group.int(3); rows < 0 || rows > maxPoints {
			return fmt.Errorf("the map has more than %d points", maxPoints)
		}
		for _, chunk := range group.list(1) {
			if err := c.chunk(chunk.fields(3)); err != nil {
				return err
			}
		}
	}
	return nil
}

// nested reports whether columns are deeper in each other than deepest: the library takes memory by the square of that, and more time.
func nested(schema []thriftStruct) bool {
	var left []int64 // columns that are still to come, by level
	for _, column := range schema {
		for len(left) > 0 && left[len(left)-1] == 0 {
			left = left[:len(left)-1]
		}
		if len(left) > 0 {
			left[len(left)-1]--
		}
		if children := column.int(5); children > 0 {
			left = append(left, children)
		}
		if len(left) > deepest {
			return true
		}
	}
	return false
}

type parquetCheck struct {
	ctx  context.Context
	file []byte
	left int64 // bytes that may still be unpacked
	rows int64 // values that a page may have
}

// chunk checks the pages of a column chunk by its metadata.
func (c *parquetCheck) chunk(meta thriftStruct) error {
	start, size := meta.int(9), meta.int(7)
	if dictionary := meta.int(11); dictionary != 0 {
		start = dictionary
	}
	if start < 0 || size < 0 || start > int64(len(c.file)) || size > int64(len(c.file))-start {
		return errParquet
	}
	for pages := c.file[start : start+size]; len(pages) > 0; {
		items := maxItems
		header, n, err := decodeThrift(pages, &items)
		if err != nil {
			return err
		}
		unpacked, packed := header.int(2), header.int(3)
		if unpacked < 0 || packed < 0 || packed > int64(len(pages)-n) {
			return errParquet
		}
		for _, id := range []int16{5, 7, 8} { // the headers of data pages and dictionaries
			if values := header.fields(id).int(1); values < 0 || values > c.rows {
				return fmt.Errorf("the map has more than %d points", maxPoints)
			}
		}
		if c.left -= unpacked; c.left < 0 {
			return fmt.Errorf("limit: it has more than %d bytes, unpacked", maxUnpacked)
		}
		if err := c.page(format.CompressionCodec(meta.int(4)), header, pages[n:n+int(packed)], unpacked); err != nil {
			return err
		}
		pages = pages[n+int(packed):]
	}
	return c.ctx.Err()
}

// page checks that a page is, unpacked, as long as it says.
func (c *parquetCheck) page(codec format.CompressionCodec, header thriftStruct, packed []byte, unpacked int64) error {
	if v2 := header.fields(8); v2 != nil {
		levels := v2.int(5) + v2.int(6) // lie before what is packed
		if levels < 0 || levels > int64(len(packed)) || levels > unpacked {
			return errParquet
		}
		packed, unpacked = packed[levels:], unpacked-levels
		if plain, there := v2[7].(bool); there && !plain {
			codec = format.Uncompressed
		}
	}
	var content io.Reader
	switch codec {
	case format.Uncompressed:
		content = bytes.NewReader(packed)
	case format.Snappy:
		if n, err := snappy.DecodedLen(packed); len(packed) > 0 && (err != nil || int64(n) != unpacked) {
			return errParquet
		}
		return nil
	case format.Gzip:
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return errParquet
		}
		content = r
	case format.Zstd:
		r, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxUnpacked))
		if err != nil {
			return errParquet
		}
		defer r.Close()
		content = r
	default:
		return fmt.Errorf("it is packed as %s; have it packed as SNAPPY, GZIP or ZSTD", codec)
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(content, unpacked+1)); err != nil || n != unpacked {
		return errParquet
	}
	return nil
}

// thriftStruct is a struct of Thrift's compact protocol: int64, bool, length of a text, []any or thriftStruct by the number of a field.
type thriftStruct map[int16]any

func (s thriftStruct) int(id int16) int64           { n, _ := s[id].(int64); return n }
func (s thriftStruct) fields(id int16) thriftStruct { f, _ := s[id].(thriftStruct); return f }

func (s thriftStruct) list(id int16) (structs []thriftStruct) {
	list, _ := s[id].([]any)
	for _, item := range list {
		one, _ := item.(thriftStruct)
		structs = append(structs, one)
	}
	return structs
}

// decodeThrift decodes a struct and returns how many bytes it has. items is how many fields and items it may still have.
func decodeThrift(b []byte, items *int) (s thriftStruct, n int, err error) {
	r := &thriftReader{b: b, items: items}
	s = r.structure(0)
	if r.bad {
		return nil, 0, errParquet
	}
	return s, len(b) - len(r.b), nil
}

type thriftReader struct {
	b     []byte
	items *int
	bad   bool
}

func (r *thriftReader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *thriftReader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *thriftReader) uvarint() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *thriftReader) varint() int64 {
	n := r.uvarint()
	return int64(n>>1) ^ -int64(n&1)
}

// deepest is how deep values of Parquet are nested, and more.
const deepest = 16

func (r *thriftReader) structure(depth int) thriftStruct {
	s := thriftStruct{}
	id := int16(0)
	for !r.bad {
		b := r.byte()
		if b == 0 {
			return s
		}
		if delta := b >> 4; delta != 0 {
			id += int16(delta)
		} else {
			n := r.varint()
			if n < math.MinInt16 || n > math.MaxInt16 {
				r.bad = true
			}
			id = int16(n)
		}
		if *r.items--; *r.items < 0 {
			r.bad = true
		}
		kind := b & 0xf
		if kind == 1 || kind == 2 { // a field is its own truth
			s[id] = kind == 1
			continue
		}
		s[id] = r.value(kind, depth+1)
	}
	return s
}

func (r *thriftReader) value(kind byte, depth int) any {
	if depth > deepest {
		r.bad = true
	}
	if r.bad {
		return nil
	}
	switch kind {
	case 1, 2: // in a list
		return r.byte() == 1
	case 3:
		return int64(int8(r.byte()))
	case 4, 5, 6:
		return r.varint()
	case 7:
		r.take(8)
	case 8:
		n := r.uvarint()
		r.take(n)
	case 9, 10:
		return r.sequence(depth)
	case 12:
		return r.structure(depth)
	default: // maps, which Parquet does not have
		r.bad = true
	}
	return nil
}

func (r *thriftReader) sequence(depth int) (list []any) {
	b := r.byte()
	n := uint64(b >> 4)
	if n == 15 {
		n = r.uvarint()
	}
	if n > uint64(max(*r.items, 0)) {
		r.bad = true
		return nil
	}
	*r.items -= int(n)
	for range n {
		list = append(list, r.value(b&0xf, depth+1))
		if r.bad {
			return nil
		}
	}
	return list
}
