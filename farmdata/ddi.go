package farmdata

import (
	"errors"
	"fmt"
	"strconv"
)

// DDI is a data dictionary identifier of ISO 11783-11: what a value measures.
type DDI uint16

// DDIs with a meaning of their own.
const (
	// DDIDefaultData asks for the values that a device finds worth logging.
	DDIDefaultData DDI = 0xDFFF
	// DDIPGN stands for bits of a CAN message, see Column.PGN.
	DDIPGN DDI = 0xDFFE
	// DDIUnknown stands for a DDI that is missing or cannot be read. The data dictionary reserves it.
	DDIUnknown DDI = 0xFFFF
)

// ParseDDI reads up to four hexadecimal digits.
func ParseDDI(text string) (DDI, error) {
	n, err := strconv.ParseUint(text, 16, 16)
	if err != nil {
		return 0, errors.New("not a DDI of up to four hexadecimal digits")
	}
	return DDI(n), nil
}

// String returns four hexadecimal digits, as DDIs stand in TaskData.
func (d DDI) String() string { return fmt.Sprintf("%04X", uint16(d)) }

// Proprietary reports whether the DDI means what its manufacturer says.
func (d DDI) Proprietary() bool { return d >= 0xE000 && d <= 0xFFFE }

// Meaning is what the data dictionary says about a DDI.
type Meaning struct {
	// Name is in English.
	Name string
	// Unit is what raw values times Scale are in; empty for numbers without one.
	Unit string
	// Scale is the resolution.
	Scale float64
}

// Meaning returns what the data dictionary says. The table has the DDIs that field
// data commonly has; ok is false for others, which stay numbers.
//
// The facts are those of the data dictionary of ISO 11783-11 that VDMA publishes
// at https://www.isobus.net/isobus/dDEntity.
func (d DDI) Meaning() (m Meaning, ok bool) {
	m, ok = dictionary[d]
	return m, ok
}

// dictionary is only read.
var dictionary = makeDictionary()

