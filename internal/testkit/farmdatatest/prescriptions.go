package farmdatatest

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
)

// Parts of the main file of Prescriptions: a field, products, a spreader that describes its rates, and tasks.
const (
	prescriptionHead = `<?xml version="1.0" encoding="UTF-8"?>
<ISO11783_TaskData VersionMajor="4" VersionMinor="3" ManagementSoftwareManufacturer="maker" DataTransferOrigin="1">
<CTR A="CTR1" B="Miller" C="Ada"/><FRM A="FRM1" B="Hill farm" I="CTR1"/>
<PFD A="PFD1" C="Long acre" D="20000" E="CTR1" F="FRM1"><PLN A="1"><LSG A="1">
<PNT A="2" C="52.5" D="7.5"/><PNT A="2" C="52.5001" D="7.502"/><PNT A="2" C="52.5009" D="7.5021"/><PNT A="2" C="52.5011" D="7.501"/><PNT A="2" C="52.5006" D="7.4998"/>
</LSG></PLN></PFD>
<PDT A="PDT1" B="Urea"/><PDT A="PDT2" B="Winter wheat"/><PDT A="PDT3"/>
<VPN A="VPN1" B="0" C="0.01" D="1" E="kg/ha"/><VPN A="VPN2" B="0" C="0.01" D="1" E="kg/ha"/>
<DVC A="DVC1" B="Spreader" D="a00086000de02812"><DET A="DET1" B="1" C="1" D="Body"><DOR A="10"/></DET>
<DPD A="10" B="0006" C="2" D="8" E="Rate" F="20"/><DVP A="20" B="0" C="0.01" D="1" E="kg/ha"/></DVC>
`
	// TaskGridOfZones has a grid of type 1. Its zones describe the same rate in three ways.
	TaskGridOfZones = `<TSK A="TSK1" B="Base dressing" C="CTR1" D="FRM1" E="PFD1" G="1">` + zonesOfGrid + `</TSK>`
	// TaskGridAgain names the grid of TaskGridOfZones and means the same by it.
	TaskGridAgain = `<TSK A="TSK2" B="Base dressing, rest" E="PFD1" G="1">` + zonesOfGrid + `</TSK>`
	// TaskOtherMeaning names the grid of TaskGridOfZones and means another rate by it.
	TaskOtherMeaning = `<TSK A="TSK5" B="Late dressing" E="PFD1" G="1"><TZN A="1"><PDV A="0006" B="7000" D="DET1"/></TZN><TZN A="2"/><TZN A="3"/>` + grid1 + `</TSK>`
	zonesOfGrid      = `<TZN A="1" B="low"><PDV A="0006" B="12000" C="PDT1" D="DET1"/></TZN><TZN A="2" B="middle"><PDV A="0006" B="16000" C="PDT1" D="DET1" E="VPN1"/></TZN>
<TZN A="3" B="high"><PDV A="0006" B="22000" C="PDT3" D="DET1" E="VPN2"/></TZN>` + grid1
	grid1 = `<GRD A="52.5" B="7.4998" C="0.0001" D="0.0002" E="12" F="11" G="GRD00001" I="1"/>`
	// TaskElsewhere has the grid of TaskGridOfZones. One of its zones is for places without a zone and for a lost position, too, and another
	// one for outside of the field.
	TaskElsewhere = `<TSK A="TSK6" B="Late dressing" E="PFD1" G="1" H="1" I="1" J="9">` + zonesOfGrid +
		`<TZN A="9" B="border"><PDV A="0006" B="0" C="PDT1" D="DET1"/></TZN></TSK>`
	// TaskOneRate has one rate everywhere.
	TaskOneRate = `<TSK A="TSK7" B="Slug pellets" E="PFD1" G="1" H="1"><TZN A="1" B="all"><PDV A="0006" B="50000" C="PDT1" D="DET1"/></TZN></TSK>`
	// TaskGridOfValues has a grid of type 2 with two values in a cell, of two products.
	TaskGridOfValues = `<TSK A="TSK3" B="Sowing" C="CTR1" E="PFD1" G="1"><TZN A="4"><PDV A="0001" B="0" C="PDT2" D="DET1"/><PDV A="0006" B="0" C="PDT1" D="DET1"/></TZN>
<GRD A="52.5" B="7.4998" C="0.0001" D="0.0002" E="12" F="11" G="GRD00002" I="2" J="4"/></TSK>`
	// TaskZones has treatment zones as polygons: one with a hole, one without an amount.
	TaskZones = `<TSK A="TSK4" B="Liming" E="PFD1" G="1">
<TZN A="1" B="west"><PDV A="0006" B="150000" C="PDT3" D="DET1"/><PLN A="2">
<LSG A="1"><PNT A="2" C="52.5001" D="7.5001"/><PNT A="2" C="52.5001" D="7.501"/><PNT A="2" C="52.5009" D="7.501"/><PNT A="2" C="52.5008" D="7.5001"/></LSG>
<LSG A="2"><PNT A="2" C="52.5004" D="7.5004"/><PNT A="2" C="52.5004" D="7.5006"/><PNT A="2" C="52.5005" D="7.5006"/></LSG></PLN></TZN>
<TZN A="2" B="east"><PDV A="0006" B="90000" D="DET1"/><PLN A="2">
<LSG A="1"><PNT A="2" C="52.5002" D="7.501"/><PNT A="2" C="52.5002" D="7.5019"/><PNT A="2" C="52.5008" D="7.5019"/><PNT A="2" C="52.5009" D="7.501"/></LSG></PLN></TZN>
<TZN A="3" B="nothing"><PLN A="2">
<LSG A="1"><PNT A="2" C="52.50095" D="7.5008"/><PNT A="2" C="52.50095" D="7.5012"/><PNT A="2" C="52.50105" D="7.501"/></LSG></PLN></TZN></TSK>`
)

