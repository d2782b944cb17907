package kubelet

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

// The stand-in lets in whom squid lets in, and nobody else.
func TestAdmitsAsSquidDoes(t *testing.T) {
	hash := func(password string) string {
		h, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		return string(h)
	}
	users := "crawler:" + hash("p") + "\nCrawler:" + hash("p") + "\n#c:" + hash("p") + "\n s:" + hash("p") + "\n\tt:" + hash("p") + "\nempty:" + hash("") + "\nend :" + hash("p") + "\n"
	for name, tc := range map[string]struct {
		user, password string
		fold, want     bool
	}{
		"as written":              {"crawler", "p", false, true},
		"another case":            {"CRAWLER", "p", false, false},
		"capital":                 {"Crawler", "p", false, true},
		"folded":                  {"CRAWLER", "p", true, true},
		"begins with a hash":      {"#c", "p", false, false},
		"begins with a space":     {" s", "p", false, false},
		"the same without":        {"s", "p", false, false},
		"begins with a tab":       {"\tt", "p", false, false},
		"ends with a space":       {"end ", "p", false, true},
		"the end's space is ours": {"end", "p", false, false},
		"empty password":          {"empty", "", false, false},
	} {
		f := &forward{known: map[string]bool{}, fold: tc.fold, users: usersOf(users)}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(tc.user+":"+tc.password)))
		if got := f.admits(r.Header.Get("Proxy-Authorization")); got != tc.want {
			t.Errorf("%s: admitted %t; want %t", name, got, tc.want)
		}
	}
	if f := (&forward{known: map[string]bool{}, fold: true, users: usersOf("Crawler:" + hash("p"))}); f.admits("Basic " + base64.StdEncoding.EncodeToString([]byte("Crawler:p"))) {
		t.Error("a name with a capital letter is let in by a squid that folds")
	}
}
