package isoxml

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
)

var randomSets = flag.Int("sets", 400, "how many random sets are written and read again")

// What is written of random sets reads equal: everything that the model can have, whatever it may be, and what else it will have.
func TestWriteOfRandomSets(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("with the seed %d", seed)
		}
	})
	for range *randomSets {
		seed++
		set := randomSet(rand.New(rand.NewPCG(seed, 1)))
		var b bytes.Buffer
		testkit.NoError(t, Write(t.Context(), &b, set, WriteConfig{}))
		wantEqual(t, open(t, b.String(), Config{}).Sets[0], set)
	}
}

// randomSet makes a set that has something of everything, or nothing.
func randomSet(rng *rand.Rand) *farmdata.Set {
	set := &farmdata.Set{}
	fill(rng, "", "", reflect.ValueOf(set).Elem())
	set.Path, set.Findings, set.Logs = "", nil, nil
	set.Major, set.Minor = 1+rng.IntN(4), rng.IntN(4)
	descriptions := set.Descriptions()
	grids := 0
	for i := range set.Tasks {
		task := &set.Tasks[i]
		task.LogNames = nil
		for range rng.IntN(3) {
			name := fmt.Sprintf("TLG%05d", len(set.Logs)+1)
			task.LogNames = append(task.LogNames, name)
			set.Logs = append(set.Logs, randomLog(rng, set.Devices, descriptions, name, task.ID))
		}
		zones := &zones{of: task, descriptions: descriptions}
		for j, grid := range task.Grids {
			grids++
			task.Grids[j] = randomGrid(rng, zones, grid, fmt.Sprintf("GRD%05d", grids))
		}
	}
	if rng.IntN(2) == 0 {
		set.Logs = append(set.Logs, randomLog(rng, set.Devices, descriptions, "TLG99999", ""))
	}
	return set
}

