package farmdatatest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// Bomb is an input of at most MostInput that would cost more than that, but for a limit.
type Bomb struct {
	Name string
	Make func(t testing.TB) []byte
	// Says is what the limit, if one is exceeded, has to be told with.
	Says string
}

// filled is TaskData of parts, many times.
func filled(parts string, times int) func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		return Zip(t, "TASKDATA.XML", "<ISO11783_TaskData>"+strings.Repeat(parts, times)+"</ISO11783_TaskData>")
	}
}

// counted is TaskData of a part many times, each with its number.
func counted(before string, times int, format, after string) func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		return Zip(t, "TASKDATA.XML", "<ISO11783_TaskData>"+before+numbered(times, format)+after+"</ISO11783_TaskData>")
	}
}

// headers are so many logs with a header each.
func headers(n int, xml, bin string) (files []string) {
	for i := range n {
		files = append(files, fmt.Sprintf("TLG%05d.XML", i), xml, fmt.Sprintf("TLG%05d.BIN", i), bin)
	}
	return files
}

func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// repeated makes the directory of an archive name its last file so many times more.
func repeated(t testing.TB, archive []byte, names ...string) []byte {
	t.Helper()
	end := bytes.LastIndex(archive, []byte("PK\x05\x06"))
	start := bytes.LastIndex(archive, []byte("PK\x01\x02"))
	first := int(binary.LittleEndian.Uint32(archive[end+16:]))
	entry, tail := archive[start:end], slices.Clone(archive[end:])
	out := slices.Clone(archive[:end])
	old := int(binary.LittleEndian.Uint16(entry[28:]))
	for _, name := range names {
		record := slices.Clone(entry[:46])
		binary.LittleEndian.PutUint16(record[28:], uint16(len(name)))
		out = append(append(append(out, record...), name...), entry[46+old:]...)
	}
	for _, at := range []int{8, 10} {
		binary.LittleEndian.PutUint16(tail[at:], binary.LittleEndian.Uint16(tail[at:])+uint16(len(names)))
	}
	binary.LittleEndian.PutUint32(tail[12:], uint32(len(out)-first))
	return append(out, tail...)
}

// log is TaskData with a log that has a record so many times.
func log(t testing.TB, header, record string, times int) []byte {
	t.Helper()
	return zipOf(t, []string{"TASKDATA.XML", TaskDataXML, "TLG00001.XML", header}, repetition{"TLG00001.BIN", record, times})
}

// wideHeader has as many columns as an index can tell apart, but one.
var wideHeader = `<TIM A="" D="4">` + strings.Repeat(`<DLV A="0043" B="" C="DET1"/>`, 255) + `</TIM>`

// Bombs returns those that are known.
func Bombs() []Bomb {
	return slices.Concat(taskDataBombs(), logBombs(), archiveBombs(), gridBombs(), efdiBombs())
}

