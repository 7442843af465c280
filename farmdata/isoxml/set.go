package isoxml

import (
	"math"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/ids"
)

// readSet reads the set in a folder; nil if there is none.
func (o *opener) readSet(dir string, files folder) *farmdata.Set {
	main, isSet := files["taskdata.xml"]
	logs := logNames(files)
	if !isSet && len(logs) == 0 {
		return nil
	}
	r := &setReader{
		opener: o, skipped: &skipped{}, files: files, set: &farmdata.Set{Path: dir}, findings: &findings{max: o.cfg.MaxFindings, memory: &o.budget.memory},
		externals: map[string]bool{"taskdata": true, "linklist": true},
	}
	r.walker = walker{o, r.findings.add}
	if isSet {
		r.walkFile(main)
		for i := 0; i < len(r.queue); i++ { // grows while it is read
			r.readExternal(r.queue[i])
		}
	} else {
		r.find(farmdata.KindMissing, path.Join(dir, "TASKDATA.XML"), "")
	}
	if list, ok := files["linklist.xml"]; ok {
		r.walkFile(list)
	}
	r.descriptions = r.set.Descriptions()
	for _, finding := range ids.Check(r.ctx, r.set, nil) {
		finding.File = main.path
		r.findings.add(finding)
	}
	r.addLogs(logs)
	r.addGrids()
	for _, finding := range r.skipped.findings() {
		r.findings.add(finding)
	}
	r.set.Findings = r.findings.list
	return r.set
}

type setReader struct {
	*opener
	walker
	files        folder
	set          *farmdata.Set
	findings     *findings
	descriptions *farmdata.Descriptions
	externals    map[string]bool // external files that were named
	queue        []string        // external files to read
	skipped      *skipped
	rooted       bool // the current file has its root
	foreign      bool // which is not one of TaskData
}

func (r *setReader) find(kind farmdata.Kind, file, detail string) {
	r.findings.add(&farmdata.Finding{Kind: kind, File: file, Offset: -1, Record: -1, Detail: detail})
}

func (r *setReader) walkFile(f file) {
	r.rooted, r.foreign = false, false
	if !r.walk(f, r.begin, r.end) {
		r.find(farmdata.KindUnreadable, f.path, "no XML in it")
	}
}

// readExternal reads a file that a part of the set is in.
func (r *setReader) readExternal(name string) {
	f, ok := r.files[strings.ToLower(name)+".xml"]
	if !ok {
		r.find(farmdata.KindMissing, path.Join(r.set.Path, name+".XML"), "external file")
		return
	}
	r.walkFile(f)
}

// begin makes the object that an element stands for; nil for what is not read.
func (r *setReader) begin(parent any, e *element) any {
	if !r.rooted {
		r.rooted = true
		return r.root(e)
	}
	if parent != nil {
		object, known := r.object(e)
		if !known {
			r.skipped.unread(e.spot)
		}
		return object
	}
	if r.foreign {
		return nil // which is said
	}
	// In an element that is not read nothing is, but what needs no other one.
	nameless, known := r.object(&element{spot: e.spot, report: func(*farmdata.Finding) {}})
	switch {
	case !known:
		r.skipped.unread(e.spot)
	case nameless != nil && addToSet(&farmdata.Set{}, nameless):
		object, _ := r.object(e)
		return object
	default:
		r.skipped.misplaced(e.spot)
	}
	return nil
}

// identifiers are the attributes by which objects are known to each other, or to what they name.
var identifiers = map[string][]string{
	"CTR": {"A"}, "FRM": {"A"}, "WKR": {"A"}, "PDT": {"A"}, "PGP": {"A"}, "CTP": {"A"}, "CVT": {"A"}, "VPN": {"A"}, "LNK": {"A"}, "XFR": {"A"},
	"DVC": {"A"}, "DET": {"A", "B"}, "DOR": {"A"}, "DPD": {"A"}, "DPT": {"A"}, "DVP": {"A"},
	"CPC": {"A"}, "OTQ": {"A"}, "OTR": {"A"}, "CCT": {"A"}, "CCL": {"A"}, "CCG": {"A"},
	"PFD": {"A"}, "GGP": {"A"}, "GPN": {"A"}, "TSK": {"A"}, "TZN": {"A"}, "TLG": {"A"},
}

