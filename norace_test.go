//go:build !race

package rratelimiter_test

const raceDetector = false
