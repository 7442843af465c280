package objects

import (
	"time"

	"github.com/agrimill/agrimill/farmdata"
)

// kind is a kind of objects.
type kind struct {
	new   func() any
	visit func(Form, any)
}

func of[T any](visit func(Form, *T)) kind {
	return kind{func() any { return new(T) }, func(f Form, object any) { visit(f, object.(*T)) }}
}

// New returns a pointer to an object of a kind; nil if there is no such kind.
func New(tag string) any {
	if k, ok := kinds[tag]; ok {
		return k.new()
	}
	return nil
}

// Visit calls the methods of a form for an object of a kind; none if there is no such kind.
func Visit(f Form, tag string, object any) {
	if k, ok := kinds[tag]; ok {
		k.visit(f, object)
	}
}

// identified is what says nothing without an ID.
func identified(f Form, id *string) {
	f.Needs("A")
	f.ID("A", id)
}

// named is what many kinds have.
func named(f Form, id, designator *string) {
	identified(f, id)
	f.Text("B", designator, Required)
}

// texts are optional, and have letters that follow each other.
func texts(f Form, letter rune, list ...*string) {
	for i, text := range list {
		f.Text(string(letter+rune(i)), text, 0)
	}
}

// wholes are numbers of the same use, and have letters that follow each other.
func wholes[T int | int64](f Form, letter rune, use Use, list ...*T) {
	for i, n := range list {
		whole(f, string(letter+rune(i)), n, use)
	}
}

func addressed(f Form, letter rune, o *farmdata.Address) {
	texts(f, letter, &o.Street, &o.POBox, &o.PostalCode, &o.City, &o.State, &o.Country)
}

