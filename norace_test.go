//go:build !race

package rratelimiter

const raceDetector = false
