// Package demo is the world around the pipeline of agrimill demo: a gateway, a NATS server, farms whose machines
// send files, and faults. The farms, their machines and fields are invented.
//
// It links a NATS server, which no package that programs embed does.
package demo