// object makes the object that an element stands for; nil if it says nothing. known is false for elements that
// are not read.
func (r *setReader) object(e *element) (object any, known bool) {
	e.needs(identifiers[e.tag]...)
	switch e.tag {
	case "XFR":
		r.external(e)
		return nil, true
	case "AFE": // the list of links is read, whether it is named or not
		return nil, strings.EqualFold(e.str("A"), "LINKLIST.XML")
	case "CTR":
		return &farmdata.Customer{ID: e.str("A"), LastName: e.str("B"), FirstName: e.str("C")}, true
	case "FRM":
		return &farmdata.Farm{ID: e.str("A"), Designator: e.str("B"), CustomerID: e.str("I")}, true
	case "WKR":
		return &farmdata.Worker{ID: e.str("A"), LastName: e.str("B"), FirstName: e.str("C")}, true
	case "PDT":
		return &farmdata.Product{ID: e.str("A"), Designator: e.str("B"), GroupID: e.str("C"), Presentation: e.str("D"), DDI: e.ddi("E"),
			Type: e.int("F"), Quantity: e.amount("G")}, true
	case "PGP":
		return &farmdata.ProductGroup{ID: e.str("A"), Designator: e.str("B")}, true
	case "CTP":
		return &farmdata.CropType{ID: e.str("A"), Designator: e.str("B")}, true
	case "CVT":
		return &farmdata.CropVariety{ID: e.str("A"), Designator: e.str("B")}, true
	case "VPN":
		v := &farmdata.ValuePresentation{ID: e.str("A"), Unit: e.str("E")}
		v.Offset, v.Scale, v.Decimals = e.presentation()
		return v, true
	case "LGP":
		return &farmdata.LinkGroup{ID: e.str("A"), Type: e.int("B"), Manufacturer: e.str("C"), Namespace: e.str("D"), Designator: e.str("E")}, true
	case "LNK":
		return &farmdata.Link{ID: e.str("A"), Value: e.str("B"), Designator: e.str("C")}, true
	case "DVC", "DET", "DOR", "DPD", "DPT", "DVP":
		return beginDevice(e), true
	case "PFD", "PLN", "LSG", "PNT", "GGP", "GPN":
		return r.beginGeometry(e), true
	case "PRN", "CPC", "OTR", "OTQ", "CCT", "CCL", "CCG", "OTP", "WAN", "CNN", "CAN":
		return beginWork(e), true
	default:
		return beginTask(e)
	}
}

// external notes the file that an XFR element names.
func (r *setReader) external(e *element) {
	name := trimEnding(e.str("A"))
	switch key := strings.ToLower(name); {
	case name == "":
	case r.externals[key]:
		e.find(farmdata.KindDuplicate, "external file is named twice")
	default:
		r.externals[key] = true
		r.queue = append(r.queue, name)
	}
}

// root takes the outermost element of a file.
func (r *setReader) root(e *element) any {
	switch e.tag {
	case "ISO11783_TaskData":
		s := r.set
		s.Major, s.Minor, s.Origin = e.int("VersionMajor"), e.int("VersionMinor"), e.int("DataTransferOrigin")
		s.Software, s.SoftwareVersion = e.str("ManagementSoftwareManufacturer"), e.str("ManagementSoftwareVersion")
		s.Controller, s.ControllerVersion = e.str("TaskControllerManufacturer"), e.str("TaskControllerVersion")
	case "XFC", "ISO11783LinkList":
	default:
		r.findings.add(&farmdata.Finding{Kind: farmdata.KindUnreadable, File: e.file, Offset: e.offset, Record: -1, Detail: "not the XML of TaskData"})
		r.foreign = true
		return nil
	}
	return r.set
}

