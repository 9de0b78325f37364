//go:build race

package rratelimiter

const raceDetector = true
