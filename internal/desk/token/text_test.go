package token_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"fleetdesk/internal/desk/token"
)

func TestTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.StringMatching(`[a-z2-7]{12}`).Draw(t, "id")
		var secret [32]byte
		copy(secret[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "secret"))
		text := token.Format(id, secret).Reveal()
		gotID, gotSecret, ok := token.Parse(text)
		if !ok || gotID != id || gotSecret != secret {
			t.Fatalf("%s: got %q %x %v", text, gotID, gotSecret, ok)
		}
	})
}

func TestParseRefuses(t *testing.T) {
	good := token.Format("abcdefghijkl", [32]byte{1, 2, 3}).Reveal()
	if _, _, ok := token.Parse(good); !ok {
		t.Fatalf("%s does not parse: the test shows nothing", good)
	}
	cases := map[string]struct{ reason, text string }{
		"empty":            {"nothing is no token", ""},
		"prefix":           {"another program's token", "xyz" + good[3:]},
		"capital prefix":   {"one token has one text", strings.ToUpper(good[:4]) + good[4:]},
		"capital id":       {"one token has one text", good[:4] + "A" + good[5:]},
		"capital secret":   {"one token has one text", good[:20] + "A" + good[21:]},
		"separator":        {"the id ends with _", strings.Replace(good, "l_", "l-", 1)},
		"shifted":          {"the id has twelve letters", strings.Replace(good, "l_", "_l", 1)},
		"digit 1":          {"0, 1, 8 and 9 are no letters here", good[:4] + "1" + good[5:]},
		"short":            {"a letter is missing", good[:len(good)-1]},
		"long":             {"a letter too many", good + "a"},
		"line feed":        {"a file's last byte is the file's", good + "\n"},
		"line feed inside": {"the decoder would pass over it", good[:30] + "\n" + good[31:]},
		"spare bits":       {"the last letter has bits to spare, which must be zero", good[:len(good)-1] + "b"},
		"padding":          {"no token has any", good[:len(good)-1] + "="},
		"space":            {"trimming is the caller's", " " + good[1:]},
		"not ASCII":        {"a letter of two bytes", good[:4] + "é" + good[6:]},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if id, _, ok := token.Parse(tc.text); ok {
				t.Errorf("%q is taken for token %s: %s", tc.text, id, tc.reason)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(token.Format("abcdefghijkl", [32]byte{}).Reveal())
	f.Add(token.Format("777777777777", [32]byte(bytes.Repeat([]byte{0xff}, 32))).Reveal())
	f.Add("fdt_abcdefghijkl_" + strings.Repeat("a", 51) + "\n")
	f.Add("fdt__")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		id, secret, ok := token.Parse(text)
		if !ok {
			if id != "" || secret != [32]byte{} {
				t.Fatalf("%q is no token, yet parts of it came back", text)
			}
			return
		}
		if back := token.Format(id, secret).Reveal(); back != text {
			t.Fatalf("%q parses like %q: one token has one text", text, back)
		}
	})
}

// However a secret is printed, on its own or inside something, it is not there.
func TestSecretHides(t *testing.T) {
	text := token.Format("abcdefghijkl", [32]byte{9}).Reveal()
	s := token.NewSecret(text)
	inside := struct {
		Name  string
		Token token.Secret
		Ref   *token.Secret
		own   token.Secret // fmt cannot ask an unexported field's methods
	}{"ci", s, &s, s}
	var printed []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "%p", "%T", "%t", "%10s", "%z"} {
		if got := fmt.Sprintf(verb, s); got != "***" && verb != "%T" && verb != "%p" {
			t.Errorf("%s prints %q, want ***", verb, got)
		}
		printed = append(printed, fmt.Sprintf(verb, s), fmt.Sprintf(verb, &s), fmt.Sprintf(verb, inside), fmt.Sprintf(verb, []token.Secret{s}))
		printed = append(printed, fmt.Sprintf(verb, inside.own))
	}
	j, err := json.Marshal(inside)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	logger.Info("m", "token", s, "inside", inside)
	slog.New(slog.NewTextHandler(&log, nil)).Info("m", "token", s, "ref", &s, "inside", inside)
	printed = append(printed, string(j), log.String(), fmt.Sprint(s), fmt.Errorf("with %v", inside).Error())
	for _, p := range printed {
		if strings.Contains(p, text[4:20]) || strings.Contains(p, fmt.Sprintf("%x", text[4:20])) || strings.Contains(p, fmt.Sprintf("%X", text[4:20])) {
			t.Errorf("the secret shows: %s", p)
		}
	}
	if got := fmt.Sprintf("%v %s", s, inside.Token); got != "*** ***" {
		t.Errorf("printed %q, want *** ***", got)
	}
	if s.Reveal() != text {
		t.Error("Reveal does not reveal")
	}
}