func beginDevice(e *element) any {
	switch e.tag {
	case "DVC":
		return &farmdata.Device{ID: e.str("A"), Designator: e.str("B"), SoftwareVersion: e.str("C"), Name: strings.ToUpper(e.str("D")),
			SerialNumber: e.str("E"), StructureLabel: e.str("F"), LocalizationLabel: e.str("G")}
	case "DET":
		return &farmdata.Element{ID: e.str("A"), ObjectID: e.int("B"), Type: e.int("C"), Designator: e.str("D"), Number: e.int("E"), ParentObjectID: e.int("F")}
	case "DOR":
		if id := e.int("A"); id != 0 {
			return &id
		}
		return nil
	case "DPD":
		return &farmdata.ProcessData{ObjectID: e.int("A"), DDI: e.measure("B"), Property: e.int("C"), Triggers: e.int("D"), Designator: e.str("E"), PresentationID: e.int("F")}
	case "DPT":
		return beginProperty(e)
	default: // DVP
		p := &farmdata.Presentation{ObjectID: e.int("A"), Unit: e.str("E")}
		p.Offset, p.Scale, p.Decimals = e.presentation()
		return p
	}
}

// beginProperty leaves a property out that has no value.
func beginProperty(e *element) any {
	e.needs("C")
	value, ok := e.whole("C", math.MinInt64, math.MaxInt64)
	if !ok {
		return nil
	}
	return &farmdata.Property{ObjectID: e.int("A"), DDI: e.measure("B"), Value: value, Designator: e.str("D"), PresentationID: e.int("E")}
}

func (r *setReader) beginGeometry(e *element) any {
	switch e.tag {
	case "PFD":
		return &farmdata.Field{ID: e.str("A"), Code: e.str("B"), Designator: e.str("C"), Area: e.amount("D"), CustomerID: e.str("E"), FarmID: e.str("F"),
			CropTypeID: e.str("G"), VarietyID: e.str("H"), ParentID: e.str("I")}
	case "PLN":
		return &farmdata.Polygon{Type: e.int("A"), Designator: e.str("B"), Area: e.amount("C"), ID: e.str("E")}
	case "LSG":
		return &farmdata.LineString{Type: e.int("A"), Designator: e.str("B"), ID: e.str("F")}
	case "PNT":
		if e.str("J") != "" {
			e.find(farmdata.KindUnreadable, "points in a binary file, which is not read; have them sent as XML")
			return nil
		}
		p := &farmdata.Point{Type: e.int("A"), Designator: e.str("B"), Up: e.int64("E"), ID: e.str("G")}
		p.North, p.East = e.place("C", "D")
		return p
	case "GGP":
		return &farmdata.GuidanceGroup{ID: e.str("A"), Designator: e.str("B")}
	default: // GPN
		heading, _ := e.float("G")
		return &farmdata.GuidancePattern{ID: e.str("A"), Designator: e.str("B"), Type: e.int("C"), Heading: heading, Radius: e.amount("H")}
	}
}

// logRef is a TLG element.
type logRef struct{ name string }

func beginTask(e *element) (object any, known bool) {
	switch e.tag {
	case "TSK":
		return &farmdata.Task{ID: e.str("A"), Designator: e.str("B"), CustomerID: e.str("C"), FarmID: e.str("D"), FieldID: e.str("E"), WorkerID: e.str("F"),
			Status: e.int("G"), DefaultZone: e.optional("H"), LostZone: e.optional("I"), OutsideZone: e.optional("J")}, true
	case "TIM":
		duration, _ := e.whole("C", 0, int64(math.MaxInt64/time.Second))
		return &farmdata.TaskTime{Start: e.stamp("A"), Stop: e.stamp("B"), Duration: time.Duration(duration) * time.Second, Type: e.int("D")}, true
	case "DLV":
		return beginTotal(e), true
	case "PTN":
		h := positionHeader(e)
		return &h.fixed, true
	case "TZN", "PDV", "GRD":
		return beginPrescription(e), true
	case "DAN":
		return &farmdata.DeviceAllocation{Name: strings.ToUpper(e.str("A")), Mask: strings.ToUpper(e.str("B")), DeviceID: e.str("C")}, true
	case "PAN":
		p := &farmdata.ProductAllocation{ProductID: e.str("A"), DDI: e.ddi("B"), Mode: e.int("D"), ElementID: e.str("E"), Presentation: e.str("F")}
		var ok bool
		if p.Raw, ok = e.whole("C", math.MinInt64, math.MaxInt64); !ok {
			p.DDI = 0 // no amount
		}
		return p, true
	case "GAN":
		return &farmdata.GuidanceAllocation{GroupID: e.str("A")}, true
	case "ASP":
		return &allocationStamp{e.stamp("A"), e.stamp("B"), e.int("D")}, true
	case "TLG":
		return &logRef{trimEnding(e.str("A"))}, true
	}
	return nil, false
}

