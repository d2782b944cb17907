package image_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// qcow is the beginning of a qcow2 of 1 GiB, as qemu-img makes it, with the
// changes of a test.
func qcow(changes ...func(b []byte)) []byte {
	b := make([]byte, 4096)
	copy(b, "QFI\xfb")
	set32(4, 3)(b)         // version
	set32(20, 16)(b)       // cluster bits
	set64(24, 1<<30)(b)    // size
	set32(36, 2)(b)        // L1 entries
	set64(40, 0x3_0000)(b) // L1 table
	set64(48, 0x1_0000)(b) // reference count table
	set32(56, 1)(b)        // its clusters
	set32(96, 4)(b)        // reference count order
	set32(100, 112)(b)     // header length
	for _, c := range changes {
		c(b)
	}
	return b
}

func set8(at int, v byte) func([]byte) { return func(b []byte) { b[at] = v } }
func set32(at int, v uint32) func([]byte) {
	return func(b []byte) { binary.BigEndian.PutUint32(b[at:], v) }
}

func set64(at int, v uint64) func([]byte) {
	return func(b []byte) { binary.BigEndian.PutUint64(b[at:], v) }
}

// disk is a whole qcow2 as far as anybody here looks, of n bytes, with its
// tables near its beginning.
func disk(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	copy(b, qcow(set32(20, 9), set64(48, 512), set64(40, 1024), set32(36, 1<<15)))
	return b
}

// rawDisk is a raw disk of n bytes with a boot sector.
func rawDisk(n int) []byte {
	b := make([]byte, n)
	copy(b, "\xeb\x63\x90")
	copy(b[510:], "\x55\xaa")
	return b
}

func sumOf(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
