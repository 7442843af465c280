package devicestore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/stores/kafka/devicestore"
)

// A transform that knows the machines of time logs, also after a restart.
func Example() {
	config := devicestore.Config{Connection: kafka.Connection{Brokers: []string{"localhost:9092"}}}
	store, err := devicestore.New(context.Background(), config)
	if err != nil {
		log.Print(err)
		return
	}
	defer func() { _ = store.Close() }()
	devices, err := farm.NewDevices(farm.DevicesConfig{Store: store})
	if err != nil {
		log.Print(err)
		return
	}
	records, err := farm.NewRecords(farm.RecordsConfig{ReadConfig: farm.ReadConfig{Devices: devices}})
	fmt.Println(records != nil, err) // for router.Route.Transform
}
