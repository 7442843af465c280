// Package efdipb has the messages of efdi.proto, generated; package efdi reads them
// into the model of farmdata.
package efdipb
