package kvm

import (
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
)

// A use and a removal of one image exclude each other, on whatever host: hosts
// may share a folder, where no marker tells. Other images are not held up.
func TestUsesAndRemovalsExcludeEachOther(t *testing.T) {
	var u imageUse
	now := time.Now()
	done, err := u.use("a", now)
	if err != nil {
		t.Fatal(err)
	}
	later := now.Add(2 * wantedFor) // a call that takes long is a use all the time
	if _, ok := u.remove("a", later); ok || !u.wanted("a", later) {
		t.Error("an image may be removed while it is used")
	}
	if other, ok := u.remove("b", later); ok {
		if _, err := u.use("b", later); fault.Of(err) != fault.Transient {
			t.Errorf("an image may be used while it is removed: %v", err)
		}
		if _, ok := u.remove("b", later); ok {
			t.Error("an image may be removed twice at once")
		}
		other()
	} else {
		t.Error("another image cannot be removed")
	}
	done()
	if _, ok := u.remove("a", now.Add(wantedFor-1)); ok {
		t.Error("an image may be removed that was wanted a moment ago")
	}
	removed, ok := u.remove("a", later)
	if !ok {
		t.Fatal("an image that nobody uses cannot be removed")
	}
	removed()
	if _, err := u.use("a", later); err != nil {
		t.Errorf("an image cannot be used after its removal: %v", err)
	}
	if len(u.of) > 1 {
		t.Errorf("%d images are remembered: one is in use", len(u.of))
	}
}
