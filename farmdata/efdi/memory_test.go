package efdi

import "runtime"

// inUse is what is in use after everything else was collected.
func inUse() int {
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return int(memory.HeapInuse)
}
