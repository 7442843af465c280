package config

import (
	"errors"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/internal/testkit"
)

// idPlaces tries an ID in every text of the example, and in every one that may be added to its sections.
type idPlaces struct {
	*testing.T
	document yaml.Node
	external map[string]bool // by the keys where an ID (UUID) has to stand: whether an external ID may, too
}

// An external ID may stand wherever the ID of an endpoint may. TestExternalIDsAreResolved has the same places.
func TestExternalIDsMayStand(t *testing.T) {
	t.Parallel()
	p := &idPlaces{T: t, external: map[string]bool{}}
	testkit.NoError(t, yaml.Unmarshal(testkit.Must(os.ReadFile(examplePath))(t), &p.document))
	p.section(reflect.TypeFor[Config](), p.document.Content[0], "", "")
	maps.DeleteFunc(p.external, func(path string, _ bool) bool { // these are not of endpoints
		return slices.Contains([]string{"tenant", "application_id", "software_version_id"}, path[strings.LastIndexByte(path, '.')+1:])
	})
	testkit.Equal(t, p.external, map[string]bool{
		"publisher.endpoint": true, "publisher.recipients": true,
		"routes.filter.endpoint": true, "routes.to.gateway.endpoint": true, "routes.to.gateway.recipients": true,
	})
}

// section tries the texts of a section at a path; keys is the path without indexes.
func (p *idPlaces) section(section reflect.Type, node *yaml.Node, path, keys string) {
	for _, f := range fields(section) {
		typ := f.typ
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		at, name := join(path, f.name), join(keys, f.name)
		_, value := lookup(node, f.name)
		switch {
		case typ.Kind() == reflect.String, typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.String:
			p.try(node, f.name, at, name)
		case value == nil:
		case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct:
			for i, item := range value.Content {
				p.section(typ.Elem(), item, at+"["+string(rune('0'+i))+"]", name)
			}
		case typ.Kind() == reflect.Struct && value.Kind == yaml.MappingNode:
			p.section(typ, value, at, name)
		}
	}
}

// try notes whether an ID has to stand at a key of a section, and whether an external ID may.
func (p *idPlaces) try(section *yaml.Node, key, path, keys string) {
	before := section.Content
	defer func() { section.Content = before }()
	refused := func(value string) bool {
		section.Content = slices.Clone(before)
		for i := 0; i < len(section.Content); i += 2 {
			if section.Content[i].Value == key {
				section.Content = slices.Delete(section.Content, i, i+2)
				break
			}
		}
		section.Content = append(section.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, &yaml.Node{Kind: yaml.ScalarNode, Value: value})
		_, err := Parse("agrimill.yaml", testkit.Must(yaml.Marshal(&p.document))(p), exampleEnvironment)
		var problems *Problems
		return errors.As(err, &problems) && slices.ContainsFunc(problems.List, func(one Problem) bool { return one.Path == path && strings.Contains(one.Message, "UUID") })
	}
	if refused("nobody") {
		p.external[keys] = !refused("urn:example:farm")
	}
}
