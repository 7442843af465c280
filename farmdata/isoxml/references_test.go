package isoxml

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// said is the findings without their places.
func said(list []*farmdata.Finding) string {
	var texts []string
	for _, f := range list {
		texts = append(texts, string(f.Kind)+": "+f.Detail)
	}
	return strings.Join(texts, "; ")
}

// TestIDs says for objects of every kind what is found of an ID that is missing, that is there twice, and that nothing
// has; whether what it refers to stands before or behind it, or in another file.
func TestIDs(t *testing.T) {
	t.Parallel()
	const device = `<DVC A="DVC1"><DET A="DET1" B="1"><DOR A="10"/></DET><DPD A="10" B="0043" F="20"/><DPT A="11" B="0086" C="1"/><DVP A="20" B="0" C="1"/>%s</DVC>`
	field := func(inside string) string { return `<PFD A="PFD1">` + inside + `</PFD>` }
	task := func(inside string) string { return `<TSK A="TSK1">` + inside + `</TSK>` }
	for name, tt := range map[string]struct{ xml, found string }{
		"all there":        {`<FRM A="FRM1" I="CTR1"/><CTR A="CTR1"/>` + task(`<PAN A="PDT1"/><DAN A="a0" C="DVC1"/>`) + `<PDT A="PDT1"/>` + fmt.Sprintf(device, ""), ""},
		"empty references": {`<FRM A="FRM1" I=""/><PFD A="PFD1" E="" F=" " G="" H="" I=""/><TSK A="TSK1" C="" D="" E="" F=""><PAN A="" E="" F=""/><DAN A="a0" C=""/><GAN A=""/></TSK>`, ""},

		"customer twice":      {`<CTR A="CTR1"/><CTR A="CTR1"/>`, "duplicate: CTR with the ID of an earlier one: 1, the first at CTR 2"},
		"customer many times": {`<CTR A="CTR1"/>` + strings.Repeat(`<CTR A="CTR1"/>`, 5000), "duplicate: CTR with the ID of an earlier one: 5000, the first at CTR 2"},
		"variety twice":       {`<CTP A="CTP1"><CVT A="CVT1"/></CTP><CTP A="CTP2"><CVT A="CVT1"/></CTP>`, "duplicate: CVT with the ID of an earlier one: 1, the first at CVT 2"},
		"two tasks, two workers": {`<TSK A="TSK1"/><TSK A="TSK1"/><WKR A="WKR1"/><WKR A="WKR2"/><WKR A="WKR2"/>`,
			"duplicate: TSK with the ID of an earlier one: 1, the first at TSK 2; duplicate: WKR with the ID of an earlier one: 1, the first at WKR 3"},
		"device element twice": {`<DVC A="DVC1"><DET A="DET1" B="1"/></DVC><DVC A="DVC2"><DET A="DET1" B="1"/></DVC>`, "duplicate: DET with the ID of an earlier one: 1, the first at DET 2"},
		"polygon twice":        {field(`<PLN E="PLN1"/><PLN E="PLN1"/><PLN/><PLN/>`), "duplicate: PLN with the ID of an earlier one: 1, the first at PLN 2"},
		"group and pattern": {field(`<GGP A="GGP1"><GPN A="GPN1"/></GGP><GGP A="GGP1"><GPN A="GPN1"/></GGP>`),
			"duplicate: GGP with the ID of an earlier one: 1, the first at GGP 2; duplicate: GPN with the ID of an earlier one: 1, the first at GPN 2"},
		"one ID of two kinds":    {`<CTR A="1"/><FRM A="1"/>`, "duplicate: FRM with the ID of an object of another kind: 1, the first at FRM 1"},
		"IDs that begin alike":   {`<CTR A="CTR1"/><CTR A="CTR-1"/><CTR A="CTR11"/>`, ""},
		"object ID twice":        {fmt.Sprintf(device, `<DPD A="10" B="0001"/>`), "duplicate: DPD with the object ID of an earlier one of its device: 1, the first at DPD 2"},
		"object ID of two kinds": {fmt.Sprintf(device, `<DVP A="11" B="0" C="1"/>`), "duplicate: DVP with the object ID of an earlier one of its device: 1, the first at DVP 2"},
		"zone twice":             {task(`<TZN A="1"/><TZN A="2"/><TZN A="1"/>`), "duplicate: TZN with the code of an earlier one of its task: 1, the first at TZN 3"},
		"zone of two tasks":      {task(`<TZN A="1"/>`) + `<TSK A="TSK2"><TZN A="1"/></TSK>`, ""},

		"no ID":           {`<CTR B="x"/><TSK/>`, "value: attribute A of CTR: missing; value: attribute A of TSK: missing"},
		"empty ID":        {`<PFD A=" "/>`, "value: attribute A of PFD: missing"},
		"no object ID":    {fmt.Sprintf(device, `<DPD B="0001"/>`), "value: attribute A of DPD: missing"},
		"object, no ID":   {`<DVC A="DVC1"><DET A="DET1" B="1"><DOR/></DET></DVC>`, "value: attribute A of DOR: missing"},
		"object, bad ID":  {`<DVC A="DVC1"><DET A="DET1" B="1"><DOR A="ten"/></DET></DVC>`, "value: attribute A of DOR: no whole number"},
		"log, no name":    {task(`<TLG/>`), "value: attribute A of TLG: missing"},
		"no name of file": {`<XFR B="1"/>`, "value: attribute A of XFR: missing"},

		"customer of a farm": {`<FRM A="FRM1" I="CTR9"/>`, "reference: customer of FRM is a CTR that is not there: 1, the first at FRM 1"},
		"parts of a field":   {`<PFD A="PFD1" E="CTR9" F="FRM9" G="CTP9" H="CVT9" I="PFD9"/>`, "reference: customer of PFD is a CTR that is not there: 1, the first at PFD 1; reference: farm of PFD is a FRM that is not there: 1, the first at PFD 1; reference: crop of PFD is a CTP that is not there: 1, the first at PFD 1; reference: variety of PFD is a CVT that is not there: 1, the first at PFD 1; reference: parent of PFD is a PFD that is not there: 1, the first at PFD 1"},
		"customers of tasks": {`<TSK A="TSK1" C="CTR1"/><TSK A="TSK2" C="CTR9"/><TSK A="TSK3" C="CTR8"/><CTR A="CTR1"/>`, "reference: customer of TSK is a CTR that is not there: 2, the first at TSK 2"},
		"another kind":       {`<TSK A="TSK1" C="FRM1"/><FRM A="FRM1"/>`, "reference: customer of TSK is no CTR, but an object of another kind: 1, the first at TSK 1"},
		"other letters":      {`<TSK A="TSK1" C="ctr1"/><CTR A="CTR1"/>`, "reference: customer of TSK is a CTR that is not there: 1, the first at TSK 1"},
		"product of a zone":  {task(`<TZN A="1"><PDV A="0006" B="1" C="PDT9" D="DET9" E="VPN9"/></TZN>`), "reference: product of PDV is a PDT that is not there: 1, the first at PDV 1; reference: device element of PDV is a DET that is not there: 1, the first at PDV 1; reference: presentation of PDV is a VPN that is not there: 1, the first at PDV 1"},
		"allocations":        {task(`<PAN A="PDT9"/><DAN A="a0" C="DVC9"/><GAN A="GGP9"/>`), "reference: device of DAN is a DVC that is not there: 1, the first at DAN 1; reference: product of PAN is a PDT that is not there: 1, the first at PAN 1; reference: guidance group of GAN is a GGP that is not there: 1, the first at GAN 1"},
		"total":              {task(`<TIM A="2021-03-23T21:00:00" D="4"><DLV A="0074" B="5" C="DET9"/></TIM>`), "reference: device element of DLV is a DET that is not there: 1, the first at DLV 1"},
		"default zone":       {`<TSK A="TSK1" H="3"><TZN A="2"/></TSK>`, "reference: default zone of TSK is a TZN that is not there: 1, the first at TSK 1"},
		"parts of work": {`<PDT A="PDT1" F="2"><PRN A="PDT9" B="5"/></PDT><CPC A="CPC1"><OTR A="OTQ9"/></CPC><CCT A="CCT1" D="CCG9"/>` +
			task(`<OTP A="CPC9" B="CPC1"/><WAN A="WKR9"/><CNN A="DVC9" B="DET9"/><CAN A="CCT9" B="CCT1"/>`),
			"reference: group of CCT is a CCG that is not there: 1, the first at CCT 1; reference: technique of OTR is a OTQ that is not there: 1, the first at OTR 1; reference: product of PRN is a PDT that is not there: 1, the first at PRN 1; " +
				"reference: practice of OTP is a CPC that is not there: 1, the first at OTP 1; reference: technique of OTP is no OTQ, but an object of another kind: 1, the first at OTP 1; reference: worker of WAN is a WKR that is not there: 1, the first at WAN 1; " +
				"reference: device of CNN is a DVC that is not there: 1, the first at CNN 1; reference: device element of CNN is a DET that is not there: 1, the first at CNN 1; reference: comment of CAN is a CCT that is not there: 1, the first at CAN 1; reference: value of CAN is no CCL, but an object of another kind: 1, the first at CAN 1"},
		"group of a product": {`<PDT A="PDT1" C="PGP9" D="VPN9"/>`, "reference: group of PDT is a PGP that is not there: 1, the first at PDT 1; reference: presentation of PDT is a VPN that is not there: 1, the first at PDT 1"},
		"object of an element": {`<DVC A="DVC1"><DET A="DET1" B="1" F="7"><DOR A="8"/><DOR A="1"/></DET></DVC>`,
			"reference: parent of DET is a DET that is not there: 1, the first at DET 1; reference: object of DOR is a DPD or DPT that is not there: 1, the first at DOR 1; reference: object of DOR is no DPD or DPT, but an object of another kind: 1, the first at DOR 2"},
		"object of another device": {fmt.Sprintf(device, "") + `<DVC A="DVC2"><DPD A="5" B="0001" F="20"/></DVC>`, "reference: presentation of DPD is a DVP that is not there: 1, the first at DPD 2"},
	} {
		set := openSet(t, entry{"TASKDATA.XML", `<ISO11783_TaskData VersionMajor="4">` + tt.xml + `</ISO11783_TaskData>`})
		if got := said(set.Findings); got != tt.found {
			t.Errorf("%s: got %q, want %q", name, got, tt.found)
		}
		if set.Unread() != nil {
			t.Errorf("%s: got %v, want nothing unread", name, set.Unread())
		}
	}
}

