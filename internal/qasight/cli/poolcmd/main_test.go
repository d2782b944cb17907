package poolcmd_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Whatever the commands start has ended when they return.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
