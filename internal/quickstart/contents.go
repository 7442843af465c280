package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/demo"
	"github.com/agrimill/agrimill/internal/farmfile"
)

// writeContents prints a line for each file of farm data: what is in it. Other files have none.
func writeContents(ctx context.Context, w io.Writer, files []demo.File) error {
	var out strings.Builder
	for _, file := range files {
		data, err := content.Open(ctx, bytes.NewReader(file.Data), int64(len(file.Data)), content.Config{})
		if errors.Is(err, content.ErrNotFarmData) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", farmfile.Printable(file.Name), err)
		}
		summary, err := content.Summarize(ctx, data)
		if err != nil {
			return fmt.Errorf("%s: %w", farmfile.Printable(file.Name), err)
		}
		fmt.Fprintf(&out, "%s: %s\n", farmfile.Printable(file.Name), farmfile.Printable(summary.Line()))
	}
	if out.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(w, "\n"+out.String())
	return err
}
