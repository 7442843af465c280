package efdi

import (
	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
)

func convertProduct(v *efdipb.Product) farmdata.Product {
	product := farmdata.Product{ID: id("PDT", v.GetId()), Designator: v.GetDesignator(), GroupID: id("PGP", v.GetProductGroup()),
		Presentation: id("VPN", v.GetValuePresentation()), DDI: ddi(v.GetDdi()), Type: int(v.GetType()), Quantity: v.GetQuantity()}
	for _, part := range v.GetRelation() {
		product.Parts = append(product.Parts, farmdata.ProductRelation{ProductID: id("PDT", part.GetProduct()), Raw: part.GetValue()})
	}
	return product
}

// convertWork converts how work may be done, and the comments that workers choose.
func convertWork(s *farmdata.Set, d *efdipb.TaskData) {
	for _, v := range d.GetCulturalPractice() {
		practice := farmdata.CulturalPractice{ID: id("CPC", v.GetId()), Designator: v.GetDesignator()}
		for _, reference := range v.GetReference() {
			practice.TechniqueIDs = append(practice.TechniqueIDs, id("OTQ", reference.GetTechnique()))
		}
		s.Practices = append(s.Practices, practice)
	}
	for _, v := range d.GetOperationTechnique() {
		s.Techniques = append(s.Techniques, farmdata.OperationTechnique{ID: id("OTQ", v.GetId()), Designator: v.GetDesignator()})
	}
	for _, v := range d.GetCodedComment() {
		comment := farmdata.CodedComment{ID: id("CCT", v.GetId()), Designator: v.GetDesignator(), Scope: int(v.GetScope()), GroupID: id("CCG", v.GetGroup())}
		for _, value := range v.GetValue() {
			comment.Values = append(comment.Values, farmdata.CommentValue{ID: id("CCL", value.GetId()), Designator: value.GetDesignator()})
		}
		s.Comments = append(s.Comments, comment)
	}
	for _, v := range d.GetCodedCommentGroup() {
		s.CommentGroups = append(s.CommentGroups, farmdata.CommentGroup{ID: id("CCG", v.GetId()), Designator: v.GetDesignator()})
	}
}

func convertWorkOfTask(task *farmdata.Task, v *efdipb.Task) {
	if v := v.GetOperation(); v != nil {
		task.Operations = []farmdata.Operation{{PracticeID: id("CPC", v.GetPractice()), TechniqueID: id("OTQ", v.GetTechnique())}}
	}
	for _, v := range v.GetWorkerAllocation() {
		start, stop, kind := stamps(v.GetStamp())
		task.Workers = append(task.Workers, farmdata.WorkerAllocation{WorkerID: id("WKR", v.GetWorker()), Start: start, Stop: stop, TimeType: kind})
	}
	for _, v := range v.GetConnection() {
		task.Connections = append(task.Connections, farmdata.Connection{Ends: [2]farmdata.ConnectionEnd{
			{DeviceID: id("DVC", v.GetDevice_0()), ElementID: id("DET", v.GetElement_0())}, {DeviceID: id("DVC", v.GetDevice_1()), ElementID: id("DET", v.GetElement_1())}}})
	}
	for _, v := range v.GetCommentAllocation() {
		start, stop, kind := stamps(v.GetStamp())
		task.Comments = append(task.Comments, farmdata.CommentAllocation{CommentID: id("CCT", v.GetComment()), ValueID: id("CCL", v.GetValue()), Text: v.GetText(), Start: start, Stop: stop, TimeType: kind})
	}
}

func encodeProduct(v farmdata.Product) *efdipb.Product {
	product := &efdipb.Product{Id: uid("PDT", v.ID), Designator: valid(v.Designator), ProductGroup: uid("PGP", v.GroupID),
		ValuePresentation: uid("VPN", v.Presentation), Ddi: uint32(v.DDI), Type: int32(v.Type), Quantity: v.Quantity}
	for _, part := range v.Parts {
		product.Relation = append(product.Relation, &efdipb.ProductRelation{Product: uid("PDT", part.ProductID), Value: part.Raw})
	}
	return product
}

func encodeWork(d *efdipb.TaskData, set *farmdata.Set) {
	for _, v := range set.Practices {
		practice := &efdipb.CulturalPractice{Id: uid("CPC", v.ID), Designator: valid(v.Designator)}
		for _, technique := range v.TechniqueIDs {
			practice.Reference = append(practice.Reference, &efdipb.OperationTechniqueReference{Technique: uid("OTQ", technique)})
		}
		d.CulturalPractice = append(d.CulturalPractice, practice)
	}
	for _, v := range set.Techniques {
		d.OperationTechnique = append(d.OperationTechnique, &efdipb.OperationTechnique{Id: uid("OTQ", v.ID), Designator: valid(v.Designator)})
	}
	for _, v := range set.Comments {
		comment := &efdipb.CodedComment{Id: uid("CCT", v.ID), Designator: valid(v.Designator), Scope: int32(v.Scope), Group: uid("CCG", v.GroupID)}
		for _, value := range v.Values {
			comment.Value = append(comment.Value, &efdipb.CodedCommentListValue{Id: uid("CCL", value.ID), Designator: valid(value.Designator)})
		}
		d.CodedComment = append(d.CodedComment, comment)
	}
	for _, v := range set.CommentGroups {
		d.CodedCommentGroup = append(d.CodedCommentGroup, &efdipb.CodedCommentGroup{Id: uid("CCG", v.ID), Designator: valid(v.Designator)})
	}
}

func (c EncodeConfig) workOfTask(t *efdipb.Task, v farmdata.Task) {
	if len(v.Operations) > 0 {
		t.Operation = &efdipb.OperTechPractice{Practice: uid("CPC", v.Operations[0].PracticeID), Technique: uid("OTQ", v.Operations[0].TechniqueID)}
	}
	for _, a := range v.Workers {
		t.WorkerAllocation = append(t.WorkerAllocation, &efdipb.WorkerAllocation{Worker: uid("WKR", a.WorkerID), Stamp: c.stamp(a.Start, a.Stop, a.TimeType)})
	}
	for _, a := range v.Connections {
		one, other := a.Ends[0], a.Ends[1]
		t.Connection = append(t.Connection, &efdipb.Connection{Device_0: uid("DVC", one.DeviceID), Element_0: uid("DET", one.ElementID),
			Device_1: uid("DVC", other.DeviceID), Element_1: uid("DET", other.ElementID)})
	}
	for _, a := range v.Comments {
		t.CommentAllocation = append(t.CommentAllocation, &efdipb.CommentAllocation{Comment: uid("CCT", a.CommentID), Value: uid("CCL", a.ValueID),
			Text: valid(a.Text), Stamp: c.stamp(a.Start, a.Stop, a.TimeType)})
	}
}
