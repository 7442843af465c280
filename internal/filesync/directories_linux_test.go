package filesync_test

import (
	"encoding/binary"
	"path/filepath"
	"syscall"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"

	"github.com/agrimill/agrimill/internal/filesync"
	"github.com/agrimill/agrimill/internal/testkit"
)

// All directories of an object are opened to be synced, also those of a prefix that every key of the bucket is below, and none above the bucket.
func TestDirectoriesOfAPrefix(t *testing.T) {
	above := t.TempDir()
	root := filepath.Join(above, "bucket")
	files := testkit.Must(fileblob.OpenBucket(root, &fileblob.Options{CreateDir: true, NoTempDir: true, Metadata: fileblob.MetadataDontWrite}))(t)
	bucket := blob.PrefixedBucket(files, "p/q/")
	defer func() { _ = bucket.Close() }()
	testkit.NoError(t, bucket.WriteAll(t.Context(), "a/b", nil, nil))

	fd := testkit.Must(syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC))(t)
	defer func() { _ = syscall.Close(fd) }()
	watched := map[int32]string{}
	for _, dir := range []string{"..", "", "p", "p/q", "p/q/a"} {
		watched[int32(testkit.Must(syscall.InotifyAddWatch(fd, filepath.Join(root, dir), syscall.IN_OPEN))(t))] = dir
	}
	testkit.NoError(t, filesync.Directories(t.Context(), bucket, "a/b"))
	opened := map[string]bool{}
	events := make([]byte, 1<<16)
	n := testkit.Must(syscall.Read(fd, events))(t)
	for rest := events[:n]; len(rest) >= syscall.SizeofInotifyEvent; {
		name := binary.NativeEndian.Uint32(rest[12:])
		if name == 0 { // otherwise it is about what is in the directory
			opened[watched[int32(binary.NativeEndian.Uint32(rest))]] = true
		}
		rest = rest[syscall.SizeofInotifyEvent+name:]
	}
	for _, dir := range watched {
		if want := dir != ".."; opened[dir] != want {
			t.Errorf("directory %q was opened: %t, want %t", dir, opened[dir], want)
		}
	}
}