// TestIDsOfOtherFiles: the IDs of all files of a set are one space.
func TestIDsOfOtherFiles(t *testing.T) {
	t.Parallel()
	const main = `<ISO11783_TaskData VersionMajor="4"><TSK A="TSK1" C="CTR1" E="PFD1"/><XFR A="CTR00001"/><XFR A="PFD00001"/></ISO11783_TaskData>`
	for name, tt := range map[string]struct{ customers, fields, links, found string }{
		"all there":      {`<CTR A="CTR1"/>`, `<PFD A="PFD1" E="CTR1"/>`, `<LNK A="TSK1" B="x"/><LNK A="PFD1" B="x"/><LNK A="CLD1" B="x"/>`, ""},
		"twice":          {`<CTR A="CTR1"/>`, `<PFD A="PFD1"/><CTR A="CTR1"/>`, "", "duplicate: CTR with the ID of an earlier one: 1, the first at CTR 2"},
		"not there":      {"", `<PFD A="PFD1" E="CTR1"/>`, "", "reference: customer of PFD is a CTR that is not there: 1, the first at PFD 1; reference: customer of TSK is a CTR that is not there: 1, the first at TSK 1"},
		"link":           {`<CTR A="CTR1"/>`, `<PFD A="PFD1"/>`, `<LNK A="CTR2" B="x"/><LNK A="CTR3" B="x"/>`, "reference: object of LNK is not there: 2, the first at LNK 1"},
		"link to no one": {`<CTR A="CTR1"/>`, `<PFD A="PFD1"/>`, `<LNK B="x"/>`, "value: attribute A of LNK: missing"},
	} {
		set := openSet(t, entry{"TASKDATA.XML", main}, entry{"CTR00001.XML", "<XFC>" + tt.customers + "</XFC>"}, entry{"PFD00001.XML", "<XFC>" + tt.fields + "</XFC>"},
			entry{"LINKLIST.XML", `<ISO11783LinkList><LGP A="LGP1" B="1">` + tt.links + `</LGP></ISO11783LinkList>`})
		if got := said(set.Findings); got != tt.found {
			t.Errorf("%s: got %q, want %q", name, got, tt.found)
		}
	}
}