// beginTotal leaves a total out that has no value.
func beginTotal(e *element) any {
	e.needs("B")
	raw, ok := e.whole("B", math.MinInt64, math.MaxInt64)
	if !ok {
		return nil
	}
	return &farmdata.Total{DDI: e.measure("A"), Raw: raw, ElementID: e.str("C")}
}

func beginPrescription(e *element) any {
	switch e.tag {
	case "TZN":
		return &farmdata.TreatmentZone{Code: e.optional("A"), Designator: e.str("B")}
	case "PDV":
		e.needs("B")
		raw, ok := e.whole("B", math.MinInt64, math.MaxInt64)
		return &farmdata.ZoneValue{DDI: e.measure("A"), Raw: raw, Missing: !ok, ProductID: e.str("C"), ElementID: e.str("D"), Presentation: e.str("E")}
	default: // GRD
		e.needs("C", "D")
		grid := &farmdata.Grid{Cols: e.int64("E"), Rows: e.int64("F"), Name: trimEnding(e.str("G")), Type: e.int("I"), Zone: e.optional("J")}
		grid.North, grid.East = e.place("A", "B")
		grid.CellNorth, _ = e.float("C")
		grid.CellEast, _ = e.float("D")
		return grid
	}
}

type allocationStamp struct {
	start, stop farmdata.Stamp
	kind        int
}

// end puts an object where it belongs, wherever it is. One that belongs to what is not around it is left out.
func (r *setReader) end(parent, object any, at spot) {
	switch {
	case object == nil || object == any(r.set) || parent != nil && put(parent, object):
	case addToSet(r.set, object):
		r.skipped.orphan(at)
	default:
		r.skipped.misplaced(at)
	}
}

// put puts an object into what is around it, and reports whether it belongs there.
func put(parent, object any) bool {
	switch p := parent.(type) {
	case *farmdata.Set:
		return addToSet(p, object)
	case *farmdata.Task:
		return addToTask(p, object)
	case *farmdata.Device:
		return addToDevice(p, object)
	case *farmdata.CropType:
		return appendTo(&p.Varieties, object)
	case *farmdata.LinkGroup:
		return appendTo(&p.Links, object)
	case *farmdata.Product:
		return appendTo(&p.Parts, object)
	case *farmdata.CulturalPractice:
		return appendTo(&p.TechniqueIDs, object)
	case *farmdata.CodedComment:
		return appendTo(&p.Values, object)
	case *farmdata.Element:
		return appendTo(&p.Objects, object)
	case *farmdata.TaskTime:
		return appendTo(&p.Totals, object) || appendTo(&p.Positions, object)
	case *farmdata.TreatmentZone:
		return appendTo(&p.Values, object) || appendTo(&p.Polygons, object)
	case *farmdata.WorkerAllocation:
		return setStamps(&p.Start, &p.Stop, &p.TimeType, object)
	case *farmdata.DeviceAllocation:
		return setStamps(&p.Start, &p.Stop, &p.TimeType, object)
	case *farmdata.CommentAllocation:
		return setStamps(&p.Start, &p.Stop, &p.TimeType, object)
	case *farmdata.ProductAllocation:
		return setStamps(&p.Start, &p.Stop, &p.TimeType, object)
	case *farmdata.GuidanceAllocation:
		return setStamps(&p.Start, &p.Stop, &p.TimeType, object)
	case *farmdata.Field:
		return appendTo(&p.Polygons, object) || appendTo(&p.Lines, object) || appendTo(&p.Points, object) || appendTo(&p.Guidance, object)
	case *farmdata.Polygon:
		return appendTo(&p.Rings, object)
	case *farmdata.LineString:
		return appendTo(&p.Points, object)
	case *farmdata.GuidanceGroup:
		return appendTo(&p.Patterns, object) || appendTo(&p.Boundaries, object)
	case *farmdata.GuidancePattern:
		return appendTo(&p.Lines, object) || appendTo(&p.Boundaries, object)
	}
	return false
}

