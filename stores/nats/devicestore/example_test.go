package devicestore_test

import (
	"context"
	"fmt"
	"log"

	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/stores/nats/devicestore"
)

// A transform that knows the machines of time logs, also after a restart.
func Example() {
	conn, err := natsgo.Connect(natsgo.DefaultURL, natsgo.MaxReconnects(-1))
	if err != nil {
		log.Print(err)
		return
	}
	defer conn.Close()
	store, err := devicestore.New(context.Background(), devicestore.Config{Conn: conn})
	if err != nil {
		log.Print(err)
		return
	}
	devices, err := farm.NewDevices(farm.DevicesConfig{Store: store})
	if err != nil {
		log.Print(err)
		return
	}
	records, err := farm.NewRecords(farm.RecordsConfig{ReadConfig: farm.ReadConfig{Devices: devices}})
	fmt.Println(records != nil, err) // for router.Route.Transform
}