// TestWhatIsNotRead: elements that are not read are counted by their names, and so are those that are not where they should be. Of the latter
// those that need no other one are read; others are lost, so the set is not read to its end.
func TestWhatIsNotRead(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		xml, found string
		unread     bool
	}{
		"color legends": {`<CLD A="CLD1"/><CLD A="CLD2"/><TSK A="TSK1"><CAT A="a0"><ASP A="2021-03-23T21:00:00"><PTN A="52" B="8"/></ASP></CAT></TSK>`, "unsupported: elements CLD, which are not read: 2; unsupported: elements CAT, which are not read: 1; unsupported: elements ASP, which are not read: 1; unsupported: elements PTN, which are not read: 1", false},
		"triggers":      {`<TSK A="TSK1"><DLT A="0043"/></TSK>`, "unsupported: elements DLT, which are not read: 1", false},
		"of a maker":    {`<P094_Area A="1"/><AFE A="a.bin"/>`, "unsupported: elements P094_Area, which are not read: 1; unsupported: elements AFE, which are not read: 1", false},
		"another case":  {`<tsk A="TSK1"/>`, "unsupported: elements tsk, which are not read: 1", false},
		"no plain name": {`<Änderung/><` + strings.Repeat("X", 1000) + `/>`, "unsupported: elements of other names, which are not read: 2", false},
		"attributes":    {`<CTR A="CTR1" B="c" N="x" P094_Rank=""/><CTR A="CTR2" N="y"/><TSK A="TSK1" xmlns:x="y"/>`, "unsupported: attributes N of CTR, which are not read: 2", false},
		"durations":     {`<TSK A="TSK1"><DAN><ASP A="2021-03-23T21:00:00" C="60" D="4"/></DAN></TSK>`, "unsupported: attributes C of ASP, which are not read: 1", false},
		"positions":     {`<TSK A="TSK1"><TIM A="2021-03-23T21:00:00" D="4">` + strings.Repeat(`<PTN A="52" B="8" D="1" H="75600000" I="15057"/>`, 2) + `</TIM></TSK>`, "unsupported: attributes H of PTN, which are not read: 2; unsupported: attributes I of PTN, which are not read: 2", false},
		"twice":         {`<CTR A="CTR1" B="c" B="d" A="CTR2"/>`, "duplicate: attribute A of CTR is there twice; the first one counts; duplicate: attribute B of CTR is there twice; the first one counts", false},
		"of a prefix":   {`<CTR m:A="CTR9" A="CTR1" B="c"/><CTR A="CTR9" B="c"/>`, "", false},
		"many":          {strings.Repeat(`<CLD/>`, 100_000), "unsupported: elements CLD, which are not read: 100000", false},

		"task in a field":     {`<PFD A="PFD1"><TSK A="TSK1"/><TSK A="TSK2"/></PFD>`, "orphan: elements TSK in PFD, where they do not belong: 2", false},
		"point in a task":     {`<TSK A="TSK1"><PNT A="1" C="52" D="8"/></TSK>`, "syntax: elements PNT in TSK, where they do not belong, which are left out: 1", true},
		"in what is not read": {`<X><CTR A="CTR1"/></X>`, "unsupported: elements X, which are not read: 1; orphan: elements CTR in X, where they do not belong: 1", false},
		"field of a maker":    {`<X><PFD A="PFD1"><PLN A="1"/></PFD><LSG A="1"/></X>`, "unsupported: elements X, which are not read: 1; orphan: elements PFD in X, where they do not belong: 1; syntax: elements LSG in X, where they do not belong, which are left out: 1", true},
		"duration of a stamp": {`<TSK A="TSK1"><DAN A="a0"><ASP A="2021-03-23T21:00:00" C="500" D="4"/></DAN></TSK>`, "unsupported: attributes C of ASP, which are not read: 1", false},
		"second stamp":        {`<TSK A="TSK1"><DAN A="a0"><ASP A="2021-03-23T21:00:00"/><ASP A="2022-03-23T21:00:00"/></DAN></TSK>`, "unsupported: elements ASP, which are not read: 1", false},
		"second root":         {`</ISO11783_TaskData><ISO11783_TaskData VersionMajor="4"><CTR A="CTR1"/>`, "unsupported: elements ISO11783_TaskData, which are not read: 1; orphan: elements CTR in ISO11783_TaskData, where they do not belong: 1", false},
	} {
		set := openSet(t, entry{"TASKDATA.XML", `<ISO11783_TaskData VersionMajor="4">` + tt.xml + `</ISO11783_TaskData>`})
		if got := said(set.Findings); got != tt.found {
			t.Errorf("%s: got %q, want %q", name, got, tt.found)
		}
		if got := set.Unread() != nil; got != tt.unread {
			t.Errorf("%s: got unread %v, want %v", name, set.Unread(), tt.unread)
		}
		if n := len(set.Customers) + len(set.Tasks) + len(set.Fields); n == 0 && strings.Contains(tt.found, "orphan") {
			t.Errorf("%s: got nothing, want what is in another place", name)
		}
		if len(set.Findings) > 0 && (set.Findings[0].File != "TASKDATA.XML" || set.Findings[0].Offset < 36) {
			t.Errorf("%s: got %v, want where the first one is", name, set.Findings[0])
		}
	}
	const root = `<ISO11783_TaskData xmlns="x" VersionMajor="4" VersionMinor="3" ManagementSoftwareManufacturer="m" ManagementSoftwareVersion="1" TaskControllerManufacturer="t" TaskControllerVersion="2" DataTransferOrigin="1" DataTransferLanguage="de"/>`
	if got := said(openSet(t, entry{"TASKDATA.XML", root}).Findings); got != "unsupported: attributes DataTransferLanguage of ISO11783_TaskData, which are not read: 1" {
		t.Errorf("got %q, want the language only", got)
	}
}

