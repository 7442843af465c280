// Package objects says of each kind of objects of a set which attributes and parts it has. XML, EFDI, and the check of IDs
// read and write objects by it, so an attribute stands in one place.
package objects

import (
	"context"
	"math"
	"slices"

	"github.com/agrimill/agrimill/farmdata"
)

// Any is every kind that has IDs.
const Any = ""

// Root is the tag of a set.
const Root = "ISO11783_TaskData"

// Use says how an attribute is used.
type Use int

// Uses of an attribute.
const (
	// Required is an attribute without which an object says little. A text or number is written also if it is empty or 0.
	Required Use = 1 << iota
	// Optional is a number of which -1 means that it is not given. Of others 0 does.
	Optional
	// Positive is a number that is not below 0.
	Positive
	// Small is a number that has no reason to be large.
	Small
	// Byte is a number of 0 to 255.
	Byte
	// Scale is a number that is not 0.
	Scale
	// Heading is a number of degrees: a 0 that is given is 360, as 0 means that it is not given.
	Heading
	// Digits is a text of hexadecimal digits in upper case.
	Digits
)

// Range is what a whole number has to be in.
func (u Use) Range() (low, high int64) {
	low, high = math.MinInt64, math.MaxInt64
	switch {
	case u&Byte != 0:
		low, high = 0, math.MaxUint8
	case u&Optional != 0:
		low, high = 0, math.MaxInt32
	case u&Small != 0:
		low, high = math.MinInt32, math.MaxUint32
	}
	if u&Positive != 0 {
		low = 0
	}
	return low, high
}

// Form is what is done with an object: its methods are called for each attribute, then for each part. An attribute is named
// by its letter in XML. Its number in EFDI is the place of the letter: A is 1.
type Form interface {
	// Needs names attributes without which the object says nothing, apart from those that are Required.
	Needs(letters ...string)
	// ID is that of the object.
	ID(letter string, id *string)
	// Reference is the ID of an object of a kind. name is what it is to this one.
	Reference(letter, name, kind string, id *string)
	Text(letter string, text *string, use Use)
	// File is a file name without its ending.
	File(letter string, name *string)
	// Whole returns the number that the object has then, which is n if it is not read.
	Whole(letter string, n int64, use Use) int64
	// Float is 0 if it is not given.
	Float(letter string, f *float64, use Use)
	// DDI is 0 if it is not given, or DDIUnknown if it is Required.
	DDI(letter string, ddi *farmdata.DDI, use Use)
	// Value may be missing. With nil, the object is left out then.
	Value(letter string, raw *int64, missing *bool, use Use)
	// Place is 0, 0 if it is not given.
	Place(latitude, longitude string, north, east *float64)
	Stamp(letter string, stamp *farmdata.Stamp)

	// Parts are objects of a kind in the object; number is that in EFDI, 0 for none.
	Parts(number int, kind string, list List)
	// Allocated is when the object was allocated, in a part ASP.
	Allocated(number int, start, stop *farmdata.Stamp, kind *int)
	// Positions are parts PTN.
	Positions(list *[]farmdata.Position)
}

// List is a list of objects, of which it takes and returns pointers.
type List interface {
	Len() int
	At(i int) any
	Add(object any)
	// Grow makes room for one more. A long list is moved in parts; it reports false if ctx ends between them.
	Grow(ctx context.Context) bool
}

// long is how many objects are moved between two questions to the context.
const long = 1 << 14

type values[T any] []T

func (l *values[T]) Len() int       { return len(*l) }
func (l *values[T]) At(i int) any   { return &(*l)[i] }
func (l *values[T]) Add(object any) { *l = append(*l, *object.(*T)) }

func (l *values[T]) Grow(ctx context.Context) bool {
	if len(*l) < cap(*l) || len(*l) < long {
		return true
	}
	longer := make([]T, 0, len(*l)+len(*l)/4)
	for part := range slices.Chunk(*l, long) {
		if ctx.Err() != nil {
			return false
		}
		longer = append(longer, part...)
	}
	*l = longer
	return true
}

type pointers[T any] []*T

func (l *pointers[T]) Len() int                  { return len(*l) }
func (l *pointers[T]) At(i int) any              { return (*l)[i] }
func (l *pointers[T]) Add(object any)            { *l = append(*l, object.(*T)) }
func (l *pointers[T]) Grow(context.Context) bool { return true }

func parts[T any](f Form, number int, kind string, list *[]T) {
	f.Parts(number, kind, (*values[T])(list))
}

func whole[T ~int | ~int64 | ~uint8](f Form, letter string, n *T, use Use) {
	if value := T(f.Whole(letter, int64(*n), use)); value != *n { // it is read; who writes an object must not change it
		*n = value
	}
}

// presented is how values are shown. Without an offset and a scale nothing is known: the scale is 0 then.
func presented(f Form, offset *int64, scale *float64, decimals *int) {
	missing := *offset == 0 && *scale == 0
	f.Value("B", offset, &missing, Required)
	f.Float("C", scale, Required|Scale)
	if missing && *scale != 0 {
		*scale = 0
	}
	whole(f, "D", decimals, Optional)
}

// None is a Form that does nothing: what embeds it has methods for what it does.
type None struct{ none }

type none struct{}

func (none) Needs(...string)                                       {}
func (none) ID(string, *string)                                    {}
func (none) Reference(string, string, string, *string)             {}
func (none) Text(string, *string, Use)                             {}
func (none) File(string, *string)                                  {}
func (none) Whole(_ string, n int64, _ Use) int64                  { return n }
func (none) Float(string, *float64, Use)                           {}
func (none) DDI(string, *farmdata.DDI, Use)                        {}
func (none) Value(string, *int64, *bool, Use)                      {}
func (none) Place(string, string, *float64, *float64)              {}
func (none) Stamp(string, *farmdata.Stamp)                         {}
func (none) Parts(int, string, List)                               {}
func (none) Allocated(int, *farmdata.Stamp, *farmdata.Stamp, *int) {}
func (none) Positions(*[]farmdata.Position)                        {}
