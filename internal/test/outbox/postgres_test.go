package outbox

import (
	"bytes"
	"database/sql"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // database/sql's driver "pgx"

	"github.com/agrimill/agrimill/internal/testkit"
)

// database returns an empty database: that of POSTGRES_URL, or one of a server that runs until the test ends.
func database(t *testing.T) *sql.DB {
	url := os.Getenv("POSTGRES_URL")
	if url == "" {
		url = startServer(t)
	}
	db := testkit.Must(sql.Open("pgx", url))(t)
	t.Cleanup(func() { testkit.NoError(t, db.Close()) })
	testkit.EventuallyNil(t, db.Ping)
	return db
}

// startServer starts PostgreSQL with a socket in a folder of the test's, and returns its URL.
func startServer(t *testing.T) string {
	dir, bin := t.TempDir(), programs(t)
	attributes := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // as root, it refuses to run
		owner := testkit.Must(user.Lookup("postgres"))(t)
		uid, gid := testkit.Must(strconv.Atoi(owner.Uid))(t), testkit.Must(strconv.Atoi(owner.Gid))(t)
		for _, folder := range []string{dir, filepath.Dir(dir)} {
			testkit.NoError(t, os.Chown(folder, uid, gid))
		}
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(dir, "data")
	initialize := exec.CommandContext(t.Context(), filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
	initialize.Dir, initialize.SysProcAttr = dir, attributes
	if out, err := initialize.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var log bytes.Buffer
	server := exec.CommandContext(t.Context(), filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=")
	server.Dir, server.SysProcAttr, server.Stdout, server.Stderr = dir, attributes, &log, &log
	server.Cancel = func() error { return server.Process.Signal(os.Interrupt) } // ends its sessions and itself
	testkit.NoError(t, server.Start())
	t.Cleanup(func() { // the context has ended
		_ = server.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return "postgres:///postgres?user=postgres&host=" + dir
}

// programs returns the folder of PostgreSQL's programs, which Debian does not put into the path.
func programs(t *testing.T) string {
	if server, err := exec.LookPath("postgres"); err == nil {
		return filepath.Dir(testkit.Must(filepath.EvalSymlinks(server))(t))
	}
	found := testkit.Must(filepath.Glob("/usr/lib/postgresql/*/bin"))(t)
	if len(found) == 0 {
		t.Fatal("no PostgreSQL: install its server, or set POSTGRES_URL to an empty database")
	}
	return found[len(found)-1]
}
