package web

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// list.go lists limiters, and the clients of a PER_CLIENT limiter, for the page.

const (
	mostListed  = 500 // limiters: for more, the user of the page has to search
	mostClients = 100 // clients of a limiter
)

// An entry is a limiter on the page. It names the limiter in requests, too (nameOf).
type entry struct {
	render.JSONName
	// as it is shown: without characters that a browser does not show, or that turn text around
	Text string `json:"text"`
}

func entryOf(name string) entry { return entry{render.NameOf(name), render.Printable(name)} }

// nameOf returns the name of the limiter that the page calls by an entry's name, which is quoted if
// it is not UTF-8.
func nameOf(text string) string {
	if name, err := strconv.Unquote(text); err == nil && strings.HasPrefix(text, `"`) && !utf8.ValidString(name) {
		return name
	}
	return text
}

// listed is the response with the limiters.
type listed struct {
	Where    string      `json:"where"`
	Limiters []listEntry `json:"limiters"`
	More     int         `json:"more"` // number of matches that are not listed
}

type listEntry struct {
	entry
	Rate      string `json:"rate,omitempty"`
	Permits   int64  `json:"permits"`
	Available int64  `json:"available"`
	Fault     string `json:"fault,omitempty"`
}

// list writes the limiters whose names contain the search text, as stored or as shown.
func (w *Site) list(out http.ResponseWriter, in *http.Request) {
	ctx, s, search := in.Context(), w.server, in.FormValue("search")
	names, err := survey.Limiters(ctx, s.Redis, w.pattern, nil)
	if err != nil {
		w.fail(out, in, err)
		return
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !strings.Contains(name, search) && !strings.Contains(render.Printable(name), search)
	})
	answer := listed{Where: s.Where, Limiters: []listEntry{}, More: max(len(names)-mostListed, 0)}
	found, err := survey.Each(
		ctx,
		names[:len(names)-answer.More],
		func(ctx context.Context, name string) ([]survey.Glance, error) {
			return survey.Glances(ctx, s, name, w.client, nil)
		},
	)
	if err != nil {
		w.fail(out, in, err)
		return
	}
	w.back()
	for _, g := range slices.Concat(found...) {
		one := listEntry{entry: entryOf(g.Name), Fault: g.Fault}
		if g.Known {
			one.Rate = g.Rate.String()
		}
		if g.State != nil {
			one.Permits, one.Available = g.Rate.Permits, g.State.Available
		}
		answer.Limiters = append(answer.Limiters, one)
	}
	respond(out, http.StatusOK, answer)
}

// clientList is the response with the clients of a PER_CLIENT limiter.
type clientList struct {
	Clients []clientEntry `json:"clients"`
	More    int           `json:"more"` // number of clients that are not listed
}

type clientEntry struct {
	Client    string `json:"client"`
	Text      string `json:"text"` // as it is shown
	Available int64  `json:"available"`
}

// clients writes the clients of a limiter.
func (w *Site) clients(out http.ResponseWriter, in *http.Request) {
	ctx, name := in.Context(), nameOf(in.FormValue("name"))
	ids, err := w.server.Limiter(name, "").Clients(ctx)
	if err != nil {
		w.fail(out, in, err)
		return
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return !utf8.ValidString(id) }) // the page can't ask for it
	answer := clientList{Clients: []clientEntry{}, More: max(len(ids)-mostClients, 0)}
	found, err := survey.Each(
		ctx,
		ids[:len(ids)-answer.More],
		func(ctx context.Context, id string) ([]survey.Glance, error) {
			return survey.Glances(ctx, w.server, name, id, nil)
		},
	)
	if err != nil {
		w.fail(out, in, err)
		return
	}
	for _, g := range slices.Concat(found...) {
		if g.Client != "" && g.State != nil {
			answer.Clients = append(answer.Clients,
				clientEntry{g.Client, render.Printable(g.Client), g.State.Available})
		}
	}
	respond(out, http.StatusOK, answer)
}

// failure is the response if Redis can't be read.
type failure struct {
	Where string `json:"where"`
	Error string `json:"error"`          // as in an event
	Away  int64  `json:"away,omitempty"` // as in an event
}

func (w *Site) fail(out http.ResponseWriter, in *http.Request, err error) {
	if in.Context().Err() != nil {
		return // the client has disconnected
	}
	answer := failure{Where: w.server.Where, Error: w.server.Explain(err).Error()}
	if connect.Unanswered(err) {
		answer.Away, answer.Error = w.away().UnixMilli(), w.server.Brief(err)
	}
	respond(out, http.StatusBadGateway, answer)
}

// respond writes a response as JSON.
func respond(out http.ResponseWriter, status int, answer any) {
	text, err := render.JSON(answer)
	if err != nil {
		http.Error(out, err.Error(), http.StatusInternalServerError)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	out.Header().Set("Cache-Control", "no-store")
	out.WriteHeader(status)
	_, _ = out.Write(text) // an error means that the client has disconnected
}