func makeDictionary() map[DDI]Meaning {
	table := map[DDI]Meaning{}
	// Many entries come in fives.
	for _, five := range []struct {
		first DDI
		what  string
		unit  string
		scale float64
	}{
		{0x0001, "volume per area application rate", "mm³/m²", 0.01},
		{0x0006, "mass per area application rate", "mg/m²", 1},
		{0x000B, "count per area application rate", "/m²", 0.001},
		{0x0010, "spacing application rate", "mm", 1},
		{0x0015, "volume per volume application rate", "mm³/m³", 1},
		{0x001A, "mass per mass application rate", "mg/kg", 1},
		{0x001F, "volume per mass application rate", "mm³/kg", 1},
		{0x0024, "volume per time application rate", "mm³/s", 1},
		{0x0029, "mass per time application rate", "mg/s", 1},
		{0x002E, "count per time application rate", "/s", 0.001},
		{0x0033, "tillage depth", "mm", 1},
		{0x0038, "seeding depth", "mm", 1},
		{0x003D, "working height", "mm", 1},
		{0x0042, "working width", "mm", 1},
		{0x0065, "bale width", "mm", 1},
		{0x006A, "bale height", "mm", 1},
		{0x006F, "bale size", "mm", 1},
	} {
		for i, which := range []string{"Setpoint", "Actual", "Default", "Minimum", "Maximum"} {
			table[five.first+DDI(i)] = Meaning{which + " " + five.what, five.unit, five.scale}
		}
	}
	for i := range DDI(16) { // sections, sixteen at a time
		sections := fmt.Sprintf("condensed work state, sections %d to %d", 16*i+1, 16*i+16)
		table[0x00A1+i] = Meaning{"Actual " + sections, "", 1}
		table[0x0122+i] = Meaning{"Setpoint " + sections, "", 1}
	}
	for ddi, meaning := range map[DDI]Meaning{
		0x0000: {"Data dictionary version", "", 1},
		0x0047: {"Setpoint volume content", "ml", 1},
		0x0048: {"Actual volume content", "ml", 1},
		0x0049: {"Maximum volume content", "ml", 1},
		0x004A: {"Setpoint mass content", "g", 1},
		0x004B: {"Actual mass content", "g", 1},
		0x004C: {"Maximum mass content", "g", 1},
		0x0050: {"Total volume applied", "L", 1},
		0x0051: {"Total mass applied", "kg", 1},
		0x0052: {"Total count applied", "#", 1},
		0x0053: {"Volume per area yield", "ml/m²", 1},
		0x0054: {"Mass per area yield", "mg/m²", 1},
		0x0055: {"Count per area yield", "/m²", 0.001},
		0x0056: {"Volume per time yield", "ml/s", 1},
		0x0057: {"Mass per time yield", "mg/s", 1},
		0x0058: {"Count per time yield", "/s", 0.001},
		0x0059: {"Total yield, volume", "L", 1},
		0x005A: {"Total yield, mass", "kg", 1},
		0x005B: {"Total yield, count", "#", 1},
		0x0062: {"Crop loss", "ppm", 1},
		0x0063: {"Crop moisture", "ppm", 1},
		0x0064: {"Crop contamination", "ppm", 1},
		0x0074: {"Total area", "m²", 1},
		0x0075: {"Effective total distance", "mm", 1},
		0x0076: {"Ineffective total distance", "mm", 1},
		0x0077: {"Effective total time", "s", 1},
		0x0078: {"Ineffective total time", "s", 1},
		0x0079: {"Product density, mass per volume", "mg/l", 1},
		0x0086: {"Device element offset X", "mm", 1},
		0x0087: {"Device element offset Y", "mm", 1},
		0x0088: {"Device element offset Z", "mm", 1},
		0x0089: {"Device volume capacity", "ml", 1},
		0x008A: {"Device mass capacity", "g", 1},
		0x008B: {"Device count capacity", "#", 1},
		0x008C: {"Setpoint percentage application rate", "ppm", 1},
		0x008D: {"Actual work state", "", 1},
		0x0090: {"Yaw angle", "°", 0.001},
		0x0091: {"Roll angle", "°", 0.001},
		0x0092: {"Pitch angle", "°", 0.001},
		0x0093: {"Log count", "", 1},
		0x0094: {"Total fuel consumption", "ml", 1},
		0x0095: {"Fuel consumption per time", "mm³/s", 1},
		0x0096: {"Fuel consumption per area", "mm³/m²", 1},
		0x0097: {"Area per time", "mm²/s", 1},
		0x0099: {"Actual normalized difference vegetation index (NDVI)", "", 0.001},
		0x009A: {"Physical object length", "mm", 1},
		0x009B: {"Physical object width", "mm", 1},
		0x009C: {"Physical object height", "mm", 1},
		0x009D: {"Connector type", "", 1},
		0x009E: {"Prescription control state", "", 1},
		0x009F: {"Number of sub-units per section", "#", 1},
		0x00A0: {"Section control state", "", 1},
		0x00B1: {"Actual length of cut", "mm", 0.001},
		0x00B3: {"Actual cultural practice", "", 1},
		0x00B5: {"Dry mass per area yield", "mg/m²", 1},
		0x00B6: {"Dry mass per time yield", "mg/s", 1},
		0x00B7: {"Total yield, dry mass", "kg", 1},
		0x00C0: {"Ambient temperature", "mK", 1},
		0x00C2: {"Actual product pressure", "Pa", 0.1},
		0x00CD: {"Section control turn on time", "ms", 1},
		0x00CE: {"Section control turn off time", "ms", 1},
		0x00CF: {"Wind speed", "mm/s", 1},
		0x00D0: {"Wind direction", "°", 1},
		0x00D4: {"Last bale average moisture", "ppm", 1},
		0x00D6: {"Lifetime bale count", "#", 1},
		0x00D7: {"Lifetime working hours", "h", 0.05},
		0x00DA: {"Setpoint bale compression plunger load", "ppm", 1},
		0x00DB: {"Actual bale compression plunger load", "ppm", 1},
		0x00DF: {"Last bale mass", "g", 1},
		0x00E5: {"Actual net weight", "g", 1},
		0x00FE: {"Setpoint separation fan speed", "/s", 0.001},
		0x00FF: {"Actual separation fan speed", "/s", 0.001},
		0x0102: {"Hydraulic oil temperature", "mK", 1},
		0x0105: {"Average yield mass per time", "mg/s", 1},
		0x0106: {"Average crop moisture", "ppm", 1},
		0x0107: {"Average yield mass per area", "mg/m²", 1},
		0x010A: {"Lifetime total mass applied", "kg", 1},
		0x010D: {"Lifetime total yield, mass", "kg", 1},
		0x010F: {"Lifetime total area", "m²", 1},
		0x0110: {"Lifetime effective total distance", "m", 1},
		0x0111: {"Lifetime ineffective total distance", "m", 1},
		0x0112: {"Lifetime effective total time", "s", 1},
		0x0113: {"Lifetime ineffective total time", "s", 1},
		0x0114: {"Lifetime fuel consumption", "L", 0.5},
		0x0115: {"Lifetime average fuel consumption per time", "mm³/s", 1},
		0x0116: {"Lifetime average fuel consumption per area", "mm³/m²", 1},
		0x011B: {"Precut total count", "#", 1},
		0x011C: {"Uncut total count", "#", 1},
		0x011D: {"Lifetime precut total count", "#", 1},
		0x011E: {"Lifetime uncut total count", "#", 1},
		0x0121: {"Setpoint work state", "", 1},
		0x0134: {"Actual percentage application rate", "ppm", 1},
		0x013A: {"Actual crop dry matter", "ppm", 1},
		0x013B: {"Average crop dry matter", "ppm", 1},
		0x013C: {"Effective total fuel consumption", "ml", 1},
		0x013D: {"Ineffective total fuel consumption", "ml", 1},
		0x0140: {"Last loaded weight", "g", 1},
		0x0141: {"Last unloaded weight", "g", 1},
		0x0144: {"Chopper engagement total time", "s", 1},
		0x014B: {"Actual cutting drum speed", "/s", 0.001},
		0x014F: {"Front PTO hours", "s", 1},
		0x0150: {"Rear PTO hours", "s", 1},
		0x015A: {"Actual swathing width", "mm", 1},
		0x015E: {"Function or operation technique", "", 1},
		0x015F: {"Total volume applied, fine", "ml", 1},
		0x0160: {"Total mass applied, fine", "g", 1},
		0x0161: {"Total nitrogen applied", "g", 1},
		0x0163: {"Total phosphorus applied", "g", 1},
		0x0164: {"Total potassium applied", "g", 1},
		0x0165: {"Total dry matter applied", "kg", 1},
		0x0168: {"Last bale size", "mm", 1},
		0x0169: {"Last bale density", "mg/l", 1},
		0x016B: {"Last bale dry mass", "g", 1},
		0x018A: {"Actual fuel tank content", "ml", 1},
		0x018C: {"Setpoint speed", "mm/s", 1},
		0x018D: {"Actual speed", "mm/s", 1},
		0x0190: {"Speed source", "", 1},
		0x0196: {"Actual protein content", "ppm", 1},
		0x0197: {"Average protein content", "ppm", 1},
		0x01AC: {"Loaded total mass", "kg", 1},
		0x01AD: {"Unloaded total mass", "kg", 1},
		0x01CB: {"Unloaded total count", "#", 1},
		0x01E3: {"Setpoint engine speed", "r/min", 0.0001},
		0x01E4: {"Actual engine speed", "r/min", 0.0001},
		0x01EC: {"Total engine hours", "h", 0.05},
		0x01ED: {"Lifetime engine hours", "h", 0.1},
		0x0202: {"GNSS quality", "", 1},
		0x021D: {"Actual PTO speed", "r/min", 0.0001},
		0x024D: {"Actual volume per area application rate, coarse", "ml/m²", 0.1},
		0x0255: {"Total distance", "mm", 1},
		0x0256: {"Lifetime total distance", "m", 1},
		DDIPGN: {"Bits of a CAN message (PGN)", "", 1},
		DDIDefaultData: {
			"Default process data", "", 1},
	} {
		table[ddi] = meaning
	}
	return table
}
