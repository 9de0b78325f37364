-- Settings of luacheck for the scripts as Redis gets them: go run ./internal/assembled prints them.
std = { globals = {}, read_globals = { "redis", "KEYS", "ARGV", "string", "math", "tonumber", "ipairs", "unpack" } }
max_line_length = 120
ignore = {
  "211", -- a fragment defines functions and constants that not every script uses
  "43.", -- the arguments of a function have the names of what it is called with
}
