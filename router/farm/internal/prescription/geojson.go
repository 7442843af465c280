package prescription

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// readGeoJSON reads a FeatureCollection of polygons, feature by feature.
func readGeoJSON(payload []byte, m *maker) error {
	d := json.NewDecoder(bytes.NewReader(payload))
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return errors.New("it is neither GeoJSON nor GeoParquet")
	}
	kind := ""
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return malformed(err)
		}
		switch key {
		case "type":
			err = d.Decode(&kind)
		case "crs":
			err = readCRS(d)
		case "features":
			err = readFeatures(d, m)
		default:
			var other json.RawMessage
			err = d.Decode(&other)
		}
		if err != nil {
			return malformed(err)
		}
	}
	if _, err := d.Token(); err != nil {
		return malformed(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the GeoJSON")
	}
	if kind != "FeatureCollection" {
		return errors.New("it is no FeatureCollection of GeoJSON")
	}
	return nil
}

// malformed says of an error of the decoder where it is, and nothing of what is there.
func malformed(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("it is no JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Errorf("it is no GeoJSON: %s has a value of another type", kind.Field)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the GeoJSON ends too early")
	}
	return err
}

// readCRS accepts WGS 84, which a member of former times may name.
func readCRS(d *json.Decoder) error {
	var crs *struct {
		Properties struct{ Name string }
	}
	if err := d.Decode(&crs); err != nil {
		return err
	}
	known := []string{"urn:ogc:def:crs:OGC:1.3:CRS84", "urn:ogc:def:crs:OGC::CRS84", "OGC:CRS84", "urn:ogc:def:crs:EPSG::4326", "EPSG:4326"}
	if crs != nil && !slices.Contains(known, crs.Properties.Name) {
		return errors.New("its coordinates are not those of WGS 84 (crs)")
	}
	return nil
}

func readFeatures(d *json.Decoder, m *maker) error {
	if token, err := d.Token(); err != nil || token != json.Delim('[') {
		return errors.New("features is no list")
	}
	for number := 1; d.More(); number++ {
		polygons, properties, err := readFeature(d)
		if err != nil {
			return fmt.Errorf("feature %d: %w", number, err)
		}
		if err := m.add(number, polygons, func(column string) any { return scalar(properties[column]) }); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func readFeature(d *json.Decoder) (polygons []polygon, properties members, err error) {
	var f, geometry members
	if err = d.Decode(&f); err != nil {
		return nil, nil, err
	}
	if geometry, err = f.object("geometry"); err != nil {
		return nil, nil, err
	}
	if properties, err = f.object("properties"); err != nil {
		return nil, nil, err
	}
	if scalar(f["type"]) != "Feature" || geometry == nil {
		return nil, nil, errors.New("it has no polygon")
	}
	polygons, err = coordinates(scalar(geometry["type"]), geometry["coordinates"])
	return polygons, properties, err
}

// members are those of an object, by their exact names. None is there twice: which one is meant cannot be known.
type members map[string]json.RawMessage

// UnmarshalJSON implements [json.Unmarshaler].
func (m *members) UnmarshalJSON(object []byte) error {
	d := json.NewDecoder(bytes.NewReader(object))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return cmp.Or(err, errors.New("it is no GeoJSON: something else is where an object has to be"))
	}
	*m = members{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string)
		if _, twice := (*m)[name]; twice {
			return errors.New("an object has two members of the same name: have one of them left out")
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		(*m)[name] = value
	}
	return nil
}

// object is the members of a member; nil if it is null or not there.
func (m members) object(name string) (inner members, err error) {
	if raw := m[name]; len(raw) > 0 && string(raw) != "null" {
		err = json.Unmarshal(raw, &inner)
	}
	return inner, err
}

// scalar is a number or a text; nil for anything else.
func scalar(raw json.RawMessage) any {
	var v any
	if len(raw) == 0 || raw[0] == '{' || raw[0] == '[' || json.Unmarshal(raw, &v) != nil {
		return nil
	}
	return v
}

// coordinates reads those of a Polygon or MultiPolygon.
func coordinates(kind any, raw json.RawMessage) ([]polygon, error) {
	if bytes.Count(raw, []byte{','}) > 4*maxPoints { // before it is in memory
		return nil, fmt.Errorf("the map has more than %d points", maxPoints)
	}
	if bytes.Contains(raw, []byte("null")) { // which would be read as 0
		return nil, errors.New("a coordinate is null")
	}
	var lists [][][][]float64
	switch kind {
	case "Polygon":
		lists = make([][][][]float64, 1)
		if err := json.Unmarshal(raw, &lists[0]); err != nil {
			return nil, errors.New("its coordinates are not those of a Polygon")
		}
	case "MultiPolygon":
		if err := json.Unmarshal(raw, &lists); err != nil {
			return nil, errors.New("its coordinates are not those of a MultiPolygon")
		}
	default:
		return nil, errors.New("its geometry is neither a Polygon nor a MultiPolygon")
	}
	polygons := make([]polygon, len(lists))
	for i, rings := range lists {
		for _, positions := range rings {
			ring := make([]point, len(positions))
			for j, position := range positions {
				if len(position) < 2 || len(position) > 3 {
					return nil, errors.New("a position does not have two or three numbers")
				}
				ring[j] = point{north: position[1], east: position[0]}
				if len(position) == 3 {
					ring[j].up = millimeters(position[2])
				}
			}
			polygons[i] = append(polygons[i], ring)
		}
	}
	return polygons, nil
}

// millimeters of meters; what is not on Earth is none.
func millimeters(meters float64) int64 {
	if !(math.Abs(meters) < 1e6) {
		return 0
	}
	return int64(math.Round(meters * 1000))
}
