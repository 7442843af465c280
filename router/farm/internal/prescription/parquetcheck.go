package prescription

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/thrift"
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
	var footer format.FileMetaData
	if _, err := decodeThrift(payload[end-int(size):end], &footer); err != nil || nested(footer.Schema) {
		return errParquet
	}
	c := &parquetCheck{ctx: ctx, file: payload, left: maxUnpacked}
	for _, group := range footer.RowGroups {
		if group.NumRows < 0 || group.NumRows > maxPoints {
			return fmt.Errorf("the map has more than %d points", maxPoints)
		}
		for i := range group.Columns {
			if err := c.chunk(&group.Columns[i].MetaData); err != nil {
				return err
			}
		}
	}
	return nil
}

// nested reports whether columns are deeper in each other than deepest: the library takes memory by the square of that, and more time.
func nested(schema []format.SchemaElement) bool {
	var left []int32 // columns that are still to come, by level
	for _, column := range schema {
		for len(left) > 0 && left[len(left)-1] == 0 {
			left = left[:len(left)-1]
		}
		if len(left) > 0 {
			left[len(left)-1]--
		}
		if children := column.NumChildren.V; children > 0 {
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
}

// chunk checks the pages of a column chunk by its metadata.
func (c *parquetCheck) chunk(meta *format.ColumnMetaData) error {
	start, size := cmp.Or(meta.DictionaryPageOffset, meta.DataPageOffset), meta.TotalCompressedSize
	if start < 0 || size < 0 || start > int64(len(c.file)) || size > int64(len(c.file))-start {
		return errParquet
	}
	for pages := c.file[start : start+size]; len(pages) > 0; {
		var header format.PageHeader
		n, err := decodeThrift(pages, &header)
		packed, unpacked := int(header.CompressedPageSize), int64(header.UncompressedPageSize)
		if err != nil || unpacked < 0 || packed < 0 || packed > len(pages)-n {
			return errParquet
		}
		for _, values := range []int32{header.DataPageHeader.V.NumValues, header.DictionaryPageHeader.V.NumValues, header.DataPageHeaderV2.V.NumValues} {
			if values < 0 || values > maxPoints {
				return fmt.Errorf("the map has more than %d points", maxPoints)
			}
		}
		if c.left -= unpacked; c.left < 0 {
			return fmt.Errorf("limit: it has more than %d bytes, unpacked", maxUnpacked)
		}
		if err := c.page(meta.Codec, &header, pages[n:n+packed], unpacked); err != nil {
			return err
		}
		pages = pages[n+packed:]
	}
	return c.ctx.Err()
}

// page checks that a page is, unpacked, as long as it says.
func (c *parquetCheck) page(codec format.CompressionCodec, header *format.PageHeader, packed []byte, unpacked int64) error {
	if v2, ok := header.DataPageHeaderV2.Get(); ok {
		levels := int64(v2.DefinitionLevelsByteLength) + int64(v2.RepetitionLevelsByteLength) // lie before what is packed
		if levels < 0 || levels > int64(len(packed)) || levels > unpacked {
			return errParquet
		}
		packed, unpacked = packed[levels:], unpacked-levels
		if compressed, there := v2.IsCompressed.Get(); there && !compressed {
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

// deepest is how deep values of Parquet are nested, and more.
const deepest = 16

// decodeThrift decodes a struct of Parquet, and returns how many bytes it has.
func decodeThrift(b []byte, to any) (n int, err error) {
	bytes, _ := new(thrift.CompactProtocol).NewReaderFromBytes(b).(bytesReader)
	r := &boundedReader{bytesReader: bytes, size: len(b), items: maxItems}
	err = thrift.NewDecoder(r).Decode(to)
	return r.BytesRead(), err
}

type bytesReader interface {
	thrift.BytesReader
	Discard(n int) (int, error) // which the library asks for
}

// boundedReader reads what is no larger or deeper than it may be: the library makes room for what it is told is there.
type boundedReader struct {
	bytesReader
	size, items int   // bytes; fields and items of lists that there may still be
	open        []int // structs that are still to end, by level
}

func (r *boundedReader) nest(structs int) error {
	if structs > 0 {
		r.open = append(r.open, structs)
	}
	if r.items < 0 || len(r.open) > deepest {
		return errParquet
	}
	return nil
}

// ReadField implements thrift.Reader.
func (r *boundedReader) ReadField() (thrift.Field, error) {
	field, err := r.bytesReader.ReadField()
	structs, last := 0, len(r.open)-1
	switch {
	case field.Type == thrift.STRUCT:
		structs = 1
	case field.Type == thrift.STOP && last >= 0:
		if r.open[last]--; r.open[last] == 0 {
			r.open = r.open[:last]
		}
	}
	r.items--
	return field, cmp.Or(err, r.nest(structs))
}

// ReadList implements thrift.Reader.
func (r *boundedReader) ReadList() (thrift.List, error) {
	list, err := r.bytesReader.ReadList()
	if r.items -= int(list.Size); list.Type == thrift.LIST || int(list.Size) > r.size-r.BytesRead() {
		return list, errParquet
	}
	structs := 0
	if list.Type == thrift.STRUCT {
		structs = int(list.Size)
	}
	return list, cmp.Or(err, r.nest(structs))
}

// ReadMap and ReadSet refuse what Parquet does not have.
func (r *boundedReader) ReadMap() (thrift.Map, error) { return thrift.Map{}, errParquet }

// ReadSet implements thrift.Reader.
func (r *boundedReader) ReadSet() (thrift.Set, error) { return thrift.Set{}, errParquet }
