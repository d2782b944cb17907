package api

import (
	"io"
	"net/http"
	"strings"
	"unicode/utf8"
)

// What nearly every client sends to the operations on leases is a small flat
// JSON object. It is read here, at a tenth of the cost of two generic readings
// and a walk over the schema. Anything else (an escape, a null, a number with a
// fraction, a name that nobody knows or that stands twice, a value out of
// bounds) is not judged here: huma reads it again and says what is wrong. What
// is accepted here huma accepts too, as the same value; a test compares them.

// maxPlain bounds the body of a plain request.
const maxPlain = 4 << 10

// plainBody reads the body of a request that looks plain: JSON, no query, of a
// known small size. Otherwise ok is false and the request is as it was.
func plainBody(r *http.Request, into *[maxPlain]byte) (body []byte, ok bool) {
	if r.URL.RawQuery != "" || r.ContentLength < 0 || r.ContentLength > maxPlain {
		return nil, false
	}
	switch types := r.Header["Content-Type"]; {
	case len(types) == 0:
	case len(types) == 1 && types[0] == "application/json":
	default:
		return nil, false
	}
	body = into[:r.ContentLength]
	n, err := io.ReadFull(r.Body, body)
	if err != nil {
		r.Body = rest{io.MultiReader(strings.NewReader(string(body[:n])), failing{err}), r.Body}
		return nil, false
	}
	return body, true
}

// rest is a body of which a part was read already.
type rest struct {
	io.Reader
	io.Closer
}

// failing is the end of a body that could not be read.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// plainHeader returns the value of a header that is there at most once; ok is
// false for one that is not printable ASCII of 1 to most bytes. The name is
// canonical.
func plainHeader(h http.Header, name string, most int) (value string, ok bool) {
	values := h[name]
	if len(values) == 0 {
		return "", true
	}
	if len(values) > 1 || values[0] == "" || len(values[0]) > most {
		return "", false
	}
	for i := range len(values[0]) {
		if c := values[0][i]; c < ' ' || c > '~' {
			return "", false
		}
	}
	return values[0], true
}

// plain reads a JSON object in one pass. After the first thing that is not plain
// it is odd, and returns nothing that means anything.
type plain struct {
	data []byte
	at   int
	odd  bool
}

// object calls field with the name of each member, in front of its value, which
// field must read. It reports whether all of the data was one plain object.
func (p *plain) object(field func(name []byte)) bool {
	p.members(field)
	p.space()
	return !p.odd && p.at == len(p.data)
}

// members reads an object.
func (p *plain) members(field func(name []byte)) {
	if !p.next('{') {
		return
	}
	if p.space(); p.at < len(p.data) && p.data[p.at] == '}' {
		p.at++
		return
	}
	for !p.odd {
		name := p.quoted(maxPlain)
		if !p.next(':') {
			return
		}
		field(name)
		if p.space(); p.odd || p.at >= len(p.data) {
			p.odd = true
			return
		}
		p.at++
		switch p.data[p.at-1] {
		case ',':
		case '}':
			return
		default:
			p.odd = true
		}
	}
}

// text reads a string of at most that many bytes.
func (p *plain) text(most int) string { return string(p.quoted(most)) }

// some reads a string of 1 to that many bytes.
func (p *plain) some(most int) string {
	s := p.text(most)
	p.odd = p.odd || s == ""
	return s
}

// quoted reads a string without escapes; the result is a part of the data.
func (p *plain) quoted(most int) []byte {
	if !p.next('"') {
		return nil
	}
	from, ascii := p.at, true
	for ; p.at < len(p.data); p.at++ {
		switch c := p.data[p.at]; {
		case c == '"':
			s := p.data[from:p.at]
			p.at++
			if len(s) > most || !ascii && !utf8.Valid(s) {
				p.odd = true
				return nil
			}
			return s
		case c == '\\' || c < ' ':
			p.odd = true
			return nil
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	p.odd = true
	return nil
}

// number reads an integer of at most 18 digits in the bounds.
func (p *plain) number(least, most int64) int64 {
	p.space()
	from := p.at
	n := int64(0)
	for ; p.at < len(p.data) && '0' <= p.data[p.at] && p.data[p.at] <= '9'; p.at++ {
		if p.at-from >= 18 {
			p.odd = true
			return 0
		}
		n = n*10 + int64(p.data[p.at]-'0')
	}
	if digits := p.at - from; digits == 0 || digits > 1 && p.data[from] == '0' || n < least || n > most {
		p.odd = true
	}
	return n
}

// truth reads true or false.
func (p *plain) truth() bool {
	p.space()
	for _, word := range []string{"true", "false"} {
		if len(p.data)-p.at >= len(word) && string(p.data[p.at:p.at+len(word)]) == word {
			p.at += len(word)
			return word == "true"
		}
	}
	p.odd = true
	return false
}

// texts reads an object of strings, each name once in whatever case.
func (p *plain) texts(most int) map[string]string {
	all := map[string]string{}
	p.members(func(raw []byte) {
		name := string(raw)
		for other := range all {
			if strings.EqualFold(name, other) {
				p.odd = true
			}
		}
		if len(all) == most {
			p.odd = true
		}
		if !p.odd {
			all[name] = p.text(maxPlain)
		}
	})
	return all
}

// oneOf reads one of the words.
func (p *plain) oneOf(words ...string) string {
	s := p.quoted(maxPlain)
	for _, w := range words {
		if string(s) == w {
			return w
		}
	}
	p.odd = true
	return ""
}

// once notes that a member was seen, and is odd for one that was before.
func (p *plain) once(seen *uint, bit int) {
	if *seen&(1<<bit) != 0 {
		p.odd = true
	}
	*seen |= 1 << bit
}

func (p *plain) space() {
	for p.at < len(p.data) {
		switch p.data[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// next reads one character behind any space.
func (p *plain) next(c byte) bool {
	p.space()
	if p.odd || p.at >= len(p.data) || p.data[p.at] != c {
		p.odd = true
		return false
	}
	p.at++
	return true
}
