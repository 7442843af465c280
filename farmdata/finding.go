package farmdata

import "fmt"

// Kind is what a Finding is about.
type Kind string

// Kinds of findings, each with what is done about it.
const (
	// KindMissing: something names a file that is not there. The rest is read.
	KindMissing Kind = "missing"
	// KindDuplicate: a file, a log, an ID or a value of a record is there twice. The first one counts.
	KindDuplicate Kind = "duplicate"
	// KindOrphan: no task names this log, or an object is in another one than it should be. It is read like any other.
	KindOrphan Kind = "orphan"
	// KindEmpty: a file is too short to have anything in it.
	KindEmpty Kind = "empty"
	// KindCut: a file ends in the middle of something. What stands before that is given.
	KindCut Kind = "cut"
	// KindSurplus: a file goes on behind its end. What belongs to it is given.
	KindSurplus Kind = "surplus"
	// KindOutOfStep: a record has a value that its header does not describe, so
	// where the next record begins is unknown. The records before it are given.
	KindOutOfStep Kind = "out of step"
	// KindPosition: a position is not on Earth. The record is given with it;
	// Position.Valid is false.
	KindPosition Kind = "position"
	// KindTime: a time of day is beyond the end of the day, or a date is not set, or no UTC because it is
	// more than 15 hours from the local time, which counts unless it shows 1980 or after 2100. Such a date counts as absent. The
	// record is given.
	KindTime Kind = "time"
	// KindSyntax: XML or protobuf that is malformed. What stands before that is given.
	KindSyntax Kind = "syntax"
	// KindValue: an attribute is missing or cannot be read. It counts as absent, and what says nothing without
	// it is left out.
	KindValue Kind = "value"
	// KindText: characters that are not allowed, or not in the encoding that the file has or claims. They are
	// read as Windows-1252 or replaced; the rest is given.
	KindText Kind = "text"
	// KindReference: an ID that nothing has. What refers to it is given.
	KindReference Kind = "reference"
	// KindUnreadable: a file, or the rest of one, cannot be read, e.g. because of a
	// wrong checksum. What stands before that is given.
	KindUnreadable Kind = "unreadable"
	// KindUnsupported: something that this library does not read. The rest is read.
	KindUnsupported Kind = "unsupported"
	// KindLimit: more than the configuration allows. What is within it is given.
	KindLimit Kind = "limit"
)

// Unread reports whether findings of this kind mean that more than a value was not read: a file that is
// named and not there, or one that is there and could not be read to its end.
func (k Kind) Unread() bool {
	switch k {
	case KindMissing, KindCut, KindOutOfStep, KindSyntax, KindUnreadable, KindLimit:
		return true
	}
	return false
}

// Loses reports whether findings of this kind mean that something was not read: a value, a place or a time, or more, as
// Unread says. What the other kinds are about is read.
func (k Kind) Loses() bool {
	return k.Unread() || k == KindValue || k == KindPosition || k == KindTime
}

// Unread returns the first finding whose kind is Unread; nil if there is none.
func Unread(list []*Finding) *Finding {
	for _, finding := range list {
		if finding.Kind.Unread() {
			return finding
		}
	}
	return nil
}

// Finding is something that could not be read as it should be. It is an error so
// that streams can yield it between their records.
type Finding struct {
	Kind Kind
	// File is the path of the file inside the archive; empty for the whole.
	File string
	// Offset is the byte in the file, unpacked, where it was found; -1 if unknown.
	Offset int64
	// Record is the number of the record or cell, from 0; -1 outside of those.
	Record int64
	// Detail says more, for people. It has no content of the data.
	Detail string
	// Err is the cause; nil if there is no other error behind it.
	Err error
}

// Error says what and where.
func (f *Finding) Error() string {
	text := string(f.Kind)
	if f.File != "" {
		text = f.File + ": " + text
	}
	if f.Detail != "" {
		text += ": " + f.Detail
	}
	if f.Record >= 0 {
		text += fmt.Sprintf(", record %d", f.Record)
	}
	if f.Offset >= 0 {
		text += fmt.Sprintf(", byte %d", f.Offset)
	}
	if f.Err != nil {
		text += ": " + f.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (f *Finding) Unwrap() error { return f.Err }