// taskDataBombs are in TASKDATA.XML and the headers of logs.
func taskDataBombs() []Bomb {
	return []Bomb{
		{"a device with many values, headers with many columns", func(t testing.TB) []byte {
			device := `<ISO11783_TaskData><DVC A="DVC1"><DET A="DET1" B="1" C="1" E="0" F="0">` + numbered(60_000, `<DOR A="%d"/>`) + `</DET>` +
				numbered(60_000, `<DPD A="1%06d" B="0043" C="1" D="1"/>`) + `</DVC></ISO11783_TaskData>`
			return Zip(t, append(headers(1000, wideHeader, ""), "TASKDATA.XML", device)...)
		}, ""},
		{"elements that share values", func(t testing.TB) []byte {
			device := `<ISO11783_TaskData><DVC A="DVC1">` + numbered(60_000, `<DET A="DET%d" B="1" C="1" E="0" F="0"><DOR A="1"/></DET>`) +
				numbered(60_000, `<DPD A="1" B="%04x" C="1" D="1"/>`) + `</DVC></ISO11783_TaskData>`
			files := []string{"TASKDATA.XML", device}
			for i := range 200 {
				var header strings.Builder
				for j := range 255 {
					fmt.Fprintf(&header, `<DLV A="%04x" B="" C="DET%d"/>`, (i*255+j)%60_000, i*255+j)
				}
				files = append(files, fmt.Sprintf("TLG%05d.XML", i), `<TIM A="">`+header.String()+`</TIM>`)
			}
			return Zip(t, files...)
		}, ""},
		{"tasks", filled("<TSK/>", 480_000), "memory"},
		{"tasks that name logs", filled(`<TSK><TLG A="TLG00001"/></TSK>`, 240_000), "memory"},
		{"names of logs", counted("<TSK>", 400_000, `<TLG A="TLG%d"/>`, "</TSK>"), "memory"},
		{"points", filled(`<PNT/>`, 490_000), ""},
		{"fields of a point", filled(`<PFD><PLN><LSG><PNT C="1" D="1"/></LSG></PLN></PFD>`, 120_000), "memory"},
		{"elements", filled("<X/>", 700_000), "more elements than"},
		{"elements of many names", counted("", 450_000, "<X%d/>", ""), "of other names"},
		{"IDs", counted("<PFD>", 480_000, `<PNT C="1" D="1" G="PNT%d"/>`, "</PFD>"), ""},
		{"references to nothing", counted("", 200_000, `<FRM A="FRM1" I="CTR%d"/>`, ""), "is not there"},
		{"many references to nothing", counted("", 480_000, `<FRM A="FRM1" I="CTR%d"/>`, ""), "memory"},
		{"text", filled("x", 1<<25), "more XML than"},
		{"attributes", filled("<CTR "+strings.Repeat(`a="" `, 200_000)+"/>", 30), ""},
		{"long names", filled(`<CTR A="`+strings.Repeat("x", 1000_000)+`"/>`, 33), ""},
		{"bad values", filled(`<PNT A="x" C="y" D="z" E="q"/>`, 400_000), "more findings than"},
		{"bad values of many sets", func(t testing.TB) (b []byte) {
			var files []string
			for i := range 800 {
				files = append(files, fmt.Sprintf("%d/TASKDATA.XML", i), "<ISO11783_TaskData>"+strings.Repeat(`<PNT A="x" C="y" D="z" E="q"/>`, 500)+"</ISO11783_TaskData>")
			}
			return Zip(t, files...)
		}, "memory"},
		{"sets", func(t testing.TB) (b []byte) {
			var files []string
			for i := range 9000 {
				files = append(files, fmt.Sprintf("%d/TASKDATA.XML", i), "<ISO11783_TaskData/>")
			}
			return Zip(t, files...)
		}, ""},
		{"farms", counted("", 70_000, `<FRM A="FRM%[1]d" B="name%[1]d"/>`, ""), ""},
		{"totals of device elements", func(t testing.TB) []byte {
			return Zip(t, "TASKDATA.XML", `<ISO11783_TaskData><DVC A="DVC1">`+numbered(12_000, `<DET A="DET%[1]d" B="1%[1]d" C="1" E="0" F="1%[1]d"/>`)+
				`</DVC><TSK A="TSK1" G="4"><TIM A="2026-05-01T08:00:00" D="4">`+numbered(12_000, `<DLV A="0051" B="1" C="DET%d"/>`)+`</TIM></TSK></ISO11783_TaskData>`)
		}, "than are summed up"},
		{"columns", func(t testing.TB) []byte { return Zip(t, headers(2500, wideHeader, "")...) }, "memory"},
	}
}

// logBombs are in the records of logs and grids.
func logBombs() []Bomb {
	return []Bomb{
		{"zeros", func(t testing.TB) []byte {
			return zipOf(t, []string{"TLG00000.XML", wideHeader, "TLG00001.XML", wideHeader},
				repetition{"TLG00000.BIN", "\x00", 150 << 20}, repetition{"TLG00001.BIN", "\x00", 150 << 20})
		}, "more bytes, unpacked, than"},
		{"zeros within the limit", func(t testing.TB) []byte {
			return zipOf(t, []string{"TLG00000.XML", wideHeader}, repetition{"TLG00000.BIN", "\x00", 255 << 20})
		}, ""},
		{"values within the limit", func(t testing.TB) []byte {
			record := strings.Repeat("\x00", 6) + "\xff" + strings.Repeat("\x00", 255*5)
			return zipOf(t, []string{"TLG00000.XML", wideHeader}, repetition{"TLG00000.BIN", record, (255 << 20) / len(record)})
		}, ""},
		{"findings of many logs", func(t testing.TB) []byte {
			return Zip(t, headers(4900, `<TIM A=""/>`, strings.Repeat("\xfe\xff\xff\xff\x98\x3a\x00", 1002))...)
		}, "more findings than"},
		{"findings of logs with long names", func(t testing.TB) []byte {
			var files []string
			folder := strings.Repeat("x", 60_000) + "/"
			for i := range 7 {
				name := fmt.Sprintf("%sTLG%05d", folder, i)
				files = append(files, name+".XML", `<TIM A=""/>`, name+".BIN", strings.Repeat("\xfe\xff\xff\xff\x98\x3a\x00", 1002))
			}
			return Zip(t, files...)
		}, "more findings"},
		{"short records", func(t testing.TB) []byte {
			return log(t, `<TIM A="" D="4"><PTN A="52" B="8"/></TIM>`, "\x01\x02\x03\x00\x98\x3a\x00", 36<<20)
		}, ""},
		{"machines in many logs", machinesInLogs, "same seconds"},
		{"values of many functions and sections", valuesOfParts, "0087"},
		{"a grid", func(t testing.TB) []byte {
			const grid = `<ISO11783_TaskData><TSK A="TSK1"><TZN A="0"><PDV A="0006" B="1"/></TZN><GRD A="1" B="1" C="0.00001" D="0.00001" E="16000" F="16000" G="GRD00001" I="1"/></TSK></ISO11783_TaskData>`
			return zipOf(t, []string{"TASKDATA.XML", grid}, repetition{"GRD00001.BIN", "\x00", 16000 * 16000})
		}, ""},
	}
}

