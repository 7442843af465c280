package farmfile

import (
	"slices"
	"testing"
)

func TestMessageType(t *testing.T) {
	tests := []struct{ name, want string }{
		{"taskdata_big.zip", "iso:11783:-10:taskdata:zip"},
		{"2026-05-04 Möllers Acker.ZIP", "iso:11783:-10:taskdata:zip"},
		{"shape_small.zip", "shp:shape:zip"},
		{"boundary.SHP.zip", "shp:shape:zip"},
		{"efdi_timelog_100.pb", "iso:11783:-10:time_log:protobuf"},
		{"device_description.pb", "iso:11783:-10:device_description:protobuf"},
		{"gps_info_100.pb", "gps:info"},
		{"img_small.bmp", "img:bmp"},
		{"IMG_0001.JPG", "img:jpeg"},
		{"a.jpeg", "img:jpeg"},
		{"a.png", "img:png"},
		{"doc_big.pdf", "doc:pdf"},
		{"a.avi", "vid:avi"},
		{"a.mp4", "vid:mp4"},
		{"a.wmv", "vid:wmv"},
		{"other.pb", DefaultMessageType},
		{"notes.json", DefaultMessageType},
		{"zip", DefaultMessageType},
		{"", DefaultMessageType},
		{"folder.png/readme", DefaultMessageType},
	}
	var types []string
	for _, tt := range tests {
		types = append(types, tt.want)
		if got := MessageType(tt.name); got != tt.want {
			t.Errorf("MessageType(%q) = %q, want %q", tt.name, got, tt.want)
		}
	}
	slices.Sort(types)
	if got, want := MessageTypes(), slices.Compact(types); !slices.Equal(got, want) {
		t.Errorf("MessageTypes() = %q, want %q", got, want)
	}
}
