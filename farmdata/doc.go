// Package farmdata is one model for the farm data of machines, whichever form it
// comes in: ISO 11783-10 TaskData (package isoxml) and its protobuf form EFDI
// (package efdi). It needs nothing else of agrimill.
//
// A [Set] is what a farm computer and a machine tell each other: tasks, devices,
// fields, and logs. What is small is in memory; logs and grids, which are not, are
// streams that are read when somebody ranges over them:
//
//	for record, err := range log.Records {
//		if err != nil {
//			continue // a *Finding; the stream ends by itself where nothing more can be read
//		}
//		for _, value := range record.Values {
//			use(record.Stamp, record.Position, value.Column.DDI, value.Scaled(), value.Column.Unit)
//		}
//	}
//
// Damaged data is normal. What can be read is returned; what cannot is reported as a
// [Finding] that says what is wrong, in which file, and where. Only data that is
// no farm data at all is an error.
//
// # Time
//
// A binary time log of TaskData has the local time of the machine without saying
// how far that is from UTC. It stays marked as local ([Stamp.Local]): it orders the
// records of one machine and is no instant. Where a position has the UTC of its
// GPS receiver, [Stamp.UTC] has it and [Stamp.Time] prefers it. Times of EFDI are
// instants.
package farmdata
