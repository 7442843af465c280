// Package outbox tests agrimill behind Watermill's transactional outbox in a real PostgreSQL.
package outbox
