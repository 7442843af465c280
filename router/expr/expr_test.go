package expr_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/expr"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks"
)

func farmMessage(more ...string) *message.Message {
	msg := message.NewMessage("1", []byte("payload"))
	msg.Metadata = message.Metadata{
		gateway.KeyMessageType: "iso:11783:-10:taskdata:zip", gateway.KeyTenantID: "t1",
		gateway.KeyReceivingEndpointID: "e1", gateway.KeyFilename: "Field 7.ZIP",
	}
	for i := 0; i < len(more); i += 2 {
		msg.Metadata[more[i]] = more[i+1]
	}
	return msg
}

func TestFilter(t *testing.T) {
	for text, want := range map[string]bool{
		`true`: true,
		`msgtype == "iso:11783:-10:taskdata:zip"`:               true,
		`msgtype.startsWith("img:")`:                            false,
		`tenant in ["t1", "t2"] && receiver != "e2"`:            true,
		`filename.lowerAscii().endsWith(".zip")`:                true,
		`filename.matches("^Field [0-9]+")`:                     true,
		`sender == ""`:                                          true, // it has none
		`teamset != "" || recipient != ""`:                      false,
		`"priority" in metadata`:                                false,
		`metadata[?"priority"].orValue("low") == "low"`:         true,
		`metadata["area"] == "12.5"`:                            true,
		`double(metadata["area"]) > 10.0`:                       true,
		`metadata.exists(k, k.startsWith("x-router-tenant"))`:   true,
		`size(metadata) == 5 && type(tenant) == string`:         true,
		`timestamp("2026-01-01T00:00:00Z") < timestamp(0)`:      false,
		`context == "" && event == "" ? msgtype != "" : false `: true,
	} {
		f, err := expr.NewFilter(text, nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := f.Select(farmMessage("area", "12.5"))
		if got != want || err != nil {
			t.Errorf("%s: %t, %v", text, got, err)
		}
	}
	// Every variable of topic templates can be used, under its name or as msgtype.
	for name := range sinks.TopicVariables() {
		if name == "type" {
			name = "msgtype"
		}
		if _, err := expr.NewFilter(name+` == ""`, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Mistakes are found when the expression is compiled, with their place.
func TestBadExpressions(t *testing.T) {
	for text, want := range map[string]expr.Error{
		``:                                 {Line: 1, Column: 1, Reason: "mismatched"},
		`tenant ==`:                        {Line: 1, Column: 10, Reason: "mismatched"},
		"tenant == \"a\" &&\n  tenand":     {Line: 2, Column: 3, Reason: "undeclared reference to 'tenand'"},
		`tenant == 1`:                      {Line: 1, Column: 8, Reason: "no matching overload"},
		`type == "img:jpeg"`:               {Line: 1, Column: 6, Reason: "the message type is called msgtype"},
		`type.startsWith("img:")`:          {Line: 1, Column: 16, Reason: "the message type is called msgtype"},
		`tenant`:                           {Line: 1, Column: 1, Reason: "the result is a string, must be a bool"},
		`metadata["a"]`:                    {Line: 1, Column: 1, Reason: "the result is a string, must be a bool"},
		`dyn(tenant)`:                      {Line: 1, Column: 1, Reason: "the result is a dyn, must be a bool"},
		`payload == ""`:                    {Line: 1, Column: 1, Reason: "undeclared reference to 'payload'"},
		`filename.matches("(")`:            {Line: 1, Column: 1, Reason: "missing closing )"},
		strings.Repeat("(", 2000) + "true": {Line: 1, Column: 1, Reason: "recursion"},
	} {
		_, err := expr.NewFilter(text, nil)
		var got *expr.Error
		if !errors.As(err, &got) || !errors.Is(err, expr.ErrBadExpression) {
			t.Errorf("%.40q: %v", text, err)
			continue
		}
		if got.Line != want.Line || got.Column != want.Column && len(text) < 1000 || !strings.Contains(got.Reason, want.Reason) {
			t.Errorf("%.40q: %+v, want %+v", text, got, want)
		}
	}
	for key, text := range map[string]string{
		"": `"a"`, "a\nb": `"a"`, gateway.KeyDedupID: `"a"`, strings.ToUpper(gateway.KeyDedupID): `"a"`, router.KeyPoisonCount: `"0"`, "number": `1`, "none": `nothing`,
	} {
		if _, err := expr.NewSetter(map[string]string{"good": `tenant`, key: text}, nil); !errors.Is(err, expr.ErrBadExpression) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// What a message lacks is an error that sends it to the poison queue, and never a message that
// is not selected; an expression cannot run for long.
func TestValuesThatFail(t *testing.T) {
	many := farmMessage()
	for i := range 3000 {
		many.Metadata["k"+strings.Repeat("x", i%50)+string(rune('a'+i%26))+strings.Repeat("y", i/50)] = "v"
	}
	for text, msg := range map[string]*message.Message{
		`metadata["missing"] == "a"`:       farmMessage(),
		`int(metadata["area"]) > 1`:        farmMessage("area", "many"),
		`timestamp(filename).getHours()>1`: farmMessage(),
		`metadata.exists(a, metadata.exists(b, metadata.exists(c, a + b + c == "no")))`: many,
	} {
		f := testkit.Must(expr.NewFilter(text, nil))(t)
		if selected, err := f.Select(msg); selected || router.ClassOf(err) != router.ClassPermanent {
			t.Errorf("%s: %t, %v", text, selected, err)
		}
	}
}

func TestSetter(t *testing.T) {
	s, err := expr.NewSetter(map[string]string{
		"team":                 `"team of " + tenant`,
		"tenant-and-team":      `tenant + metadata[?"team"].orValue("?")`, // as it was
		gateway.KeyFilename:    `filename.lowerAscii()`,
		gateway.KeyMessageType: `""`, // removes it
		"nothing":              `""`,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	received := farmMessage()
	shared := message.Metadata{gateway.KeyTenantID: "t2"}
	made := []*message.Message{farmMessage(), {UUID: "2", Metadata: shared}, {UUID: "3", Metadata: shared}, {UUID: "4"}, nil}
	got := testkit.Must(s.Middleware(func(*message.Message) ([]*message.Message, error) { return made, nil })(received))(t)
	testkit.Equal(t, got[0].Metadata, message.Metadata{
		gateway.KeyTenantID: "t1", gateway.KeyReceivingEndpointID: "e1", gateway.KeyFilename: "field 7.zip",
		"team": "team of t1", "tenant-and-team": "t1?",
	})
	for i := 1; i <= 2; i++ {
		testkit.Equal(t, got[i].Metadata, message.Metadata{gateway.KeyTenantID: "t2", "team": "team of t2", "tenant-and-team": "t2?"})
	}
	testkit.Equal(t, got[3].Metadata, message.Metadata{"team": "team of ", "tenant-and-team": "?"})
	testkit.Equal(t, got[4], nil)
	testkit.Equal(t, shared, message.Metadata{gateway.KeyTenantID: "t2"}) // somebody may still read it
	testkit.Equal(t, got[0].UUID, "1")
	testkit.Equal(t, string(got[0].Payload), "payload")

	fails := testkit.Must(expr.NewSetter(map[string]string{"a": `metadata["missing"]`}, nil))(t)
	if _, err := fails.Middleware(message.PassthroughHandler)(farmMessage()); router.ClassOf(err) != router.ClassPermanent {
		t.Errorf("%v", err)
	}
	// The error of the handler is passed on.
	broken := errors.New("broken")
	if _, err := s.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, broken })(received); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

func BenchmarkFilter(b *testing.B) {
	f := testkit.Must(expr.NewFilter(`msgtype.startsWith("iso:") && tenant in ["t1", "t2"] && metadata[?"priority"].orValue("low") != "high"`, nil))(b)
	msg := farmMessage()
	b.ReportAllocs()
	for b.Loop() {
		if selected, err := f.Select(msg); !selected || err != nil {
			b.Fatal(err)
		}
	}
}

// Expressions see what is in the payload that was received, and read it only if they have to.
func TestFarm(t *testing.T) {
	archive := message.NewMessage("1", farmdatatest.Archive(t, 3))
	archive.Metadata.Set(gateway.KeyMessageType, "iso:11783:-10:taskdata:zip")
	picture := message.NewMessage("2", []byte("a picture"))
	lost := message.NewMessage("3", nil) // its payload is elsewhere, and cannot be had
	lost.Metadata.Set(gateway.KeyMessageType, "img:png")
	lost.Metadata.Set(gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck)
	lost.Metadata.Set(gateway.KeyPayloadReference, "there")
	inspector, err := farm.NewInspector(farm.ReadConfig{Payloads: unreachable{}})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`"Mower" in farm.machines`:                                                   "true false outage",
		`farm.readable`:                                                              "true false outage",
		`farm.reason.contains("neither")`:                                            "false true outage",
		`"0043" in farm.ddis && farm.records == 3`:                                   "true false outage",
		`farm.start >= timestamp("2026-05-04T06:30:00Z")`:                            "true false outage",
		`farm.located && farm.south > 52.0 && farm.north < 53.0`:                     "true false outage",
		`"Long acre" in farm.fields && "TSK1" in farm.tasks`:                         "true false outage",
		`"Ada Miller" in farm.customers && "FRM1" in farm.farms`:                     "true false outage",
		`farm.machines.exists(m, m.startsWith("A000"))`:                              "true false outage",
		`msgtype.startsWith("iso:") && size(farm.machines) > 0`:                      "true false false",
		`!msgtype.startsWith("img:") && farm.form == "TaskData"`:                     "true false false",
		`farm.machines[0] == "A00086000DE02812" || farm.machines[0] != ""`:           "true permanent outage",
		`msgtype == "img:png" || (farm.readable && "TSK1" in farm.tasks)`:            "true false true",
		`farm.end < timestamp("2026-05-04T06:30:10Z") && farm.records > 100`:         "false false outage",
		`farm.south == 0.0 && farm.west == 0.0 && farm.east == 0.0 || msgtype == ""`: "false true outage",
	} {
		f, err := expr.NewFilter(text, inspector)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for _, msg := range []*message.Message{archive, picture, lost} {
			selected, err := f.Select(msg)
			if err != nil {
				got = append(got, router.ClassOf(err).String())
				continue
			}
			got = append(got, strconv.FormatBool(selected))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", text, got, want)
		}
	}
	_, err = expr.NewFilter(`farm.machine == "x"`, nil)
	if !errors.Is(err, expr.ErrBadExpression) || !strings.Contains(err.Error(), "machine") {
		t.Errorf("an unknown field: %v", err)
	}
}

// The metadata of records come from the payload that they were made of.
func TestSetFromThePayload(t *testing.T) {
	s := testkit.Must(expr.NewSetter(map[string]string{"machine": `farm.machines.join(" ")`}, nil))(t)
	out, err := s.Middleware(func(*message.Message) ([]*message.Message, error) {
		return message.Messages{message.NewMessage("made", []byte("records"))}, nil
	})(message.NewMessage("1", farmdatatest.Archive(t, 3)))
	if err != nil || len(out) != 1 || out[0].Metadata.Get("machine") != "A00086000DE02812 Mower" {
		t.Errorf("got %v, %v", out[0].Metadata, err)
	}
}

type unreachable struct{}

func (unreachable) Open(context.Context, string) (io.ReadCloser, int64, error) {
	return nil, 0, errors.New("the bucket does not answer")
}
