// Command generate compiles efdi.proto with nothing but Go:
//
//	go run ./farmdata/efdi/efdipb/generate
//
// Run it at the top of the module. Its test checks that the file is current.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/pluginpb"
)

// folder has the source and the result.
const folder = "farmdata/efdi/efdipb"

func main() {
	text, err := generate(folder)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "efdi.pb.go"), text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// generate returns what efdi.pb.go has to be.
func generate(dir string) ([]byte, error) {
	const source = "efdi.proto"
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard, // comments
	}
	files, err := compiler.Compile(context.Background(), source)
	if err != nil {
		return nil, err
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{source},
		ProtoFile: []*descriptorpb.FileDescriptorProto{
			protodesc.ToFileDescriptorProto(timestamppb.File_google_protobuf_timestamp_proto),
			protodesc.ToFileDescriptorProto(files.FindFileByPath(source)),
		},
		Parameter: proto.String("paths=source_relative"),
	}
	plugin, err := protogen.Options{}.New(request)
	if err != nil {
		return nil, err
	}
	internal_gengo.GenerateFile(plugin, plugin.FilesByPath[source])
	response := plugin.Response()
	if response.Error != nil {
		return nil, errors.New(*response.Error)
	}
	return []byte(response.File[0].GetContent()), nil
}