// appendTo appends an object, and returns true, if it is of the type of the list.
func appendTo[T any](list *[]T, object any) bool {
	o, ok := object.(*T)
	if ok {
		*list = append(*list, *o)
	}
	return ok
}

// setStamps takes the first stamp of an allocation, which has one.
func setStamps(start, stop *farmdata.Stamp, kind *int, object any) bool {
	stamps, ok := object.(*allocationStamp)
	if !ok || !start.IsZero() || !stop.IsZero() {
		return false
	}
	*start, *stop, *kind = stamps.start, stamps.stop, stamps.kind
	return true
}

func addToSet(s *farmdata.Set, object any) bool {
	return appendTo(&s.Tasks, object) || appendTo(&s.Devices, object) || appendTo(&s.Customers, object) ||
		appendTo(&s.Farms, object) || appendTo(&s.Fields, object) || appendTo(&s.Products, object) || appendTo(&s.ProductGroups, object) ||
		appendTo(&s.CropTypes, object) || appendTo(&s.Workers, object) || appendTo(&s.ValuePresentations, object) || appendTo(&s.Links, object) ||
		appendTo(&s.Practices, object) || appendTo(&s.Techniques, object) || appendTo(&s.Comments, object) || appendTo(&s.CommentGroups, object)
}

func addToTask(t *farmdata.Task, object any) bool {
	switch o := object.(type) {
	case *farmdata.Grid:
		t.Grids = append(t.Grids, o)
		return true
	case *logRef:
		if o.name != "" {
			t.LogNames = append(t.LogNames, o.name)
		}
		return true
	}
	return appendTo(&t.Times, object) || appendTo(&t.Zones, object) || appendTo(&t.Devices, object) || appendTo(&t.Products, object) ||
		appendTo(&t.Guidance, object) || appendTo(&t.Operations, object) || appendTo(&t.Workers, object) || appendTo(&t.Connections, object) || appendTo(&t.Comments, object)
}

func addToDevice(d *farmdata.Device, object any) bool {
	return appendTo(&d.Elements, object) || appendTo(&d.ProcessData, object) || appendTo(&d.Properties, object) || appendTo(&d.Presentations, object)
}

var logFile = regexp.MustCompile(`^(tlg[0-9]+)\.(bin|xml)$`)

// logNames returns the names of all logs of which there is a file, sorted.
func logNames(files folder) (names []string) {
	for name := range files {
		if match := logFile.FindStringSubmatch(name); match != nil {
			names = append(names, match[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// addLogs opens the logs of the tasks, then the others.
func (r *setReader) addLogs(present []string) {
	seen := map[string]bool{}
	for _, task := range r.set.Tasks {
		for _, name := range task.LogNames {
			key := strings.ToLower(name)
			if seen[key] {
				r.find(farmdata.KindDuplicate, path.Join(r.set.Path, name), "log is named twice")
				continue
			}
			seen[key] = true
			r.set.Logs = append(r.set.Logs, r.openLog(name, task.ID))
		}
	}
	for _, key := range present {
		if !seen[key] {
			name := strings.ToUpper(key)
			r.find(farmdata.KindOrphan, path.Join(r.set.Path, name), "no task names this log")
			r.set.Logs = append(r.set.Logs, r.openLog(name, ""))
		}
	}
}

// trimEnding takes the ending from a file name that should have none.
func trimEnding(name string) string {
	switch strings.ToLower(path.Ext(name)) {
	case ".xml", ".bin":
		return name[:len(name)-4]
	}
	return name
}
