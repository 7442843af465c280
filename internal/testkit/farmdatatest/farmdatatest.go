// Package farmdatatest is what the tests of the readers of farm data share.
package farmdatatest

import (
	"errors"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
)

// Read returns the records of a log and what was found between them.
func Read(t testing.TB, log *farmdata.Log) (records []*farmdata.Record, list []*farmdata.Finding) {
	t.Helper()
	for record, err := range log.Records {
		var finding *farmdata.Finding
		switch {
		case err == nil:
			records = append(records, record.Clone())
		case errors.As(err, &finding):
			list = append(list, finding)
		default:
			t.Fatalf("%v is no finding", err)
		}
	}
	return records, list
}

// Kinds returns the kinds of findings, in order.
func Kinds(list []*farmdata.Finding) string {
	var kinds []string
	for _, f := range list {
		kinds = append(kinds, string(f.Kind))
	}
	return strings.Join(kinds, ", ")
}
