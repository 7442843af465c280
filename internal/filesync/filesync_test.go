package filesync_test

import (
	"errors"
	"io"
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

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	files := testkit.Must(fileblob.OpenBucket(dir, &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite}))(t)
	defer func() { _ = files.Close() }()
	memory := memblob.OpenBucket(nil)
	defer func() { _ = memory.Close() }()
	if !filesync.IsFiles(files) || filesync.IsFiles(memory) {
		t.Error("IsFiles takes one for the other")
	}
	for name, bucket := range map[string]*blob.Bucket{"files": files, "memory": memory} {
		for _, failure := range []error{errors.New("no content"), nil} {
			err := filesync.Write(t.Context(), bucket, "a/b/c", blob.WriterOptions{ContentType: "x/y"}, func(w io.Writer) error {
				_, err := io.WriteString(w, "content")
				return errors.Join(err, failure)
			})
			if there, _ := bucket.Exists(t.Context(), "a/b/c"); !errors.Is(err, failure) || there != (failure == nil) {
				t.Errorf("%s: got %v, and an object: %t", name, err, there)
			}
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