// machinesInLogs has other machines in each log, and one that is in all of them, with many gaps.
func machinesInLogs(t testing.TB) []byte {
	files := []string{"TASKDATA.XML", `<ISO11783_TaskData>` + numbered(25_000, `<DVC A="DVC%[1]d"><DET A="DET%[1]d" B="1" C="1" E="0" F="0"/></DVC>`) + `</ISO11783_TaskData>`}
	var records []byte
	for i := range uint32(2000) {
		records = append(binary.LittleEndian.AppendUint32(records, i/2*80_000+i%2*2000), "\x98\x3a\x00"...)
	}
	for i := range 100 {
		var header strings.Builder
		for j := range 249 {
			fmt.Fprintf(&header, `<DLV A="0007" B="" C="DET%d"/>`, i*250+j+1)
		}
		files = append(files, fmt.Sprintf("TLG%05d.XML", i), `<TIM A=""><DLV A="0007" B="" C="DET0"/>`+header.String()+`</TIM>`, fmt.Sprintf("TLG%05d.BIN", i), string(records))
	}
	return Zip(t, files...)
}

// valuesOfParts has many functions whose states change with each record, and many rates of a function of many sections.
func valuesOfParts(t testing.TB) []byte {
	devices := `<ISO11783_TaskData><DVC A="DVC1">` + numbered(250, `<DET A="DET1%[1]d" B="1%[1]d" C="2" E="0" F="9"><DOR A="5"/></DET>`) + `<DPT A="5" B="0046" C="3000"/></DVC>` +
		`<DVC A="DVC2"><DET A="DET8" B="8" C="2" E="0" F="0"><DOR A="5"/></DET><DET A="DET9" B="9" C="2" E="0" F="0"/>` +
		numbered(250, `<DET A="DET2%[1]d" B="2%[1]d" C="4" E="0" F="9"><DOR A="5"/></DET><DET A="DET3%[1]d" B="3%[1]d" C="3" E="0" F="9"/>`) + `<DPT A="5" B="0046" C="3000"/></DVC></ISO11783_TaskData>`
	var records []byte
	for i := range byte(2) {
		records = append(records, "\x01\x02\x03\x00\x98\x3a\x00\x00\x00\x1e"...)
		records = append(records, i, 0, 0, 4, 250) // a place, and how many values
		for j := range byte(250) {
			records = append(records, j, i, 0, 0, 0)
		}
	}
	const times = 20_000
	return zipOf(t, []string{"TASKDATA.XML", devices, "TLG00000.XML", `<TIM A="" D="4"><PTN A="" B=""/>` + numbered(250, `<DLV A="008D" B="" C="DET1%d"/>`) + `</TIM>`,
		"TLG00001.XML", `<TIM A="" D="4"><PTN A="" B=""/>` + numbered(250, `<DLV A="0007" B="" C="DET3%d"/>`) + `</TIM>`},
		repetition{"TLG00000.BIN", string(records), times}, repetition{"TLG00001.BIN", string(records), times})
}

