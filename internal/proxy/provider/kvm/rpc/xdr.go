package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"

	libvirt "github.com/digitalocean/go-libvirt"
)

// walk checks that b is exactly one value of t as XDR writes it: every string
// and array fits into what is left of b, and an optional value is there once
// or not at all. A decoder that trusts lengths may read b afterwards: what it
// allocates is bounded by a small multiple of b.
func walk(b []byte, t reflect.Type) error {
	w := walker{b}
	if t != nil {
		if err := w.value(t); err != nil {
			return err
		}
	}
	if len(w.left) > 0 {
		return fmt.Errorf("%d bytes are left over", len(w.left))
	}
	return nil
}

var (
	errShort = errors.New("it ends too early")

	typedParam = reflect.TypeFor[libvirt.TypedParam]()
	// optionals are the library's types for XDR's optional values, which are
	// arrays of at most one.
	optionals = map[reflect.Type]bool{
		reflect.TypeFor[libvirt.OptString]():  true,
		reflect.TypeFor[libvirt.OptDomain]():  true,
		reflect.TypeFor[libvirt.OptNetwork](): true,
	}
)

// maxCount is the most elements of one array. libvirt's own limits for lists
// of domains and volumes are a quarter of it.
const maxCount = 1 << 16

type walker struct{ left []byte }

func (w *walker) word() (uint32, error) {
	if len(w.left) < 4 {
		return 0, errShort
	}
	v := binary.BigEndian.Uint32(w.left)
	w.left = w.left[4:]
	return v, nil
}

func (w *walker) skip(n int) error {
	if len(w.left) < n {
		return errShort
	}
	w.left = w.left[n:]
	return nil
}

// opaque takes n bytes and what pads them to whole words.
func (w *walker) opaque(n uint32) ([]byte, error) {
	padded := (uint64(n) + 3) &^ 3
	if padded > uint64(len(w.left)) {
		return nil, fmt.Errorf("a string of %d bytes where %d are left", n, len(w.left))
	}
	s := w.left[:n]
	w.left = w.left[padded:]
	return s, nil
}

func (w *walker) str() ([]byte, error) {
	n, err := w.word()
	if err != nil {
		return nil, err
	}
	return w.opaque(n)
}

func (w *walker) value(t reflect.Type) error {
	if t == typedParam {
		return w.typedParam()
	}
	switch t.Kind() {
	case reflect.Int8:
		v, err := w.word()
		if err == nil && int32(v) != int32(int8(v)) {
			return fmt.Errorf("the number %d does not fit", int32(v))
		}
		return err
	case reflect.Uint8:
		v, err := w.word()
		if err == nil && v > 0xff {
			return fmt.Errorf("the number %d does not fit", v)
		}
		return err
	case reflect.Int32, reflect.Uint32:
		return w.skip(4)
	case reflect.Int64, reflect.Uint64, reflect.Float64:
		return w.skip(8)
	case reflect.String:
		_, err := w.str()
		return err
	case reflect.Array: // of bytes
		_, err := w.opaque(uint32(t.Len()))
		return err
	case reflect.Slice:
		return w.slice(t)
	case reflect.Struct:
		for i := range t.NumField() {
			if err := w.value(t.Field(i).Type); err != nil {
				return fmt.Errorf("%s: %w", t.Field(i).Name, err)
			}
		}
		return nil
	}
	return fmt.Errorf("no rule for %s", t)
}

func (w *walker) slice(t reflect.Type) error {
	n, err := w.word()
	if err != nil {
		return err
	}
	if optionals[t] && n > 1 {
		return fmt.Errorf("an optional value that is there %d times", n)
	}
	if n > maxCount {
		return fmt.Errorf("an array of %d", n)
	}
	if least := leastSize(t.Elem()); uint64(n)*uint64(least) > uint64(len(w.left)) {
		return fmt.Errorf("an array of %d where %d bytes are left", n, len(w.left))
	}
	for range n {
		if err := w.value(t.Elem()); err != nil {
			return err
		}
	}
	return nil
}

// typedParam is a name and a union over the type of its value.
func (w *walker) typedParam() error {
	if _, err := w.str(); err != nil {
		return err
	}
	kind, err := w.word()
	if err != nil {
		return err
	}
	switch kind {
	case 1, 2, 6: // int, unsigned, boolean
		return w.skip(4)
	case 3, 4, 5: // long, unsigned long, double
		return w.skip(8)
	case 7:
		_, err := w.str()
		return err
	}
	return fmt.Errorf("a parameter of the unknown type %d", kind)
}

// leastSize is the fewest bytes that a value of t has on the wire.
func leastSize(t reflect.Type) uint32 {
	switch {
	case t == typedParam:
		return 12
	case t.Kind() == reflect.Struct:
		n := uint32(0)
		for i := range t.NumField() {
			n += leastSize(t.Field(i).Type)
		}
		return n
	case t.Kind() == reflect.Int64, t.Kind() == reflect.Uint64, t.Kind() == reflect.Float64:
		return 8
	case t.Kind() == reflect.Array:
		return (uint32(t.Len()) + 3) &^ 3
	}
	return 4
}

// remoteError is libvirt's remote_error: what a frame of status error carries.
type remoteError struct {
	Code             int32
	Domain           int32
	Message          libvirt.OptString
	Level            int32
	Dom              libvirt.OptDomain
	Str1, Str2, Str3 libvirt.OptString
	Int1, Int2       int32
	Net              libvirt.OptNetwork
}

// readError returns the code and the raw text of a remote error.
func readError(b []byte) (code int32, message string, err error) {
	if err := walk(b, reflect.TypeFor[remoteError]()); err != nil {
		return 0, "", err
	}
	w := walker{b}
	c, _ := w.word()
	_, _ = w.word() // which part of libvirt it comes from
	if there, _ := w.word(); there == 1 {
		s, _ := w.str()
		message = string(s)
	}
	return int32(c), message, nil
}

// writeError is a remote error with only what the library reads of one: it
// takes for granted that there is a text.
func writeError(code int32, message string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(code))
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, uint32(len(message)))
	b = append(b, message...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return binary.BigEndian.AppendUint32(b, 2) // VIR_ERR_ERROR
}
