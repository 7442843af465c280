package content_test

import (
	"archive/zip"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// What could not be read is not what is not there: of the former there is a finding that says so, in words for whoever sent
// it, whether nothing or something else was read.
func TestUnread(t *testing.T) {
	const empty = `<ISO11783_TaskData VersionMajor="4"/>`
	external := strings.Replace(farmdatatest.TaskDataXML, "<TSK", `<XFR A="FRM00001" B="1"/><TSK`, 1)
	taskData := func(xml string, more ...string) []byte {
		return farmdatatest.Zip(t, append([]string{"TASKDATA/TASKDATA.XML", xml}, more...)...)
	}
	log := []string{"TASKDATA/TLG00001.XML", farmdatatest.LogHeader, "TASKDATA/TLG00001.BIN", string(farmdatatest.Log(2))}
	for name, c := range map[string]struct {
		payload []byte
		kind    farmdata.Kind // empty: all of it was read
		text    string
	}{
		"all of it":               {taskData(farmdatatest.TaskDataXML, log...), "", ""},
		"nothing in it":           {taskData(empty), "", ""},
		"a value":                 {taskData(`<ISO11783_TaskData VersionMajor="four"/>`), "", ""},
		"what is not modeled":     {taskData(`<ISO11783_TaskData><OTQ A="OTQ1" B="x"/></ISO11783_TaskData>`), "", ""},
		"EFDI":                    {farmdatatest.Description(t), "", ""},
		"encrypted":               {farmdatatest.Packed(t, func(h *zip.FileHeader) { h.Flags |= 1 }), farmdata.KindUnreadable, "encrypted; have it sent without a password"},
		"Deflate64":               {farmdatatest.Packed(t, func(h *zip.FileHeader) { h.Method = 9 }), farmdata.KindUnreadable, "method 9"},
		"bzip2":                   {farmdatatest.Packed(t, func(h *zip.FileHeader) { h.Method = 12 }), farmdata.KindUnreadable, "method 12"},
		"wrong checksum":          {farmdatatest.Packed(t, func(h *zip.FileHeader) { h.CRC32++ }), farmdata.KindUnreadable, "checksum"},
		"damaged compression":     {farmdatatest.Packed(t, func(h *zip.FileHeader) { h.Method = zip.Deflate }), farmdata.KindUnreadable, "TASKDATA.XML"},
		"empty":                   {taskData(""), farmdata.KindUnreadable, "no XML"},
		"zeros":                   {taskData(strings.Repeat("\x00", 2000)), farmdata.KindUnreadable, "no XML"},
		"another root":            {taskData("<html><body>error</body></html>"), farmdata.KindUnreadable, "not the XML of TaskData"},
		"cut":                     {taskData(strings.Split(farmdatatest.TaskDataXML, "<TSK")[0]), farmdata.KindCut, "ends inside"},
		"logs only":               {farmdatatest.Zip(t, log...), farmdata.KindMissing, "TASKDATA.XML"},
		"external file missing":   {taskData(external, log...), farmdata.KindMissing, "FRM00001.XML"},
		"external file empty":     {taskData(external, append(log, "TASKDATA/FRM00001.XML", "")...), farmdata.KindUnreadable, "FRM00001.XML"},
		"records missing":         {taskData(farmdatatest.TaskDataXML, log[:2]...), farmdata.KindMissing, "TLG00001.BIN"},
		"header of a log missing": {taskData(farmdatatest.TaskDataXML, log[2:]...), farmdata.KindMissing, "TLG00001.XML"},
		"header of another kind":  {taskData(farmdatatest.TaskDataXML, append(log[2:], "TASKDATA/TLG00001.XML", "<x/>")...), farmdata.KindUnreadable, "not the header"},
		"archive inside of it":    {taskData(empty, "TASKDATA/logs.zip", "PK?"), farmdata.KindUnreadable, "logs.zip"},
		"cut EFDI":                {farmdatatest.Description(t)[:60], farmdata.KindCut, ""},
	} {
		t.Run(name, func(t *testing.T) {
			finding := open(t, c.payload, content.Config{}).Unread()
			switch {
			case c.kind == "" && finding != nil:
				t.Errorf("got %v, want all of it read", finding)
			case c.kind != "" && finding == nil:
				t.Errorf("got nothing, want %s", c.kind)
			case finding != nil && (finding.Kind != c.kind || !strings.Contains(finding.Error(), c.text)):
				t.Errorf("got %v, want %s with %q", finding, c.kind, c.text)
			}
		})
	}
}
