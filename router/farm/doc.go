// Package farm lets routes understand what they carry: filters that look into TaskData and
// EFDI, and transforms that decode them. Nothing of it is in the way of what cannot be read:
// such a message is no match for a filter, or one, as configured, goes through a transform as it is, and is never
// poisoned for that.
package farm
