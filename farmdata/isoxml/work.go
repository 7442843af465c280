package isoxml

import (
	"math"

	"github.com/agrimill/agrimill/farmdata"
)

// beginWork makes what says how work is done, by whom, and with what.
func beginWork(e *element) any {
	switch e.tag {
	case "PRN":
		e.needs("B")
		raw, ok := e.whole("B", math.MinInt64, math.MaxInt64)
		return &farmdata.ProductRelation{ProductID: e.str("A"), Raw: raw, Missing: !ok}
	case "CPC":
		return &farmdata.CulturalPractice{ID: e.str("A"), Designator: e.str("B")}
	case "OTR":
		id := e.str("A")
		return &id
	case "OTQ":
		return &farmdata.OperationTechnique{ID: e.str("A"), Designator: e.str("B")}
	case "CCT":
		return &farmdata.CodedComment{ID: e.str("A"), Designator: e.str("B"), Scope: e.int("C"), GroupID: e.str("D")}
	case "CCL":
		return &farmdata.CommentValue{ID: e.str("A"), Designator: e.str("B")}
	case "CCG":
		return &farmdata.CommentGroup{ID: e.str("A"), Designator: e.str("B")}
	case "OTP":
		return &farmdata.Operation{PracticeID: e.str("A"), TechniqueID: e.str("B")}
	case "WAN":
		return &farmdata.WorkerAllocation{WorkerID: e.str("A")}
	case "CNN":
		return &farmdata.Connection{Ends: [2]farmdata.ConnectionEnd{{DeviceID: e.str("A"), ElementID: e.str("B")}, {DeviceID: e.str("C"), ElementID: e.str("D")}}}
	default: // CAN
		return &farmdata.CommentAllocation{CommentID: e.str("A"), ValueID: e.str("B"), Text: e.str("C")}
	}
}