// archiveBombs are in the directory of an archive.
func archiveBombs() []Bomb {
	return []Bomb{
		{"one file under many names", func(t testing.TB) []byte {
			archive := zipOf(t, []string{"TASKDATA.XML", "<ISO11783_TaskData/>"}, repetition{"TLG00000.BIN", "\x00", 100 << 20})
			var names []string
			for i := range 9000 {
				names = append(names, fmt.Sprintf("TLG%05d.BIN", i+1))
			}
			return repeated(t, archive, names...)
		}, "overlaps"},
		{"one archive under many names", func(t testing.TB) []byte {
			archive := Zip(t, "TASKDATA.XML", "<ISO11783_TaskData/>", "a.zip", string(Zip(t, "TASKDATA.XML", strings.Repeat(" ", 15<<20))))
			var names []string
			for i := range 9000 {
				names = append(names, fmt.Sprintf("a%d.zip", i))
			}
			return repeated(t, archive, names...)
		}, "overlaps"},
	}
}

// gridBombs are in treatment zones and the grids that name them.
func gridBombs() []Bomb {
	return []Bomb{
		{"grids of many zones, and presentations", func(t testing.TB) []byte {
			zones := numbered(50_000, `<TZN A="%d"><PDV A="0001" B="1" E="VPN49999"/></TZN>`)
			grids := strings.Repeat(`<GRD A="1" B="1" C="1" D="1" E="1" F="1" G="GRD00001" I="1"/>`, 20_000) + numbered(50_000, `<GRD A="1" B="1" C="1" D="1" E="1" F="1" G="GRD00001" I="2" J="%d"/>`)
			return Zip(t, "GRD00001.BIN", "xxxx", "TASKDATA.XML", "<ISO11783_TaskData>"+numbered(50_000, `<VPN A="VPN%d" C="1"/>`)+"<TSK>"+zones+grids+"</TSK></ISO11783_TaskData>")
		}, ""},
		{"treatment zones with polygons and ever other values", counted("<TSK>", 60_000,
			`<TZN A="%[1]d"><PDV A="0001" B="1" C="PDT%[1]d" D="DET%[1]d"/><PLN><LSG A="1"><PNT C="1" D="1"/><PNT C="2" D="1"/><PNT C="2" D="2"/></LSG></PLN></TZN>`,
			"</TSK>"), ""},
	}
}

// efdiBombs are in the protobuf form.
func efdiBombs() []Bomb {
	return []Bomb{
		{"EFDI: tasks", func(testing.TB) []byte { return bytes.Repeat([]byte{0xBA, 0x01, 0}, 690_000) }, "more elements than"},
		{"EFDI: logs", func(testing.TB) []byte {
			logs := bytes.Repeat([]byte{0xA2, 0x01, 2, 8, 0}, 400_000)
			return append(protowire.AppendVarint(protowire.AppendTag([]byte{8, 4}, 23, protowire.BytesType), uint64(len(logs))), logs...)
		}, "the limit"},
		{"EFDI: devices", func(testing.TB) []byte { return append([]byte{8, 4}, bytes.Repeat([]byte{0x8A, 0x01, 0}, 600_000)...) }, "more elements than"},
		{"EFDI: entries", func(testing.TB) []byte { return bytes.Repeat([]byte{0x22, 2, 0x22, 0}, 500_000) }, ""},
	}
}

// holes are fields, each with a ring of n places and a hole for every two of them.
func holes(place func(i, n int) (north, east float64), n, fields int) func(testing.TB) []byte {
	const hole = `<LSG A="2"><PNT A="2" C="52.5" D="8.5"/><PNT A="2" C="52.5" D="8.6"/><PNT A="2" C="52.6" D="8.6"/></LSG>`
	return func(t testing.TB) []byte {
		var field strings.Builder
		field.WriteString(`<PLN A="1"><LSG A="1">`)
		for i := range n {
			north, east := place(i, n)
			fmt.Fprintf(&field, `<PNT A="2" C="%.7f" D="%.7f"/>`, north, east)
		}
		field.WriteString("</LSG>" + strings.Repeat(hole, n/2) + "</PLN>")
		return Zip(t, "TASKDATA.XML", "<ISO11783_TaskData>"+numbered(fields, `<PFD A="PFD%d">`+field.String()+"</PFD>")+"</ISO11783_TaskData>")
	}
}