// kinds are the kinds of objects by the letters that they have in TaskData. It is only read.
var kinds = map[string]kind{
	Root: of(func(f Form, o *farmdata.Set) {
		parts(f, 10, "BSN", &o.BaseStations)
		parts(f, 11, "CCT", &o.Comments)
		parts(f, 12, "CCG", &o.CommentGroups)
		parts(f, 14, "CTP", &o.CropTypes)
		parts(f, 15, "CPC", &o.Practices)
		parts(f, 16, "CTR", &o.Customers)
		parts(f, 17, "DVC", &o.Devices)
		parts(f, 18, "FRM", &o.Farms)
		parts(f, 19, "OTQ", &o.Techniques)
		parts(f, 20, "PFD", &o.Fields)
		parts(f, 21, "PDT", &o.Products)
		parts(f, 22, "PGP", &o.ProductGroups)
		parts(f, 23, "TSK", &o.Tasks)
		parts(f, 25, "VPN", &o.ValuePresentations)
		parts(f, 26, "WKR", &o.Workers)
		parts(f, 0, "LGP", &o.Links)
	}),
	"CCG": of(func(f Form, o *farmdata.CommentGroup) { named(f, &o.ID, &o.Designator) }),
	"CCL": of(func(f Form, o *farmdata.CommentValue) { named(f, &o.ID, &o.Designator) }),
	"OTQ": of(func(f Form, o *farmdata.OperationTechnique) { named(f, &o.ID, &o.Designator) }),
	"CCT": of(func(f Form, o *farmdata.CodedComment) {
		named(f, &o.ID, &o.Designator)
		whole(f, "C", &o.Scope, Small)
		f.Reference("D", "group", "CCG", &o.GroupID)
		parts(f, 5, "CCL", &o.Values)
	}),
	"CPC": of(func(f Form, o *farmdata.CulturalPractice) {
		named(f, &o.ID, &o.Designator)
		parts(f, 3, "OTR", &o.TechniqueIDs)
	}),
	"OTR": of(func(f Form, id *string) {
		f.Needs("A")
		f.Reference("A", "technique", "OTQ", id)
	}),
	"CVT": of(func(f Form, o *farmdata.CropVariety) {
		named(f, &o.ID, &o.Designator)
		f.Reference("C", "product", "PDT", &o.ProductID)
	}),
	"PGP": of(func(f Form, o *farmdata.ProductGroup) {
		named(f, &o.ID, &o.Designator)
		whole(f, "C", &o.Type, Small)
	}),
	"BSN": of(func(f Form, o *farmdata.BaseStation) {
		named(f, &o.ID, &o.Designator)
		f.Place("C", "D", &o.North, &o.East)
		whole(f, "E", &o.Up, 0)
	}),
	"CTP": of(func(f Form, o *farmdata.CropType) {
		named(f, &o.ID, &o.Designator)
		f.Reference("C", "group", "PGP", &o.GroupID)
		parts(f, 4, "CVT", &o.Varieties)
	}),
	"CTR": of(func(f Form, o *farmdata.Customer) {
		named(f, &o.ID, &o.LastName)
		f.Text("C", &o.FirstName, 0)
		addressed(f, 'D', &o.Address)
		texts(f, 'J', &o.Phone, &o.Mobile, &o.Fax, &o.Email)
	}),
	"WKR": of(func(f Form, o *farmdata.Worker) {
		named(f, &o.ID, &o.LastName)
		f.Text("C", &o.FirstName, 0)
		addressed(f, 'D', &o.Address)
		texts(f, 'J', &o.Phone, &o.Mobile, &o.License, &o.Email)
	}),
	"FRM": of(func(f Form, o *farmdata.Farm) {
		named(f, &o.ID, &o.Designator)
		addressed(f, 'C', &o.Address)
		f.Reference("I", "customer", "CTR", &o.CustomerID)
	}),
	"LGP": of(func(f Form, o *farmdata.LinkGroup) {
		f.ID("A", &o.ID)
		whole(f, "B", &o.Type, Small)
		texts(f, 'C', &o.Manufacturer, &o.Namespace, &o.Designator)
		parts(f, 0, "LNK", &o.Links)
	}),
	"LNK": of(func(f Form, o *farmdata.Link) {
		f.Needs("A")
		f.Reference("A", "object", Any, &o.ID)
		f.Text("B", &o.Value, Required)
		f.Text("C", &o.Designator, 0)
	}),
	"PDT": of(func(f Form, o *farmdata.Product) {
		named(f, &o.ID, &o.Designator)
		f.Reference("C", "group", "PGP", &o.GroupID)
		f.Reference("D", "presentation", "VPN", &o.Presentation)
		f.DDI("E", &o.DDI, 0)
		whole(f, "F", &o.Type, Small)
		wholes(f, 'G', Positive, &o.Quantity, &o.MassPerVolume, &o.MassPerCount, &o.VolumePerCount)
		parts(f, 11, "PRN", &o.Parts)
	}),
	"PRN": of(func(f Form, o *farmdata.ProductRelation) {
		f.Reference("A", "product", "PDT", &o.ProductID)
		f.Value("B", &o.Raw, &o.Missing, Required)
	}),
	"VPN": of(func(f Form, o *farmdata.ValuePresentation) {
		identified(f, &o.ID)
		presented(f, &o.Offset, &o.Scale, &o.Decimals)
		f.Text("E", &o.Unit, 0)
	}),
	"DVC": of(func(f Form, o *farmdata.Device) {
		identified(f, &o.ID)
		f.Text("B", &o.Designator, 0)
		f.Text("C", &o.SoftwareVersion, 0)
		f.Text("D", &o.Name, Required|Digits)
		f.Text("E", &o.SerialNumber, 0)
		f.Text("F", &o.StructureLabel, Required)
		f.Text("G", &o.LocalizationLabel, Required)
		parts(f, 8, "DET", &o.Elements)
		parts(f, 9, "DPD", &o.ProcessData)
		parts(f, 10, "DPT", &o.Properties)
		parts(f, 11, "DVP", &o.Presentations)
	}),
	"DET": of(func(f Form, o *farmdata.Element) {
		f.Needs("A", "B")
		f.ID("A", &o.ID)
		whole(f, "B", &o.ObjectID, Small)
		whole(f, "C", &o.Type, Small)
		f.Text("D", &o.Designator, 0)
		wholes(f, 'E', Required|Small, &o.Number, &o.ParentObjectID)
		parts(f, 7, "DOR", &o.Objects)
	}),
	"DOR": of(func(f Form, id *int) {
		f.Needs("A")
		whole(f, "A", id, Required|Small)
	}),
	"DPD": of(func(f Form, o *farmdata.ProcessData) {
		f.Needs("A")
		whole(f, "A", &o.ObjectID, Small)
		f.DDI("B", &o.DDI, Required)
		wholes(f, 'C', Required|Small, &o.Property, &o.Triggers)
		f.Text("E", &o.Designator, 0)
		whole(f, "F", &o.PresentationID, Small)
	}),
	"DPT": of(func(f Form, o *farmdata.Property) {
		f.Needs("A")
		whole(f, "A", &o.ObjectID, Small)
		f.DDI("B", &o.DDI, Required)
		f.Value("C", &o.Value, nil, Required)
		f.Text("D", &o.Designator, 0)
		whole(f, "E", &o.PresentationID, Small)
	}),
	"DVP": of(func(f Form, o *farmdata.Presentation) {
		f.Needs("A")
		whole(f, "A", &o.ObjectID, Small)
		presented(f, &o.Offset, &o.Scale, &o.Decimals)
		f.Text("E", &o.Unit, 0)
	}),
	"PFD": of(func(f Form, o *farmdata.Field) {
		identified(f, &o.ID)
		f.Text("B", &o.Code, 0)
		f.Text("C", &o.Designator, Required)
		whole(f, "D", &o.Area, Required|Positive)
		f.Reference("E", "customer", "CTR", &o.CustomerID)
		f.Reference("F", "farm", "FRM", &o.FarmID)
		f.Reference("G", "crop", "CTP", &o.CropTypeID)
		f.Reference("H", "variety", "CVT", &o.VarietyID)
		f.Reference("I", "parent", "PFD", &o.ParentID)
		parts(f, 10, "PLN", &o.Polygons)
		parts(f, 11, "LSG", &o.Lines)
		parts(f, 12, "PNT", &o.Points)
		parts(f, 13, "GGP", &o.Guidance)
	}),
	"GGP": of(func(f Form, o *farmdata.GuidanceGroup) {
		identified(f, &o.ID)
		f.Text("B", &o.Designator, 0)
		parts(f, 3, "GPN", &o.Patterns)
		parts(f, 4, "PLN", &o.Boundaries)
	}),
	"GPN": of(func(f Form, o *farmdata.GuidancePattern) {
		identified(f, &o.ID)
		f.Text("B", &o.Designator, 0)
		wholes(f, 'C', Small, &o.Type, &o.Options, &o.Propagation, &o.Extension)
		use := Heading
		if o.Type == 2 { // A+ is a point and a heading
			use |= Required
		}
		f.Float("G", &o.Heading, use)
		whole(f, "H", &o.Radius, Positive)
		whole(f, "I", &o.Method, Small)
		f.Float("J", &o.HorizontalAccuracy, 0)
		f.Float("K", &o.VerticalAccuracy, 0)
		f.Reference("L", "base station", "BSN", &o.BaseStationID)
		f.Text("M", &o.SRID, 0)
		wholes(f, 'N', Positive, &o.SwathsLeft, &o.SwathsRight)
		parts(f, 16, "LSG", &o.Lines)
		parts(f, 17, "PLN", &o.Boundaries)
	}),
	"PLN": of(func(f Form, o *farmdata.Polygon) {
		whole(f, "A", &o.Type, Small)
		f.Text("B", &o.Designator, 0)
		whole(f, "C", &o.Area, Positive)
		whole(f, "D", &o.Color, Byte)
		f.ID("E", &o.ID)
		parts(f, 6, "LSG", &o.Rings)
	}),
	"LSG": of(func(f Form, o *farmdata.LineString) {
		whole(f, "A", &o.Type, Small)
		f.Text("B", &o.Designator, 0)
		wholes(f, 'C', Positive, &o.Width, &o.Length)
		whole(f, "E", &o.Color, Byte)
		f.ID("F", &o.ID)
		parts(f, 7, "PNT", &o.Points)
	}),
	"PNT": of(func(f Form, o *farmdata.Point) {
		whole(f, "A", &o.Type, Small)
		f.Text("B", &o.Designator, 0)
		f.Place("C", "D", &o.North, &o.East)
		whole(f, "E", &o.Up, 0)
		whole(f, "F", &o.Color, Byte)
		f.ID("G", &o.ID)
		f.Float("H", &o.HorizontalAccuracy, 0)
		f.Float("I", &o.VerticalAccuracy, 0)
	}),
	"TSK": of(func(f Form, o *farmdata.Task) {
		identified(f, &o.ID)
		f.Text("B", &o.Designator, 0)
		f.Reference("C", "customer", "CTR", &o.CustomerID)
		f.Reference("D", "farm", "FRM", &o.FarmID)
		f.Reference("E", "field", "PFD", &o.FieldID)
		f.Reference("F", "worker", "WKR", &o.WorkerID)
		whole(f, "G", &o.Status, Small)
		wholes(f, 'H', Optional, &o.DefaultZone, &o.LostZone, &o.OutsideZone)
		parts(f, 11, "TZN", &o.Zones)
		parts(f, 12, "TIM", &o.Times)
		parts(f, 13, "OTP", &o.Operations)
		parts(f, 14, "WAN", &o.Workers)
		parts(f, 15, "DAN", &o.Devices)
		parts(f, 16, "CNN", &o.Connections)
		parts(f, 17, "PAN", &o.Products)
		parts(f, 19, "CAN", &o.Comments)
		parts(f, 0, "TLG", &o.LogNames) // logs are in the task itself in EFDI
		f.Parts(21, "GRD", (*pointers[farmdata.Grid])(&o.Grids))
		parts(f, 23, "GAN", &o.Guidance)
	}),
	"TZN": of(func(f Form, o *farmdata.TreatmentZone) {
		f.Needs("A")
		whole(f, "A", &o.Code, Optional)
		f.Text("B", &o.Designator, 0)
		whole(f, "C", &o.Color, Byte)
		parts(f, 4, "PLN", &o.Polygons)
		parts(f, 5, "PDV", &o.Values)
	}),
	"PDV": of(func(f Form, o *farmdata.ZoneValue) {
		f.DDI("A", &o.DDI, Required)
		f.Value("B", &o.Raw, &o.Missing, Required)
		f.Reference("C", "product", "PDT", &o.ProductID)
		f.Reference("D", "device element", "DET", &o.ElementID)
		f.Reference("E", "presentation", "VPN", &o.Presentation)
	}),
	"TIM": of(func(f Form, o *farmdata.TaskTime) {
		f.Stamp("A", &o.Start)
		f.Stamp("B", &o.Stop)
		seconds := o.Duration / time.Second
		whole(f, "C", &seconds, Positive|Small)
		if seconds != o.Duration/time.Second { // it is read
			o.Duration = seconds * time.Second
		}
		whole(f, "D", &o.Type, Small)
		f.Positions(&o.Positions)
		parts(f, 7, "DLV", &o.Totals)
	}),
	"DLV": of(func(f Form, o *farmdata.Total) {
		f.DDI("A", &o.DDI, Required)
		f.Value("B", &o.Raw, nil, Required)
		f.Reference("C", "device element", "DET", &o.ElementID)
	}),
	"OTP": of(func(f Form, o *farmdata.Operation) {
		f.Reference("A", "practice", "CPC", &o.PracticeID)
		f.Reference("B", "technique", "OTQ", &o.TechniqueID)
	}),
	"WAN": of(func(f Form, o *farmdata.WorkerAllocation) {
		f.Reference("A", "worker", "WKR", &o.WorkerID)
		f.Allocated(2, &o.Start, &o.Stop, &o.TimeType)
	}),
	"DAN": of(func(f Form, o *farmdata.DeviceAllocation) {
		f.Text("A", &o.Name, Digits)
		f.Text("B", &o.Mask, Digits)
		f.Reference("C", "device", "DVC", &o.DeviceID)
		f.Allocated(4, &o.Start, &o.Stop, &o.TimeType)
	}),
	"CNN": of(func(f Form, o *farmdata.Connection) {
		f.Reference("A", "device", "DVC", &o.Ends[0].DeviceID)
		f.Reference("B", "device element", "DET", &o.Ends[0].ElementID)
		f.Reference("C", "device", "DVC", &o.Ends[1].DeviceID)
		f.Reference("D", "device element", "DET", &o.Ends[1].ElementID)
	}),
	"PAN": of(func(f Form, o *farmdata.ProductAllocation) {
		f.Reference("A", "product", "PDT", &o.ProductID)
		f.DDI("B", &o.DDI, 0)
		missing := o.DDI == 0 && o.Raw == 0
		f.Value("C", &o.Raw, &missing, 0)
		switch {
		case missing && o.DDI != 0: // it is read, and has no amount
			f.Needs("C")
			o.DDI = 0
		case !missing && o.DDI == 0:
			f.Needs("B")
		}
		whole(f, "D", &o.Mode, Small)
		f.Reference("E", "device element", "DET", &o.ElementID)
		f.Reference("F", "presentation", "VPN", &o.Presentation)
		f.Allocated(8, &o.Start, &o.Stop, &o.TimeType)
	}),
	"CAN": of(func(f Form, o *farmdata.CommentAllocation) {
		f.Reference("A", "comment", "CCT", &o.CommentID)
		f.Reference("B", "value", "CCL", &o.ValueID)
		f.Text("C", &o.Text, 0)
		f.Allocated(4, &o.Start, &o.Stop, &o.TimeType)
	}),
	"GAN": of(func(f Form, o *farmdata.GuidanceAllocation) {
		f.Reference("A", "guidance group", "GGP", &o.GroupID)
		f.Allocated(2, &o.Start, &o.Stop, &o.TimeType)
	}),
	"TLG": of(func(f Form, name *string) {
		f.Needs("A")
		f.File("A", name)
		binary := 1 // which is all that there is
		whole(f, "C", &binary, Small)
	}),
	"GRD": of(func(f Form, o *farmdata.Grid) {
		f.Place("A", "B", &o.North, &o.East)
		f.Float("C", &o.CellNorth, Required)
		f.Float("D", &o.CellEast, Required)
		whole(f, "E", &o.Cols, 0)
		whole(f, "F", &o.Rows, 0)
		f.File("G", &o.Name)
		whole(f, "I", &o.Type, Small)
		whole(f, "J", &o.Zone, Optional)
	}),
}
