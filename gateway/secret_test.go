package gateway

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

func TestSecretIsNotPrinted(t *testing.T) {
	t.Parallel()
	holder := struct {
		Token Secret
		Empty Secret
	}{Token: "hunter2"}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("holder", "token", holder.Token, "holder", holder)
	marshaled := testkit.Must(json.Marshal(holder))(t)
	for _, text := range []string{
		fmt.Sprint(holder), fmt.Sprintf("%v %+v %#v %s %q %x", holder, holder, holder, holder.Token, holder.Token, holder.Token),
		fmt.Sprintf("%d", []Secret{holder.Token}), log.String(), string(marshaled),
	} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, fmt.Sprintf("%x", "hunter2")) {
			t.Errorf("tells the secret: %s", text)
		}
	}
	if got := holder.Empty.String(); got != "" {
		t.Errorf("an empty secret is printed as %q", got)
	}
	var read Secret
	if err := json.Unmarshal([]byte(`"hunter3"`), &read); err != nil || string(read) != "hunter3" {
		t.Errorf("read %q, %v", string(read), err)
	}
}
