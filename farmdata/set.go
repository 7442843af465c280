package farmdata

import (
	"iter"
	"math"
	"time"
)

// Set is the data that belongs together: a TASKDATA.XML and its files, or a message
// of EFDI. Cross references are IDs, as they stand in the data; an empty one
// refers to nothing.
type Set struct {
	// Path is the folder in the archive; empty at its top.
	Path string
	Header

	// What the set is about, in the order of the data.
	Tasks              []Task
	Devices            []Device
	Customers          []Customer
	Farms              []Farm
	Fields             []Field
	Products           []Product
	ProductGroups      []ProductGroup
	CropTypes          []CropType
	Workers            []Worker
	ValuePresentations []ValuePresentation
	Practices          []CulturalPractice
	Techniques         []OperationTechnique
	Comments           []CodedComment
	CommentGroups      []CommentGroup
	BaseStations       []BaseStation
	Links              []LinkGroup
	// Logs are those of the tasks in their order, then those that no task names.
	Logs []*Log
	// Findings are what could not be read, apart from what is inside of logs and
	// grids, which is found when those are read.
	Findings []*Finding
}

// Header is what a set says about itself.
type Header struct {
	// Major and Minor are the version that the data claims.
	Major, Minor int
	// Software and Controller are who made the data: farm software and task controller.
	Software, SoftwareVersion     string
	Controller, ControllerVersion string
	// Origin is who wrote it: 1 farm software, 2 a machine; 0 unknown.
	Origin int
}

// Unread returns the first finding by which something of the set could not be read, apart from what is inside
// of logs and grids; nil if all of it was. With nil, what is empty in the Set is not in the data, and
// whoever looks for something and does not find it may say that it is not there. Otherwise nobody knows.
func (s *Set) Unread() *Finding { return Unread(s.Findings) }

// Task is work to do, or done.
type Task struct {
	ID, Designator                        string
	CustomerID, FarmID, FieldID, WorkerID string
	// Status: 1 planned, 2 running, 3 paused, 4 completed, 5 template, 6 canceled.
	Status int
	// DefaultZone, LostZone and OutsideZone are codes of treatment zones: for places
	// without one, without a position, and outside of the field; -1 if not given.
	DefaultZone, LostZone, OutsideZone int

	// What belongs to the task, in the order of the data.
	Times       []TaskTime
	Zones       []TreatmentZone
	Grids       []*Grid
	Operations  []Operation
	Workers     []WorkerAllocation
	Devices     []DeviceAllocation
	Connections []Connection
	Products    []ProductAllocation
	Comments    []CommentAllocation
	Guidance    []GuidanceAllocation
	// LogNames are the names of its logs.
	LogNames []string
}

// TaskTime is a span of a task, with its totals.
type TaskTime struct {
	Start, Stop Stamp
	Duration    time.Duration
	// Type: 1 planned, 2 preliminary, 4 effective, 5 ineffective, 6 repair, 7 clearing, 8 powered down.
	Type int
	// Positions are where it began and ended.
	Positions []Position
	// Totals are the values at its end.
	Totals []Total
}

// Total is a value that stands in a task, not in a log.
type Total struct {
	DDI       DDI
	ElementID string
	Raw       int64
}

// TreatmentZone is what to apply where.
type TreatmentZone struct {
	// Code is -1 if it is missing or cannot be read: no cell of a grid means the zone then.
	Code       int
	Designator string
	Color      Color
	Values     []ZoneValue
	Polygons   []Polygon
}

// ZoneValue is an amount to apply.
type ZoneValue struct {
	DDI DDI
	Raw int64
	// Missing says that the amount is missing or cannot be read. Raw is 0 then.
	Missing                            bool
	ProductID, ElementID, Presentation string
}

// DeviceAllocation is a device at work in a task. For how long, if an allocation says it beside Start or instead of Stop, is not
// read, which is a finding.
type DeviceAllocation struct {
	// Name is the ISO 11783 NAME, 16 hexadecimal digits; Mask says which bits of it count.
	Name, Mask  string
	DeviceID    string
	Start, Stop Stamp
	// TimeType is what Start and Stop are: 1 planned, 4 effective; 0 unknown.
	TimeType int
}

// ProductAllocation is a product used in a task.
type ProductAllocation struct {
	ProductID, ElementID, Presentation string
	// DDI and Raw are the amount; DDI is 0 if none is given.
	DDI DDI
	Raw int64
	// Mode: 1 filling, 2 emptying, 3 remainder.
	Mode        int
	Start, Stop Stamp
	// TimeType is what Start and Stop are: 1 planned, 4 effective; 0 unknown.
	TimeType int
}

// GuidanceAllocation is a group of guidance patterns used in a task.
type GuidanceAllocation struct {
	GroupID     string
	Start, Stop Stamp
	// TimeType is what Start and Stop are: 1 planned, 4 effective; 0 unknown.
	TimeType int
}

