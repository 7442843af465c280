package expr_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/expr"
)

func ExampleNewFilter() {
	filter, err := expr.NewFilter(`msgtype.startsWith("iso:") && metadata[?"priority"].orValue("low") != "high"`, nil)
	if err != nil {
		panic(err)
	}
	route := router.Route{Name: "farm data", Filter: filter.Select}

	msg := message.NewMessage("1", nil)
	msg.Metadata.Set(gateway.KeyMessageType, "iso:11783:-10:taskdata:zip")
	selected, err := route.Filter(msg)
	fmt.Println(selected, err)
	// Output: true <nil>
}

func ExampleNewSetter() {
	setter, err := expr.NewSetter(map[string]string{"team": `"team of " + tenant`}, nil)
	if err != nil {
		panic(err)
	}
	route := router.Route{Name: "farm data", Middleware: []message.HandlerMiddleware{setter.Middleware}}

	msg := message.NewMessage("1", nil)
	msg.Metadata.Set(gateway.KeyTenantID, "7b2")
	made, err := route.Middleware[0](message.PassthroughHandler)(msg)
	if err != nil {
		panic(err)
	}
	fmt.Println(made[0].Metadata.Get("team"))
	// Output: team of 7b2
}

func ExampleError() {
	_, err := expr.NewFilter(`tenand == "7b2"`, nil)
	fmt.Println(err)
	// Output: 1:1: undeclared reference to 'tenand' (in container '')
}
