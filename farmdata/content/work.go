package content

import (
	"context"

	"github.com/agrimill/agrimill/farmdata"
)

// From is where a figure is from.
type From string

// Where figures are from.
const (
	// FromTotals is the totals, or the times, that the machine's terminal wrote into the task.
	FromTotals From = "totals"
	// FromLog is the records of the logs: positions, times, working widths and work states.
	FromLog From = "log"
	// FromBoth is a sum of both.
	FromBoth From = "both"
)

// Work is what a machine did in a task.
type Work struct {
	// Task and Field are empty for logs that no task names, Device for values that no device describes.
	Task   Named `json:"task,omitzero"`
	Field  Named `json:"field,omitzero"`
	Device Named `json:"device,omitzero"`
	// Products are those allocated to the machine in the task.
	Products []Named `json:"products"`
	// Area is what was worked in square meters, what was worked twice counted twice. Distance is meters and Time
	// seconds, both at work.
	Area     Figure `json:"area,omitzero"`
	Distance Figure `json:"distance,omitzero"`
	Time     Figure `json:"time,omitzero"`
	// Incomplete says that a log could not be read to its end, has no width for the beginning of the way, or no position for more than a minute
	// of work, so what is from the log lacks something.
	Incomplete bool `json:"incomplete,omitempty"`
	// Works is how many works it is the sum of; 0 if it is no sum.
	Works int `json:"works,omitempty"`
	// Rates are what was applied, harvested or lost, and what fuel it took. A finding of the set names rates of its logs that are not summed
	// up, such as percentages.
	Rates []Rate `json:"rates"`

	task taskKey
	area float64 // of the logs
	log  int     // the number of that which the machine was in, with those that it drove with; 0: of none
}

// Figure is a number and where it is from. It is not known if From is empty.
type Figure struct {
	Value float64 `json:"value"`
	From  From    `json:"from"`
}

// Rate is an amount by area, distance or time: how much on average, and how much in all.
type Rate struct {
	DDI     string `json:"ddi"`
	Name    string `json:"name"`
	Element string `json:"element,omitempty"`
	// Products are those allocated to the device element. Several, also one after the other, share Mean and Total: nothing says how
	// much was of which.
	Products []Named `json:"products"`
	// Mean is in Unit: of a rate by area that of the area worked, of one by time that of all time. A rate by area that is from
	// the log has neither Mean nor Total without a working width, even if the terminal wrote the area.
	Mean Figure `json:"mean,omitzero"`
	Unit string `json:"unit"`
	// Total is in TotalUnit. It is not known for a part of a machine whose width is not known.
	Total     Figure `json:"total,omitzero"`
	TotalUnit string `json:"total_unit"`

	rateAmount
}

// rateAmount is what a Rate shows, in the SI.
type rateAmount struct {
	column, total *farmdata.Column
	amount        float64
	by            float64 // area or time; 0: not known
	shared        bool    // by is that of the machine, not of a part of it
	whole         bool    // the amount is all of it
	inner         bool    // in another device element that has the rate
}

// show makes Mean and Total. mean is the part of the amount that by is known for.
func (r *Rate) show(mean float64, from From) {
	if r.whole {
		r.Total = figureOf(presented(r.total, r.amount), from)
	}
	if r.by > 0 {
		r.Mean = figureOf(presented(r.column, mean/r.by), from)
	}
}

// Totals returns what each machine did in each task: the area worked, and what was applied or harvested there. What the
// machine's terminal wrote into the task counts; what it did not write is made of the logs, and From says so. It reads all logs
// and grids once. The error is that of ctx.
func Totals(ctx context.Context, data *Data) ([]Work, error) {
	summary, err := Summarize(ctx, data)
	var all []Work
	for _, set := range summary.Sets {
		all = append(all, set.Totals...)
	}
	return all, err
}
