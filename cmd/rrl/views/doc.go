// Package views tests what users of rrl see: the web page in a headless Chromium, and the terminal
// view in tmux. With -update it writes pictures of both to docs/.
//
// It is a separate module because of its dependencies. Its tests have the build tag views, because
// they need chromium and tmux, which are large. "make views" installs both and runs the tests.
package views
