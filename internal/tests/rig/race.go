//go:build race

package rig

// RaceDetector tells whether the race detector is on.
const RaceDetector = true
