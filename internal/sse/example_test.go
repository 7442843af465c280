package sse_test

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/agrimill/agrimill/internal/sse"
)

func ExampleReader() {
	stream := strings.NewReader("event: greeting\ndata: hello\ndata: world\n\n" +
		"data: " + strings.Repeat("x", 100) + "\n\n" +
		": a comment\ndata: the end\n\n" +
		"data: unfinished")
	r := sse.NewReader(stream, 50)
	for {
		event, err := r.Next()
		var tooLarge *sse.TooLargeError
		switch {
		case errors.As(err, &tooLarge):
			fmt.Println(err)
			continue
		case err == io.EOF:
			return
		case err != nil:
			fmt.Println(err)
			return
		}
		fmt.Printf("%q %q\n", event.Name, event.Data)
	}
	// Output:
	// "greeting" "hello\nworld"
	// sse: event skipped: larger than 50 bytes
	// "" "the end"
}
