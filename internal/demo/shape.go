package demo

import (
	"bytes"
	"encoding/binary"
	"math"
)

// shapeZip builds a shapefile with the field's boundary: a polygon, its index, and a table with the name.
func (j job) shapeZip() ([]byte, error) {
	const polygon = 5
	corners := j.corners()
	box := []float64{j.east, j.north, j.east + edge, j.north + edge}
	var shape []byte
	shape = binary.LittleEndian.AppendUint32(shape, polygon)
	shape = appendFloats(shape, box...)
	shape = binary.LittleEndian.AppendUint32(shape, 1) // ring
	shape = binary.LittleEndian.AppendUint32(shape, uint32(len(corners)))
	shape = binary.LittleEndian.AppendUint32(shape, 0) // where the ring begins
	for _, p := range corners {
		shape = appendFloats(shape, p.east, p.north)
	}
	// Lengths and offsets are in words of 16 bits; header is that of both files.
	const headerBytes = 100
	header := func(bytes int) (out []byte) {
		out = binary.BigEndian.AppendUint32(out, 9994)
		out = append(out, make([]byte, 20)...)
		out = binary.BigEndian.AppendUint32(out, uint32(headerBytes+bytes)/2)
		out = binary.LittleEndian.AppendUint32(out, 1000)
		out = binary.LittleEndian.AppendUint32(out, polygon)
		return appendFloats(out, append(box, 0, 0, 0, 0)...)
	}
	record := binary.BigEndian.AppendUint32(nil, 1)
	record = binary.BigEndian.AppendUint32(record, uint32(len(shape))/2)
	index := binary.BigEndian.AppendUint32(nil, headerBytes/2)
	index = binary.BigEndian.AppendUint32(index, uint32(len(shape))/2)

	return zipped(j.start,
		entry{"field.shp", append(append(header(len(record)+len(shape)), record...), shape...)},
		entry{"field.shx", append(header(len(index)), index...)},
		entry{"field.dbf", j.nameTable()})
}

// nameTable is a dBASE III table of one row: the field's name.
func (j job) nameTable() []byte {
	const width, headerBytes = 32, 32 + 32 + 1
	out := []byte{3, byte(j.start.Year() - 1900), byte(j.start.Month()), byte(j.start.Day())}
	out = binary.LittleEndian.AppendUint32(out, 1) // row
	out = binary.LittleEndian.AppendUint16(out, headerBytes)
	out = binary.LittleEndian.AppendUint16(out, 1+width)
	out = append(out, make([]byte, 20)...)
	column := make([]byte, 32)
	copy(column, "NAME")
	column[11], column[16] = 'C', width
	out = append(append(out, column...), '\r', ' ')
	row := bytes.Repeat([]byte{' '}, width)
	copy(row, j.field)
	return append(append(out, row...), 0x1a)
}

func appendFloats(out []byte, values ...float64) []byte {
	for _, v := range values {
		out = binary.LittleEndian.AppendUint64(out, math.Float64bits(v))
	}
	return out
}
