package rls

import (
	"io"
	"net/http"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// json.go answers requests by HTTP, such as those of curl.

// largest is the maximum size of a request, in bytes.
const largest = 1 << 20

// answer decides on a request in JSON. The status is 200 if it passes, 429 if it is over the limit,
// 400 if it is invalid, and 503 if the limits cannot be checked.
func (s *Server) answer(w http.ResponseWriter, in *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, in.Body, largest))
	r := &ratelimitv3.RateLimitRequest{}
	if err == nil {
		err = protojson.Unmarshal(text, r)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response, err := s.ShouldRateLimit(in.Context(), r)
	if err != nil {
		code := http.StatusServiceUnavailable
		if status.Code(err) == codes.InvalidArgument {
			code = http.StatusBadRequest
		}
		http.Error(w, status.Convert(err).Message(), code)
		return
	}
	text, err = protojson.Marshal(response)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	for _, h := range response.ResponseHeadersToAdd {
		w.Header().Set(h.Key, h.Value)
	}
	if response.OverallCode == ratelimitv3.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	w.Write(append(text, '\n'))
}