// Grid is a prescription map of equal cells, from the south west: Rows to the north,
// Cols to the east.
type Grid struct {
	// Type 1 has the code of a treatment zone in each cell, type 2 has values.
	Type int
	// North and East are the south west corner, CellNorth and CellEast the size of a
	// cell, in degrees. What is missing or cannot be read is 0, and of half a corner both are.
	North, East, CellNorth, CellEast float64
	Rows, Cols                       int64
	// Name is the file name without its ending, e.g. "GRD00001".
	Name string
	// Zone is the code of the zone that says what the values of type 2 are; -1 if not given.
	Zone int
	// Columns describe the values of the cells.
	Columns []Column
	// Cells reads the cells row by row from the south west, as Log.Records reads
	// records; the same rules hold.
	Cells iter.Seq2[*Cell, error] `json:"-"`
}

// Valid reports whether the grid has a place that can be on Earth: a south west corner, cells, of a size, and
// a north east corner, which may be beyond the 180th meridian.
func (g *Grid) Valid() bool {
	return g.Rows > 0 && g.Cols > 0 && g.CellNorth > 0 && g.CellEast > 0 && Point{North: g.North, East: g.East}.Valid() &&
		g.North+float64(g.Rows)*g.CellNorth <= 90 && float64(g.Cols)*g.CellEast <= 360
}

// Corner returns the south west corner of a cell, which the row and the column may be next to the last ones of.
func (g *Grid) Corner(row, col int64) (north, east float64) {
	const rounding = 1e-9
	north, east = g.North+float64(row)*g.CellNorth, g.East+float64(col)*g.CellEast
	switch {
	case math.Abs(east-180) < rounding:
		return north, 180
	case east > 180:
		return north, east - 360
	}
	return north, east
}

// Cell is a cell of a Grid.
type Cell struct {
	Row, Col int64
	// Zone is the code of the treatment zone: of the cell in type 1, of the grid in type 2.
	Zone int
	// Values are those of the cell in type 2, those of its zone in type 1.
	Values []Value
	// Products are the IDs of what the Values are of, one for each, empty where none is named; nil if the zone names none.
	Products []string
}

// Device is a machine and how it describes itself.
type Device struct {
	ID, Designator  string
	SoftwareVersion string
	// Name is the ISO 11783 NAME, 16 hexadecimal digits.
	Name                              string
	SerialNumber                      string
	StructureLabel, LocalizationLabel string

	// How the device describes itself.
	Elements      []Element
	ProcessData   []ProcessData
	Properties    []Property
	Presentations []Presentation
}

// Element is a part of a device.
type Element struct {
	ID       string
	ObjectID int
	// Type: 1 device, 2 function, 3 bin, 4 section, 5 unit, 6 connector, 7 navigation.
	Type           int
	Designator     string
	Number         int
	ParentObjectID int
	// Objects are the object IDs of its process data and properties; 0 is none.
	Objects []int
}

// ProcessData is a value that a device measures or takes.
type ProcessData struct {
	ObjectID   int
	DDI        DDI
	Property   int
	Triggers   int
	Designator string
	// PresentationID is the object ID of a Presentation; 0 means none.
	PresentationID int
}

// Property is a value of a device that does not change.
type Property struct {
	ObjectID   int
	DDI        DDI
	Value      int64
	Designator string
	// PresentationID is the object ID of a Presentation; 0 means none.
	PresentationID int
}

// Presentation is how to show a value: (raw + Offset) * Scale, in Unit.
type Presentation struct {
	ObjectID int
	Offset   int64
	// Scale is 0 if offset or scale is missing or cannot be read. The presentation says nothing then.
	Scale float64
	// Decimals is -1 if unknown.
	Decimals int
	Unit     string
}

// ValuePresentation is a Presentation that is no device's.
type ValuePresentation struct {
	ID     string
	Offset int64
	// Scale and Decimals are as those of Presentation.
	Scale    float64
	Decimals int
	Unit     string
}

// Address is where somebody lives.
type Address struct{ Street, POBox, PostalCode, City, State, Country string }

// Customer is who the work is done for.
type Customer struct {
	ID, LastName, FirstName string
	Address
	Phone, Mobile, Fax, Email string
}

// Farm is a farm.
type Farm struct {
	ID, Designator, CustomerID string
	Address
}

// Worker is who works.
type Worker struct {
	ID, LastName, FirstName string
	Address
	Phone, Mobile, License, Email string
}

// BaseStation is where corrections of positions come from.
type BaseStation struct {
	ID, Designator string
	// North, East and Up are as those of Point.
	North, East float64
	Up          int64
}