// TestFilesThatNothingNames are found, with where they are: what is in them is not read.
func TestFilesThatNothingNames(t *testing.T) {
	t.Parallel()
	const xml = `<ISO11783_TaskData VersionMajor="4"><XFR A="PFD00001"/><TSK A="TSK1"><GRD A="52" B="8" C="0.1" D="0.1" E="1" F="1" G="GRD00001" I="1"/></TSK></ISO11783_TaskData>`
	entries := []entry{{"A/TASKDATA.XML", xml}, {"A/pfd00001.xml", `<XFC/>`}, {"A/GRD00001.bin", "\x00"}, {"A/readme.xml", "x"}, {"A/LINKLIST.XML", `<ISO11783LinkList/>`}}
	for name, want := range map[string]string{"": "", "A/PFD00002.XML": "unreadable", "A/tsk00001.xml": "unreadable", "A/GRD00002.BIN": "unreadable", "A/PNT00002.BIN": "", "B/PFD00002.XML": ""} {
		if set := openSet(t, append(entries[:5:5], entry{name, "x"})...); farmdatatest.Kinds(set.Findings) != want || want != "" && set.Findings[0].File != name {
			t.Errorf("%s: got %v, want %q", name, set.Findings, want)
		}
	}
	files := fstest.MapFS{"A/TASKDATA.XML": {Data: []byte(`<ISO11783_TaskData/>`)}, "B.ZIP": {Data: []byte(zipped(t, entries...))}}
	if a, err := OpenFS(t.Context(), files, Config{}); err != nil || len(a.Sets) != 1 || farmdatatest.Kinds(a.Findings) != "unreadable" || a.Findings[0].File != "B.ZIP" {
		t.Errorf("got %+v, %v, want that an archive in a folder is not looked into", a, err)
	}
}

