package servecmd_test

import (
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/desk/token"
	"fleetdesk/internal/qasight/cli/servecmd"
)

func TestLifetime(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for in, tc := range map[string]struct {
		reason string
		want   time.Duration
		bad    bool
	}{
		"never":                 {"no end", 0, false},
		"90d":                   {"days, which people count in", 90 * day, false},
		"12h":                   {"a time", 12 * time.Hour, false},
		"1d12h":                 {"both", 36 * time.Hour, false},
		"1m":                    {"the shortest", time.Minute, false},
		"3650d":                 {"the longest", 3650 * day, false},
		"":                      {"nothing is not never", 0, true},
		"0":                     {"nor is 0", 0, true},
		"0d":                    {"an end at once", 0, true},
		"59s":                   {"a mistaken unit", 0, true},
		"3651d":                 {"for ever", 0, true},
		"3650d1s":               {"for ever, too", 0, true},
		"99999999999999999999d": {"more than a number holds", 0, true},
		"65535d":                {"more than a time can be checked for", 0, true},
		"2562047h47m":           {"more than a sum holds", 0, true},
		"-1d":                   {"the past", 0, true},
		"1d-12h":                {"a sum with the past", 0, true},
		"90":                    {"no unit", 0, true},
		"90 d":                  {"a blank", 0, true},
		"1.5d":                  {"parts of days are hours", 0, true},
		"3mo":                   {"months differ", 0, true},
		"d":                     {"no number", 0, true},
	} {
		got, err := servecmd.Lifetime(in)
		if got != tc.want || (err != nil) != tc.bad || err != nil && fault.Of(err) != fault.Invalid {
			t.Errorf("%q: %s: got %s, %v", in, tc.reason, got, err)
		}
	}
}

func FuzzLifetime(f *testing.F) {
	for _, s := range []string{"never", "90d", "12h", "1d12h", "-1d", "65535d", "1d1d", "9223372036854775807ns", "\x1b[31m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := servecmd.Lifetime(s)
		switch {
		case err != nil && (got != 0 || strings.ContainsAny(err.Error(), "\x1b\n")):
			t.Errorf("%q: %s, %v", s, got, err)
		case err == nil && s != "never" && (got < token.MinLifetime || got > token.MaxLifetime):
			t.Errorf("%q: %s is out of bounds", s, got)
		}
	})
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	for in, reason := range map[string]string{
		"https://qasight.example:8443":       "",
		"https://qasight.example/team":       "has a path",
		"http://127.0.0.1:8443":              "",
		"http://localhost:8443":              "",
		"http://[::1]:8443":                  "",
		"http://qasight.example":             "unencrypted",
		"http://192.0.2.1:8443":              "unencrypted",
		"http://127.0.0.1.qasight.example":   "unencrypted",
		"ftp://qasight.example":              "no URL",
		"qasight.example:8443":               "no URL",
		"https://":                           "no URL",
		"https://ann:geheim@qasight.example": "holds a user",
		"https://ann:ge heim@qasight.exam":   "no URL",
		"":                                   "no URL",
	} {
		err := servecmd.CheckURL(in)
		if reason == "" && err != nil || reason != "" && (err == nil || !strings.Contains(err.Error(), reason) || fault.Of(err) != fault.Invalid) {
			t.Errorf("%q: %v", in, err)
		}
		if err != nil && strings.Contains(err.Error(), "heim") {
			t.Errorf("%q: a password is told: %v", in, err)
		}
	}
}
