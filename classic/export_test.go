package classic

import "time"

// DefaultCallTimeout is the default of WithCallTimeout outside of these tests, which wait longer:
// on a busy machine a reply can take more than a second.
var DefaultCallTimeout = callTimeout

func init() { callTimeout = time.Minute }
