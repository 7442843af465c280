// Package farm lets routes understand what they carry: filters that look into TaskData and
// EFDI, and transforms that decode them. Nothing of it is in the way of what cannot be read:
// such a message is no match for a filter, or one, as configured, goes through a transform as it is, and is never
// poisoned for that.
//
// What a transform makes has the metadata of the message received, a type and a file name of its own, and [KeySourceType]; without an event type it has
// no context ID, which is that of a payload then. The same payload for the same endpoint makes the same messages with the same UUIDs. A payload
// that cannot be read passes as it is, with [KeyReadable], and what is made of one that can be read in part has it, too; [NewTaskData] refuses
// it. Errors of constructors match [ErrConfig]; a transform otherwise only fails if it cannot get a payload that is elsewhere.
package farm
