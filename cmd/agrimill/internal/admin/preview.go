package admin

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"image"
	_ "image/gif"  // for previews
	_ "image/jpeg" // for previews
	_ "image/png"  // for previews
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/payloadref"
)

const (
	// maxPreviewed is how much of a payload is read for a preview, in bytes. What is larger is shown
	// by its beginning.
	maxPreviewed = 16 << 20
	// maxPreviewText, maxPreviewHex and maxPreviewImage bound what is shown, in bytes, maxPixels
	// and maxEntries in pixels and files.
	maxPreviewText  = 64 << 10
	maxPreviewHex   = 512
	maxPreviewImage = 4 << 20
	maxPixels       = 50_000_000
	maxEntries      = 200
)

// PreviewKind is how a payload is shown.
type PreviewKind string

// The kinds of previews.
const (
	PreviewEmpty PreviewKind = "empty" // there is no payload
	PreviewText  PreviewKind = "text"
	PreviewJSON  PreviewKind = "json" // text, indented
	PreviewImage PreviewKind = "image"
	PreviewZip   PreviewKind = "zip" // a list of files
	PreviewHex   PreviewKind = "hex" // text, the first bytes
)

// PoisonPreview shows a payload that is no farm data.
type PoisonPreview struct {
	Kind PreviewKind `json:"kind"`
	Text string      `json:"text,omitempty"`
	// Image is a PNG, JPEG or GIF of the type ImageType.
	Image     []byte         `json:"image,omitempty"`
	ImageType string         `json:"image_type,omitempty"`
	Entries   []PreviewEntry `json:"entries,omitempty"`
	// More says that there is more than is shown.
	More bool `json:"more,omitempty"`
}

// PreviewEntry is a file of an archive. Size is what the archive says it is, in bytes.
type PreviewEntry struct {
	Name string `json:"name"`
	Size uint64 `json:"size"`
}

// head returns the beginning of a message's payload, and whether there is more.
func (s *Server) head(ctx context.Context, msg *message.Message) (data []byte, more bool, err error) {
	data = msg.Payload
	if open := payloadref.Find(ctx, msg.Metadata, s.source.Payloads()); open != nil && msg.Metadata[gateway.KeyPayloadMode] != "" {
		payload, _, err := open(ctx)
		if err != nil {
			return nil, false, err
		}
		defer func() { _ = payload.Close() }() // it was only read
		if data, err = io.ReadAll(io.LimitReader(payload, maxPreviewed+1)); err != nil {
			return nil, false, err
		}
	}
	if len(data) > maxPreviewed {
		return data[:maxPreviewed], true, nil
	}
	return data, false, nil
}

// newPreview returns a preview of data, the beginning of a payload of which there may be more.
func newPreview(data []byte, more bool) PoisonPreview {
	switch p, ok := previewImage(data); {
	case len(data) == 0:
		return PoisonPreview{Kind: PreviewEmpty}
	case ok && !more:
		return p
	}
	if p, ok := previewZip(data); ok && !more {
		return p
	}
	if len(data) <= maxPreviewText && !more && json.Valid(data) {
		var b bytes.Buffer
		if json.Indent(&b, data, "", "  ") == nil && b.Len() <= 4*maxPreviewText {
			return PoisonPreview{Kind: PreviewJSON, Text: b.String()}
		}
	}
	text := data
	if len(text) > maxPreviewText {
		text, more = text[:maxPreviewText], true
		for range utf8.UTFMax - 1 { // a character may have been cut
			if r, n := utf8.DecodeLastRune(text); r != utf8.RuneError || n != 1 {
				break
			}
			text = text[:len(text)-1]
		}
	}
	if utf8.Valid(text) && !bytes.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune("\n\r\t", r) }) {
		return PoisonPreview{Kind: PreviewText, Text: string(text), More: more}
	}
	return PoisonPreview{Kind: PreviewHex, Text: hex.Dump(data[:min(len(data), maxPreviewHex)]), More: more || len(data) > maxPreviewHex}
}

func previewImage(data []byte) (PoisonPreview, bool) {
	config, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil || len(data) > maxPreviewImage || config.Width <= 0 || config.Height <= 0 || config.Width > maxPixels/config.Height {
		return PoisonPreview{}, false
	}
	return PoisonPreview{Kind: PreviewImage, Image: data, ImageType: "image/" + format}, true
}

// previewZip lists an archive. Nothing in it is unpacked.
func previewZip(data []byte) (PoisonPreview, bool) {
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil || len(archive.File) == 0 {
		return PoisonPreview{}, false
	}
	p := PoisonPreview{Kind: PreviewZip}
	for _, f := range archive.File {
		if p.More = len(p.Entries) == maxEntries; p.More {
			break
		}
		p.Entries = append(p.Entries, PreviewEntry{Name: capText(f.Name, 512), Size: f.UncompressedSize64})
	}
	return p, true
}