// RouteBombs returns those that are bombs by what routes make of them.
func RouteBombs() []Bomb {
	return []Bomb{
		{"records of one value", func(t testing.TB) []byte {
			return log(t, `<TIM A="" D="4"><PTN A="52" B="8"/><DLV A="0043" B="" C="DET1"/></TIM>`, "\x01\x02\x03\x00\x98\x3a\x01\x00\x01\x00\x00\x00", 21<<20)
		}, ""},
		{"records of five values", func(t testing.TB) []byte {
			header := `<TIM A="" D="4"><PTN A="52" B="8"/>` + strings.Repeat(`<DLV A="0043" B="" C="DET1"/>`, 5) + `</TIM>`
			return log(t, header, "\x01\x02\x03\x00\x98\x3a\x05\x00\x01\x00\x00\x00\x01\x01\x00\x00\x00\x02\x01\x00\x00\x00\x03\x01\x00\x00\x00\x04\x01\x00\x00\x00", 7<<20)
		}, ""},
		{"a long way", func(t testing.TB) []byte { return Archive(t, 150_000) }, ""},
		{"logs of one record", func(t testing.TB) []byte {
			header := strings.Replace(wideHeader, "<DLV", `<PTN A="52" B="8"/><DLV`, 1)
			return Zip(t, append(headers(1100, header, "\x00\x00\x00\x00\x98\x3a\x00"), "TASKDATA.XML", "<ISO11783_TaskData/>")...)
		}, ""},
		{"columns whose names look alike", func(t testing.TB) []byte {
			var files []string
			for i := range 120 {
				header := `<TIM A="" D="4"><PTN A="52" B="8"/>`
				record := "\x00\x00\x00\x00\x98\x3a\xff"
				for j := range 255 {
					n := rune(255*i + j)
					header += `<DLV A="0043" B="" C="` + string('一'+n%20_000) + string('一'+n/20_000) + `"/>`
					record += string([]byte{byte(j), 0, 0, 0, 0})
				}
				files = append(files, fmt.Sprintf("TLG%05d.XML", i), header+"</TIM>", fmt.Sprintf("TLG%05d.BIN", i), record)
			}
			return Zip(t, files...)
		}, ""},
		{"columns of a device with a long name", func(t testing.TB) []byte {
			device := `<ISO11783_TaskData><DVC A="DVC1" B="` + strings.Repeat("x", 1<<20) + `"><DET A="DET1" B="1" C="1" E="0" F="0"/></DVC></ISO11783_TaskData>`
			header := `<TIM A="" D="4"><PTN A="52" B="8"/>` + numbered(255, `<DLV A="%04x" B="" C="DET1"/>`) + `</TIM>`
			record := "\x00\x00\x00\x00\x98\x3a\xff"
			for i := range 255 {
				record += string([]byte{byte(i), 1, 0, 0, 0})
			}
			return Zip(t, append(headers(2, header, record), "TASKDATA.XML", device)...)
		}, ""},
		{"the same record", func(t testing.TB) []byte { return log(t, LogHeader, string(Log(1)), 8_000_000) }, ""},
		{"records of many values", func(t testing.TB) []byte {
			return log(t, wideHeader, "\x01\x01\x01\x01\x01\x01\xff"+strings.Repeat("\x00\x01\x02\x03\x04", 255), 190_000)
		}, ""},
		{"holes in a circle", holes(func(i, n int) (north, east float64) {
			return 52 + math.Sin(2*math.Pi*float64(i)/float64(n)), 8 + math.Cos(2*math.Pi*float64(i)/float64(n))
		}, 100_000, 1), ""},
		{"holes in a zigzag", holes(func(i, n int) (north, east float64) {
			return 52 + float64(i%3)*0.6, 8 + float64(i)/float64(n)
		}, 100_000, 1), ""},
		{"holes in zigzags of many fields", holes(func(i, n int) (north, east float64) {
			return 52 + float64(i%3)*0.6, 8 + float64(i)/float64(n)
		}, 15_000, 9), ""},
		{"a hole for each exterior", counted(`<PFD A="PFD1"><PLN A="1">`, 60_000,
			`<LSG A="1"><PNT A="2" C="52" D="8.%[1]d"/><PNT A="2" C="52" D="8.%[1]d1"/><PNT A="2" C="53" D="8.%[1]d1"/></LSG>`+
				`<LSG A="2"><PNT A="2" C="52.1" D="8"/><PNT A="2" C="52.2" D="8"/><PNT A="2" C="52.2" D="8.1"/></LSG>`, `</PLN></PFD>`), ""},
		{"fields of many points", counted(`<PFD A="PFD1"><PLN A="1"><LSG A="1">`, 400_000, `<PNT A="2" C="52.%06d" D="8"/>`, `</LSG></PLN></PFD>`), ""},
	}
}
