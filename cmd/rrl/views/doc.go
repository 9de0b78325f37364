// Package views looks at what rrl shows as its users do: the web page in a headless Chromium, the terminal view in tmux.
// With -update it keeps what it saw as pictures in docs/.
//
// It is a module of its own for what it needs, and its tests are built with the tag views alone: chromium and tmux are much
// to install. "make views" does that, and runs them.
package views