// Prescriptions is TaskData with tasks, such as TaskZones.
func Prescriptions(t testing.TB, tasks ...string) []byte {
	t.Helper()
	codes, values := PrescriptionCells()
	files := []string{"TASKDATA/TASKDATA.XML", prescriptionHead + strings.Join(tasks, "\n") + "</ISO11783_TaskData>"}
	for i, cells := range [][]byte{codes, values} {
		if name := fmt.Sprintf("GRD%05d", i+1); strings.Contains(files[1], name) { // a grid that no task names would be a finding
			files = append(files, "TASKDATA/"+name+".BIN", string(cells))
		}
	}
	return Zip(t, files...)
}

// PrescriptionCells returns the binary files of GRD00001 and GRD00002, 11 rows of 12 cells.
func PrescriptionCells() (codes, values []byte) {
	for row := range 11 {
		for col := range 12 {
			x, y := float64(col)/11, float64(row)/10
			fertility := 0.5 + 0.5*math.Sin(3*x+1)*math.Cos(2*y)
			codes = append(codes, 1+byte(min(2, int(3*fertility))))
			values = binary.LittleEndian.AppendUint32(values, uint32(18000+int32(1000*row)))
			values = binary.LittleEndian.AppendUint32(values, uint32(int32(20000*fertility)-500)) // some are below 0
		}
	}
	return codes, values
}

// Harvest is TaskData with the field and a product of Prescriptions, and a log of a machine that goes up and down the field:
// a yield and a working width each second.
func Harvest(t testing.TB) []byte {
	t.Helper()
	const task = `<TSK A="TSK6" B="Harvest" C="CTR1" D="FRM1" E="PFD1" G="4"><TLG A="TLG00001" C="1"/><PAN A="PDT2"/></TSK>`
	const header = `<TIM A="" D="4"><PTN A="" B="" D=""/><DLV A="0054" B="" C="DET1"/><DLV A="0043" B="" C="DET1"/></TIM>`
	var bin []byte
	const lanes, steps = 16, 40
	for i := range lanes * steps {
		lane, step := i/steps, i%steps
		if lane%2 == 1 {
			step = steps - 1 - step
		}
		x, y := float64(lane)/(lanes-1), float64(step)/(steps-1)
		yield := uint32(700_000 + 250_000*math.Sin(3*x+1)*math.Cos(2*y))
		bin = appendRecord(bin, i, int32(1e7*(52.5002+0.0005*y)), int32(1e7*(7.5002+0.0017*x)), yield, 9000)
	}
	return Zip(t, "TASKDATA/TASKDATA.XML", prescriptionHead+task+"</ISO11783_TaskData>", "TASKDATA/TLG00001.XML", header, "TASKDATA/TLG00001.BIN", string(bin))
}