// TestHeadersOfLogs: one part of a header too many, missing, or of an unknown kind.
func TestHeadersOfLogs(t *testing.T) {
	t.Parallel()
	const position = `<PTN A="" B="" D=""/>`
	for name, tt := range map[string]struct {
		header  string
		records int
		found   string
	}{
		"whole":            {sampleHeader, 1, ""},
		"second position":  {strings.Replace(sampleHeader, position, position+`<PTN A="1" B="2"/>`, 1), 1, "duplicate"},
		"unknown element":  {strings.Replace(sampleHeader, position, position+`<X/><X/>`, 1), 1, "unsupported"},
		"value in another": {strings.Replace(sampleHeader, "</TIM>", `<X><DLV A="0001" B="" C="DET-1"/></X></TIM>`, 1), 1, "unsupported, syntax"},
		"257 values":       {strings.Replace(sampleHeader, "</TIM>", strings.Repeat(`<DLV A="0001" B="" C="DET-1"/>`, 255)+"</TIM>", 1), 1, "surplus"},
		"one time":         {strings.Replace(sampleHeader, `A=""`, `A="2021-03-23T21:00:00"`, 1), 1, "value"},
		"time that ends":   {strings.Replace(sampleHeader, `A=""`, `A="" B=""`, 1), 1, "unsupported"},
		"UTC of all":       {strings.Replace(sampleHeader, position, `<PTN A="" B="" D="" H="1000" I="15000"/>`, 1), 1, "value, value"},
		"day of all":       {strings.Replace(sampleHeader, position, `<PTN A="" B="" D="" H="x" I="15000"/>`, 1), 1, "value, value"},
		"unknown part":     {strings.Replace(sampleHeader, position, `<PTN A="" B="" D="" J=""/>`, 1), 1, "unsupported"},
		"unknown of value": {strings.Replace(sampleHeader, "</TIM>", `<DLV A="0001" B="" C="DET-1" X=""/></TIM>`, 1), 1, "unsupported"},
		"PGN missing":      {strings.Replace(sampleHeader, "</TIM>", `<DLV A="DFFE" B="" C="DET-1"/></TIM>`, 1), 1, "value, value, value"},
		"two headers":      {sampleHeader + sampleHeader, 1, "unsupported, syntax, syntax"},
	} {
		set := openSet(t, entry{"TASKDATA.XML", sample}, entry{"TLG00001.XML", tt.header}, entry{"TLG00001.BIN", sampleRecord(1000, 10, 20, value{0, 1})})
		records, found := farmdatatest.Read(t, set.Logs[0])
		if got := farmdatatest.Kinds(set.Findings); len(records) != tt.records || len(found) != 0 || got != tt.found {
			t.Errorf("%s: got %d records, %v and findings %q, want %d and %q: %v", name, len(records), found, got, tt.records, tt.found, set.Findings)
		}
	}
}

// TestObjectsWithoutAnID: what has no object ID is described by nothing: absent is not zero.
func TestObjectsWithoutAnID(t *testing.T) {
	t.Parallel()
	for name, xml := range map[string]string{
		"missing":    strings.NewReplacer(`<DOR A="10"/>`, `<DOR/>`, `<DPD A="10"`, `<DPD`).Replace(sample),
		"unreadable": strings.NewReplacer(`<DOR A="10"/>`, `<DOR A="ten"/>`, `<DPD A="10"`, `<DPD A="ten"`).Replace(sample),
		"zero":       strings.NewReplacer(`<DOR A="10"/>`, `<DOR A="0"/>`, `<DPD A="10"`, `<DPD A="0"`).Replace(sample),
	} {
		set := openSet(t, entry{"TASKDATA.XML", xml}, entry{"TLG00001.XML", sampleHeader}, entry{"TLG00001.BIN", ""})
		if c := set.Logs[0].Columns[0]; c.Unit != "mm" || c.Offset != 0 {
			t.Errorf("%s: got %+v, want what the data dictionary says", name, c)
		}
	}
}
