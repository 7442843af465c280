package filesync_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/internal/filesync"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestObject(t *testing.T) {
	dir := t.TempDir()
	files := testkit.Must(fileblob.OpenBucket(dir, &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite}))(t)
	defer func() { _ = files.Close() }()
	memory := memblob.OpenBucket(nil)
	defer func() { _ = memory.Close() }()
	if !filesync.IsFiles(files) || filesync.IsFiles(memory) {
		t.Error("IsFiles takes one for the other")
	}
	for name, bucket := range map[string]*blob.Bucket{"files": files, "memory": memory} {
		var object filesync.Object
		w := testkit.Must(bucket.NewWriter(t.Context(), "a/b/c", &blob.WriterOptions{ContentType: "x/y", BeforeWrite: object.BeforeWrite}))(t)
		testkit.Must(w.Write([]byte("content")))(t)
		if err := object.Sync(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		testkit.NoError(t, w.Close())
		// What has become of the file does not go unnoticed.
		if err := object.Sync(); (err != nil) != (bucket == files) {
			t.Errorf("%s: Sync of a file that is closed: %v", name, err)
		}
	}
	testkit.NoError(t, filesync.Directories(t.Context(), files, "a/b/c"))
	testkit.NoError(t, os.RemoveAll(filepath.Join(dir, "a")))
	if err := filesync.Directories(t.Context(), files, "a/b/c"); err == nil && os.PathSeparator == '/' {
		t.Error("the names of what is gone are durable")
	}
}

func TestURL(t *testing.T) {
	for text, want := range map[string]string{
		"file:///data":                            "file:///data?metadata=skip&no_tmp_dir=true",
		"file:///data?create_dir=1&metadata=":     "file:///data?create_dir=1&metadata=&no_tmp_dir=true",
		"s3://bucket?region=eu":                   "s3://bucket?region=eu",
		"file:///data?no_tmp_dir=&metadata=skip#": "file:///data?metadata=skip&no_tmp_dir=",
		"::": "::",
	} {
		if got := filesync.URL(text); got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
}

// What the driver of a bucket would drop from its URL without a word is refused, and says how it is written.
func TestCheckURL(t *testing.T) {
	for text, want := range map[string]string{ // part of what is wrong; empty: nothing
		"file:///dir":                      "",
		"file:///dir/a%23b":                "",
		"file:///dir/a%3Fb?create_dir=yes": "",
		"file://localhost/dir":             "",
		"file:///dir#part":                 "%23",
		"file:///dir#":                     "%23",
		"file:///dir?create_dir=true#part": "%23",
		"file:///dir?part":                 "wrong setting",
		"file://user@/dir":                 "user",
		"file://user:word@localhost/dir":   "user",
		"file://dir":                       "three slashes",
		"file:///":                         "directory",
		"mem://":                           "",
		"mem://#part":                      "%23",
		"s3://bucket":                      "",
		"s3://bucket/":                     "",
		"s3://bucket?prefix=part/":         "",
		"s3://bucket/part":                 "?prefix=NAME/",
		"s3://bucket#part":                 "%23",
		"s3://user@bucket":                 "user",
		"gs://bucket/part/":                "?prefix=NAME/",
		"azblob://bucket/a b":              "?prefix=NAME/",
		"other://host/path":                "",
	} {
		err := filesync.CheckURL(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "word") {
			t.Errorf("%s: the error has the password: %v", text, err)
		}
	}
}
