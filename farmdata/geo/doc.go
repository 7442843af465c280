// Package geo makes maps of farm data: GeoJSON (RFC 7946) of tracks, of points with
// their values, of fields and of grids. Package geoparquet in it makes GeoParquet.
//
// Everything is written as it is read, so that a log of any length needs little
// memory. Positions that are not valid are left out.
package geo
