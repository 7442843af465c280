// Package identitytest checks the rules of docs/identity.md with random programs: sends, records of a
// broker, repetitions, chunks, redeliveries, lost acknowledgements, kills, other filters and transforms, poisonings, drops
// and replays. An oracle, which shares no code with the router, knows from the ledger alone what has
// to be stored, how often, and what may be. The mutants break one rule each and have to be found.
package identitytest
