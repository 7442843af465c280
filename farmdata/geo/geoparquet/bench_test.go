package geoparquet

import (
	"io"
	"testing"
	"time"

	"github.com/agrimill/agrimill/farmdata"
)

// BenchmarkWrite writes points and cells from memory: values per second on one core.
func BenchmarkWrite(b *testing.B) {
	const values, count = 16, 10_000
	columns := make([]farmdata.Column, values)
	row := make([]farmdata.Value, values)
	for i := range columns {
		columns[i] = farmdata.Column{DDI: farmdata.DDI(i + 1), ElementID: "DET-1", Unit: "m", Scale: 0.001}
		row[i] = farmdata.Value{Column: &columns[i], Raw: int64(i * 1234)}
	}
	log := &farmdata.Log{Name: "TLG00001", TaskID: "TSK1", Columns: columns, Records: func(yield func(*farmdata.Record, error) bool) {
		record := at(0, 52, 7, row...)
		for i := range int64(count) {
			record.Number, record.Position.East = i, 7+float64(i)*1e-7
			if !yield(record, nil) {
				return
			}
		}
	}}
	grid := &farmdata.Grid{Name: "GRD00001", Type: 2, North: 52, East: 7, CellNorth: 1e-5, CellEast: 1e-5, Rows: 100, Cols: count / 100, Columns: columns}
	grid.Cells = func(yield func(*farmdata.Cell, error) bool) {
		for i := range int64(count) {
			if !yield(&farmdata.Cell{Row: i / 100, Col: i % 100, Zone: 1, Values: row}, nil) {
				return
			}
		}
	}
	for name, write := range map[string]func() error{
		"points": func() error { return WritePoints(io.Discard, log, Config{}) }, "cells": func() error { return WriteGrid(io.Discard, grid, Config{}) },
	} {
		b.Run(name, func(b *testing.B) {
			start, total := time.Now(), 0
			for b.Loop() {
				if err := write(); err != nil {
					b.Fatal(err)
				}
				total += values * count
			}
			b.ReportMetric(float64(total)/time.Since(start).Seconds()/1e6, "Mvalues/s")
		})
	}
}
