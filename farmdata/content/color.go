package content

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/farmdata/internal/names"
	"github.com/agrimill/agrimill/farmdata/internal/tracks"
)

// Color has WriteSVG draw tracks in the colors of values, a yield map for example, with a legend. It reads the logs of the data,
// whose summary s is, once more. Of values that fit column twice in a record the first counts. Long tracks have means
// of neighboring values, and fewer parts. The error is that of ctx, or of column.
func (s *Summary) Color(ctx context.Context, data *Data, column geo.Column) error {
	if err := column.Validate(); err != nil {
		return fmt.Errorf("content: %w", err)
	}
	for i, set := range data.Sets {
		known := names.New(set)
		for _, log := range set.Logs {
			r, err := colored(ctx, log, column)
			if err != nil {
				return err
			}
			if r.about = about(known, known.Log(log, false)); r.Count > 0 {
				s.Sets[i].rates = append(s.Sets[i].rates, r)
			}
		}
	}
	return nil
}

// colored returns the parts of a track with their values.
func colored(ctx context.Context, log *farmdata.Log, column geo.Column) (r rates, err error) {
	keys := geo.Keys{Select: []geo.Column{column}}
	r = rates{name: log.Name, lines: true}
	r.Min, r.Max = math.Inf(1), math.Inf(-1)
	var t trail
	for record, err := range log.WithConstants() {
		var finding *farmdata.Finding
		switch {
		case errors.As(err, &finding):
			continue // which the summary has
		case err != nil:
			return r, err
		}
		if record.Number%256 == 0 && ctx.Err() != nil {
			return r, ctx.Err()
		}
		if !record.Position.Valid() {
			continue
		}
		rate := math.NaN()
		for _, v := range record.Values {
			if key := keys.Key(v.Column); key != nil {
				rate = key.Value(v)
				r.DDI, r.Name, r.Unit = v.Column.DDI.String(), v.Column.Name, key.Unit
				break
			}
		}
		if t.add(latLon{record.Position.North, record.Position.East}, record.Stamp, rate) {
			r.Count++
			r.Min, r.Max = min(r.Min, rate), max(r.Max, rate)
		}
	}
	for _, p := range t.parts {
		r.areas = append(r.areas, area{[][]latLon{{p.from, p.to}}, p.sum / float64(p.count)})
	}
	return r, ctx.Err()
}

// trail is a track in parts, each with a mean of values; it has at most maxPlaces parts.
type trail struct {
	steps tracks.Steps
	at    latLon
	parts []stretch
}

type stretch struct {
	from, to latLon
	sum      float64
	count    int
}

// add adds a place with what was measured on the way to it, and reports whether that is on the map.
func (t *trail) add(at latLon, stamp farmdata.Stamp, rate float64) bool {
	from := t.at
	t.at = at
	if begins := t.steps.Next(stamp, at.north, at.east, jump); begins || math.IsNaN(rate) || math.IsInf(rate, 0) {
		return false
	}
	t.parts = append(t.parts, stretch{from, at, rate, 1})
	if len(t.parts) < maxPlaces {
		return true
	}
	kept := t.parts[:0]
	for i := 0; i+1 < len(t.parts); i += 2 {
		p, next := t.parts[i], t.parts[i+1]
		if next.from == p.to { // both become one; otherwise the second is left out
			p.to, p.sum, p.count = next.to, p.sum+next.sum, p.count+next.count
		}
		kept = append(kept, p)
	}
	t.parts = kept
	return true
}
