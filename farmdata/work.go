package farmdata

// CulturalPractice is a kind of work, such as sowing.
type CulturalPractice struct {
	ID, Designator string
	// TechniqueIDs are the techniques that it may be done with.
	TechniqueIDs []string
}

// OperationTechnique is a way to do work.
type OperationTechnique struct{ ID, Designator string }

// Operation is what is done in a task, and how.
type Operation struct{ PracticeID, TechniqueID string }

// ProductRelation is a part of a mixture.
type ProductRelation struct {
	ProductID string
	// Raw is how much of the product is in Product.Quantity of the mixture, in the DDI of the product.
	Raw int64
	// Missing says that the amount is missing or cannot be read. Raw is 0 then.
	Missing bool
}

// WorkerAllocation is a worker at work in a task.
type WorkerAllocation struct {
	WorkerID    string
	Start, Stop Stamp
	// TimeType is what Start and Stop are: 1 planned, 4 effective; 0 unknown.
	TimeType int
}

// Connection is two devices of a task that are connected.
type Connection struct{ Ends [2]ConnectionEnd }

// ConnectionEnd is a connector of a device.
type ConnectionEnd struct{ DeviceID, ElementID string }

// CodedComment is a comment that workers choose.
type CodedComment struct {
	ID, Designator string
	// Scope: 1 a point in time, 2 all of the task, 3 from a start to a stop.
	Scope   int
	GroupID string
	Values  []CommentValue
}

// CommentValue is one of the answers of a CodedComment.
type CommentValue struct{ ID, Designator string }

// CommentGroup is coded comments that belong together.
type CommentGroup struct{ ID, Designator string }

// CommentAllocation is a comment on a task: a coded one, with or without one of its values, or Text.
type CommentAllocation struct {
	CommentID, ValueID, Text string
	Start, Stop              Stamp
	// TimeType is what Start and Stop are: 1 planned, 4 effective; 0 unknown.
	TimeType int
}
