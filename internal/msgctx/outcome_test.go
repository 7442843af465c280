package msgctx

import "testing"

func TestNack(t *testing.T) {
	var nack Nack
	for _, step := range []struct{ want, outcome Outcome }{
		{Acked, Nacked}, {SetAside, SetAside}, {Acked, SetAside}, {Left, Left}, {Nacked, Nacked},
	} {
		nack.Want(step.want)
		if got := nack.Outcome(); got != step.outcome {
			t.Errorf("after Want(%v) a nack means %v, want %v", step.want, got, step.outcome)
		}
	}
}