// fill gives a value, and all in it, something that it may be. Lists have up to two elements.
func fill(rng *rand.Rand, of, name string, v reflect.Value) {
	if stamp, ok := v.Addr().Interface().(*farmdata.Stamp); ok {
		*stamp = randomStamp(rng)
		return
	}
	if position, ok := v.Addr().Interface().(*farmdata.Position); ok {
		*position = randomPosition(rng)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(rng, v.Type().Name(), v.Type().Field(i).Name, v.Field(i))
		}
		settle(rng, v.Addr().Interface())
	case reflect.Slice:
		if of == "Grid" || of == "Finding" || of == "Log" || name == "Logs" || name == "Findings" {
			return
		}
		list := reflect.MakeSlice(v.Type(), rng.IntN(3), 3)
		for i := range list.Len() {
			fill(rng, of, name, list.Index(i))
		}
		v.Set(list)
	case reflect.Array:
		for i := range v.Len() {
			fill(rng, of, name, v.Index(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(rng, of, name, v.Elem())
	case reflect.String:
		v.SetString(randomText(rng))
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	case reflect.Int:
		v.SetInt(int64(rng.IntN(4)))
	case reflect.Int64:
		v.SetInt(rng.Int64N(1<<rng.IntN(62)) + 1)
	case reflect.Float64:
		v.SetFloat(float64(rng.Int64N(1<<52)) / float64(int64(1)<<rng.IntN(60)))
	case reflect.Uint16:
		v.SetUint(rng.Uint64N(1 << 16))
	}
}

// settle makes of an object what it can be, where its values say so.
func settle(rng *rand.Rand, object any) {
	code := func() int { return rng.IntN(257) - 1 }
	name := func() string { return strings.ToUpper(strconv.FormatUint(rng.Uint64(), 16)) }
	signed := func(n int64) int64 { return n * (1 - 2*rng.Int64N(2)) }
	switch o := object.(type) {
	case *farmdata.Task:
		o.DefaultZone, o.LostZone, o.OutsideZone = code(), code(), code()
	case *farmdata.TaskTime:
		o.Duration = time.Duration(rng.IntN(1e6)) * time.Second
	case *farmdata.TreatmentZone:
		o.Code = code()
	case *farmdata.Total:
		o.Raw = signed(o.Raw)
	case *farmdata.ZoneValue:
		if o.Raw = signed(o.Raw); o.Missing {
			o.Raw = 0
		}
	case *farmdata.ProductRelation:
		if o.Raw = signed(o.Raw); o.Missing {
			o.Raw = 0
		}
	case *farmdata.Device:
		o.Name = name()
	case *farmdata.DeviceAllocation:
		o.Name, o.Mask = name(), name()
	case *farmdata.Element:
		for i := range o.Objects {
			o.Objects[i]++ // 0 is none
		}
	case *farmdata.Presentation:
		o.Decimals, o.Offset = rng.IntN(9)-1, signed(o.Offset)
	case *farmdata.ValuePresentation:
		o.Decimals, o.Offset = rng.IntN(9)-1, signed(o.Offset)
	case *farmdata.Grid:
		o.Type, o.Zone, o.Rows, o.Cols = 1+rng.IntN(2), code(), 1+rng.Int64N(5), 1+rng.Int64N(5)
	}
}

// letters are what texts are made of: what XML has a meaning for, and what is more than a byte.
var letters = []rune("aZ0 äß€😀<>&'\"\t\n\r;=]-#\u0085\u2028\uFFFD")

func randomText(rng *rand.Rand) string {
	runes := make([]rune, rng.IntN(6))
	for i := range runes {
		runes[i] = letters[rng.IntN(len(letters))]
	}
	return strings.TrimSpace(string(runes))
}

func randomStamp(rng *rand.Rand) farmdata.Stamp {
	at := time.UnixMilli(rng.Int64N(4e12)).UTC()
	switch rng.IntN(4) {
	case 0:
		return farmdata.Stamp{}
	case 1:
		return farmdata.Stamp{Wall: at, Local: true}
	case 2:
		return farmdata.Stamp{Wall: at.Add(time.Duration(rng.IntN(1e6)))}
	}
	return farmdata.Stamp{Wall: at.In(time.FixedZone("", 60*(rng.IntN(1440)-720)))}
}

// randomPosition makes a position of a time of a task: any numbers.
func randomPosition(rng *rand.Rand) (p farmdata.Position) {
	p = farmdata.Position{North: rng.NormFloat64(), East: rng.NormFloat64(), Up: rng.Int64N(1 << 40), Status: uint8(rng.IntN(16)), PDOP: rng.Float64(), HDOP: rng.Float64(),
		Satellites: rng.IntN(256), Has: farmdata.PositionField(rng.IntN(128))}
	if p.Has&(farmdata.HasNorth|farmdata.HasEast) != farmdata.HasNorth|farmdata.HasEast {
		p.Has &^= farmdata.HasNorth | farmdata.HasEast // half a place is one that is damaged
	}
	return known(p)
}

// randomLog makes a log of records that share what their positions have; some parts are constant.
func randomLog(rng *rand.Rand, devices []farmdata.Device, descriptions *farmdata.Descriptions, name, task string) *farmdata.Log {
	log := &farmdata.Log{Name: name, TaskID: task}
	for range 1 + rng.IntN(4) {
		c := farmdata.Column{DDI: farmdata.DDI(rng.IntN(1 << 16))}
		if rng.IntN(3) == 0 {
			c.PGN, c.StartBit, c.StopBit = rng.Uint32N(1<<18), uint8(rng.IntN(64)), uint8(rng.IntN(64))
		}
		for _, d := range devices {
			for _, e := range d.Elements {
				if rng.IntN(2) == 0 {
					c.ElementID = e.ID
				}
			}
		}
		descriptions.Describe(&c)
		log.Columns = append(log.Columns, c)
	}
	constant := rng.IntN(2 * len(log.Columns)) // beyond them: none
	if constant < len(log.Columns) {
		log.Constants = []farmdata.Value{{Column: &log.Columns[constant], Raw: rng.Int64() - 1<<62}}
	}
	base := randomPosition(rng)
	utc := rng.IntN(2) == 0
	records := make([]farmdata.Record, 1+rng.IntN(4))
	for i := range records {
		p := base
		for _, part := range []struct {
			has farmdata.PositionField
			set func()
		}{
			{farmdata.HasNorth, func() { p.North = float64(rng.IntN(1800000000)-900000000) / degree }}, {farmdata.HasEast, func() { p.East = float64(rng.Int32()) / degree }},
			{farmdata.HasUp, func() { p.Up = int64(rng.Int32()) }}, {farmdata.HasStatus, func() { p.Status = uint8(rng.IntN(256)) }},
			{farmdata.HasPDOP, func() { p.PDOP = float64(rng.IntN(65535)) / 10 }}, {farmdata.HasHDOP, func() { p.HDOP = float64(rng.IntN(65535)) / 10 }},
			{farmdata.HasSatellites, func() { p.Satellites = rng.IntN(255) }},
		} {
			if p.Has&part.has != 0 && base.Satellites%3 > 0 { // otherwise all are constant
				part.set()
			}
		}
		at := time.UnixMilli(epoch + millisecondsOfDay + rng.Int64N(65000*millisecondsOfDay)).UTC()
		records[i] = farmdata.Record{Number: int64(i), Stamp: farmdata.Stamp{Wall: at, Local: true}, Position: p}
		if utc && rng.IntN(3) > 0 {
			records[i].Stamp.UTC = at.Add(time.Duration(rng.IntN(28*3600)-14*3600) * time.Second)
		}
		for j := range log.Columns {
			if j != constant && rng.IntN(3) > 0 {
				records[i].Values = append(records[i].Values, farmdata.Value{Column: &log.Columns[j], Raw: int64(int32(rng.Uint32()))})
			}
		}
	}
	log.Records = func(yield func(*farmdata.Record, error) bool) {
		for i := range records {
			if !yield(&records[i], nil) {
				return
			}
		}
	}
	return log
}

// randomGrid makes cells for a grid. Without a zone that says what values are it is of type 1.
func randomGrid(rng *rand.Rand, zones *zones, grid *farmdata.Grid, name string) *farmdata.Grid {
	grid.Name = name
	var products []string
	var byCode map[int]farmdata.PrescribedZone
	if grid.Columns, products = zones.columnsOf(grid.Zone); grid.Type == 1 || len(grid.Columns) == 0 {
		grid.Type = 1
		grid.Columns, byCode = zones.prescribed()
	}
	var cells []farmdata.Cell
	for i := range grid.Rows * grid.Cols {
		cell := farmdata.Cell{Row: i / grid.Cols, Col: i % grid.Cols, Zone: grid.Zone, Products: products}
		if grid.Type == 1 {
			cell.Zone = rng.IntN(256)
			for code := range byCode { // in any order
				if code >= 0 && rng.IntN(2) == 0 {
					cell.Zone = code
				}
			}
			cell.Values, cell.Products = byCode[cell.Zone].Amounts, byCode[cell.Zone].Products
		} else {
			for j := range grid.Columns {
				cell.Values = append(cell.Values, farmdata.Value{Column: &grid.Columns[j], Raw: int64(int32(rng.Uint32()))})
			}
		}
		cells = append(cells, cell)
	}
	grid.Cells = func(yield func(*farmdata.Cell, error) bool) {
		for i := range cells {
			if !yield(&cells[i], nil) {
				return
			}
		}
	}
	return grid
}