// Product is something that is applied or harvested.
type Product struct {
	ID, Designator, GroupID, Presentation string
	// DDI is what quantities of it are in.
	DDI DDI
	// Type: 1 single, 2 mixture, 3 mixture for the time being; 0 unknown.
	Type int
	// Quantity is how much of a mixture its Parts make, in DDI; 0 if not given.
	Quantity int64
	// MassPerVolume is in mg/l, MassPerCount in mg/1000, VolumePerCount in ml/1000; 0 if not given.
	MassPerVolume, MassPerCount, VolumePerCount int64
	// Parts are those of a mixture.
	Parts []ProductRelation
}

// ProductGroup is a kind of products.
type ProductGroup struct {
	ID, Designator string
	// Type: 1 products, 2 crops; 0 unknown.
	Type int
}

// CropType is a crop with its varieties.
type CropType struct {
	ID, Designator, GroupID string
	Varieties               []CropVariety
}

// CropVariety is a variety of a crop.
type CropVariety struct{ ID, Designator, ProductID string }

// Field is a field, or a part of one.
type Field struct {
	ID, Code, Designator string
	// Area is in square meters; 0 if not given.
	Area                  int64
	CustomerID, FarmID    string
	CropTypeID, VarietyID string
	// ParentID is the field that this one is part of.
	ParentID string

	// Where it is, and the lines to drive along.
	Polygons []Polygon
	Lines    []LineString
	Points   []Point
	Guidance []GuidanceGroup
}

// Color is one of the palette of ISO 11783-6; 0 is black, or not given.
type Color uint8

// Polygon is an area.
type Polygon struct {
	ID string
	// Type: 1 field boundary, 2 treatment zone, 3 water, 4 building, 5 road, 6 obstacle,
	// 7 flag, 8 other, 9 main field, 10 headland, 11 buffer zone, 12 windbreak.
	Type       int
	Designator string
	// Area is in square meters; 0 if not given.
	Area  int64
	Color Color
	// Rings are its outlines: LineString.Type 1 exterior, 2 interior.
	Rings []LineString
}

// LineString is a line.
type LineString struct {
	ID string
	// Type: 1 exterior and 2 interior of a polygon, 3 tram line, 4 sampling route, 5
	// guidance pattern, 6 drainage, 7 fence, 8 flag, 9 obstacle.
	Type       int
	Designator string
	// Width and Length are in millimeters; 0 if not given.
	Width, Length int64
	Color         Color
	Points        []Point
}

// Point is a place on the map.
type Point struct {
	ID string
	// Type: 1 flag, 2 other, 3 field access, 4 storage, 5 obstacle, 6 guidance A, 7
	// guidance B, 8 guidance center, 9 guidance point, 10 field reference, 11 home base.
	Type       int
	Designator string
	// North and East are degrees of WGS 84, both 0 if one of them is missing or cannot be read.
	North, East float64
	// Up is millimeters above the ellipsoid; 0 if not given.
	Up    int64
	Color Color
	// HorizontalAccuracy and VerticalAccuracy are in meters; 0 if not given.
	HorizontalAccuracy, VerticalAccuracy float64
}

// Valid reports whether the point has a place that can be on Earth, as Position.Valid does.
func (p Point) Valid() bool {
	return Position{North: p.North, East: p.East, Has: HasNorth | HasEast}.Valid()
}

// GuidanceGroup is guidance patterns that belong together.
type GuidanceGroup struct {
	ID, Designator string
	Patterns       []GuidancePattern
	Boundaries     []Polygon
}

// GuidancePattern is lines to drive along.
type GuidancePattern struct {
	ID, Designator string
	// Type: 1 AB, 2 A+, 3 curve, 4 pivot, 5 spiral.
	Type int
	// Heading is in degrees, north being 360; Radius in millimeters; 0 if not given.
	Heading float64
	Radius  int64
	// Options: 1 clockwise, 2 counterclockwise, 3 full circle. Propagation: 1 both sides, 2 left, 3 right, 4 none. Extension: 1 both
	// ends, 2 the first point, 3 the last one, 4 none. 0 is unknown in each.
	Options, Propagation, Extension int
	// Method is how positions were made: 1 to 8 as Position.Status, 16 at a desk, 17 otherwise; 0 unknown.
	Method int
	// HorizontalAccuracy and VerticalAccuracy are in meters; 0 if not given.
	HorizontalAccuracy, VerticalAccuracy float64
	// BaseStationID is where corrections came from, SRID what the data was in.
	BaseStationID, SRID string
	// SwathsLeft and SwathsRight are how many there are; 0 if not given.
	SwathsLeft, SwathsRight int64
	// Lines are what to drive along, Boundaries where.
	Lines      []LineString
	Boundaries []Polygon
}

// LinkGroup is IDs of one other system.
type LinkGroup struct {
	ID string
	// Type: 1 UUID, 2 manufacturer's, 3 URIs that resolve, 4 URIs that do not.
	Type int
	// Manufacturer is the GLN of who made the IDs; Namespace what they begin with.
	Manufacturer, Namespace, Designator string
	Links                               []Link
}

// Link is the ID that something has in another system.
type Link struct{ ID, Value, Designator string }
