package farmfile

import (
	"path/filepath"
	"slices"
	"strings"
)

// DefaultMessageType is given to files whose kind is not known. A message type
// is a free string to the gateway, so such files are routed like any other.
const DefaultMessageType = "application:octet-stream"

// byEnding are the message types that follow from the ending alone.
var byEnding = map[string]string{
	".avi":  "vid:avi",
	".bmp":  "img:bmp",
	".jpeg": "img:jpeg",
	".jpg":  "img:jpeg",
	".mp4":  "vid:mp4",
	".pdf":  "doc:pdf",
	".png":  "img:png",
	".wmv":  "vid:wmv",
}

// byName are the message types of endings that several kinds share: the first
// row whose ending and one of whose words occur in the name decides. A row
// without words takes every name.
var byName = []struct {
	ending      string
	words       []string
	messageType string
}{
	{".zip", []string{"shape", "shp"}, "shp:shape:zip"},
	{".zip", nil, "iso:11783:-10:taskdata:zip"},
	{".pb", []string{"timelog", "time_log", "time-log"}, "iso:11783:-10:time_log:protobuf"},
	{".pb", []string{"device"}, "iso:11783:-10:device_description:protobuf"},
	{".pb", []string{"gps"}, "gps:info"},
}

// MessageType guesses the message type of a file from its name; letter case
// does not matter.
func MessageType(name string) string {
	name = strings.ToLower(filepath.Base(name))
	ending := filepath.Ext(name)
	if found, ok := byEnding[ending]; ok {
		return found
	}
	for _, row := range byName {
		contains := func(word string) bool { return strings.Contains(name, word) }
		if row.ending == ending && (row.words == nil || slices.ContainsFunc(row.words, contains)) {
			return row.messageType
		}
	}
	return DefaultMessageType
}
