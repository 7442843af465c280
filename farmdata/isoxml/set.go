package isoxml

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/ids"
	"github.com/agrimill/agrimill/farmdata/internal/objects"
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
		named: map[string]bool{"taskdata": true, "linklist": true}, lengths: map[string]int64{},
	}
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
	r.findUnnamed()
	for _, finding := range r.skipped.findings() {
		r.findings.add(finding)
	}
	r.set.Findings = r.findings.list
	return r.set
}

type setReader struct {
	*opener
	files        folder
	set          *farmdata.Set
	findings     *findings
	descriptions *farmdata.Descriptions
	named        map[string]bool  // external files and grids, in lower case
	lengths      map[string]int64 // of logs, as their tasks say, by name in lower case
	queue        []string         // external files to read
	skipped      *skipped
	rooted       bool // the current file has its root
	foreign      bool // which is not one of TaskData
}

func (r *setReader) find(kind farmdata.Kind, file, detail string) {
	r.findings.add(&farmdata.Finding{Kind: kind, File: file, Offset: -1, Record: -1, Detail: detail})
}

func (r *setReader) walkFile(f file) {
	r.rooted, r.foreign = false, false
	if !r.walk(f, r.findings.add, r.begin, r.end) {
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
	case r.put(objects.Root, &farmdata.Set{}, e.tag, nameless):
		object, _ := r.object(e)
		return object
	default:
		r.skipped.misplaced(e.spot)
	}
	return nil
}

// external notes the file that an XFR element names.
func (r *setReader) external(e *element) {
	e.needs("A")
	name := trimEnding(e.str("A"))
	switch key := strings.ToLower(name); {
	case name == "":
	case r.named[key]:
		e.find(farmdata.KindDuplicate, "external file is named twice")
	default:
		r.named[key] = true
		r.queue = append(r.queue, name)
	}
}

// root takes the outermost element of a file.
func (r *setReader) root(e *element) any {
	switch e.tag {
	case objects.Root:
		s := r.set
		s.Major, s.Minor, s.Origin = e.int("VersionMajor"), e.int("VersionMinor"), e.int("DataTransferOrigin")
		s.Software, s.SoftwareVersion = e.str("ManagementSoftwareManufacturer"), e.str("ManagementSoftwareVersion")
		s.Controller, s.ControllerVersion = e.str("TaskControllerManufacturer"), e.str("TaskControllerVersion")
		r.unasked(e, false)
	case "XFC", "ISO11783LinkList":
	default:
		r.findings.add(&farmdata.Finding{Kind: farmdata.KindUnreadable, File: e.file, Offset: e.offset, Record: -1, Detail: "not the XML of TaskData"})
		r.foreign = true
		return nil
	}
	return r.set
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

var externalFile = regexp.MustCompile(`^(?:([a-z]{3}[0-9]{5})\.xml|(grd[0-9]{5})\.bin)$`)

// findUnnamed finds the external files and grids that nothing names. Logs are read all the same.
func (r *setReader) findUnnamed() {
	for _, key := range slices.Sorted(maps.Keys(r.files)) {
		if match := externalFile.FindStringSubmatch(key); match != nil && !r.named[match[1]+match[2]] && !logFile.MatchString(key) {
			r.find(farmdata.KindUnreadable, r.files[key].path, "nothing names this file: it is left out")
		}
	}
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
