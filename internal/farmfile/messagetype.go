package farmfile

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// DefaultMessageType is the type of unknown files. A message type
// is an arbitrary string to the gateway, so such files are routed like any other.
const DefaultMessageType = "application:octet-stream"

// byEnding maps the extensions that determine the message type.
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

// byName lists the message types of extensions that several kinds of files share: the
// first row whose extension matches and one of whose words occurs in the name decides. A
// row without words matches every name.
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

// MessageType guesses the message type of a file from its name, ignoring
// case.
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

// MessageTypes returns every type that MessageType guesses, in the order of the alphabet.
func MessageTypes() []string {
	types := slices.Collect(maps.Values(byEnding))
	for _, row := range byName {
		types = append(types, row.messageType)
	}
	types = append(types, DefaultMessageType)
	slices.Sort(types)
	return slices.Compact(types)
}
