package script

// isRefusal returns false: Plan 9 has no error numbers.
func isRefusal(error) bool { return false }
